"""The versions of the server's tables, a module each, which alembic runs in order."""
