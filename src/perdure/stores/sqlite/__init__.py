"""The SQL backends: plain SQL, bound parameters, one function per transaction."""
