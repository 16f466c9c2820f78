"""The PostgreSQL store: many orchestrators on one database, over asyncpg."""
