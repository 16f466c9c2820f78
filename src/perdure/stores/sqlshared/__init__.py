"""What the SQLite and PostgreSQL stores have in common."""
