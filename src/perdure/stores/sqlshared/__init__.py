"""The common parts of the SQLite and PostgreSQL stores."""
