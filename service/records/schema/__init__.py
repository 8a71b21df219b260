"""The versions of the database's tables: how those of an older ggferry become today's (docs/decisions/schema.md)."""
