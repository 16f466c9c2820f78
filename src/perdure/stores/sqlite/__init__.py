"""The SQLite store: plain SQL, bound parameters, one function per transaction."""
