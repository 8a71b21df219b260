"""The versions of the ledger's tables, a module each, which alembic runs in order."""
