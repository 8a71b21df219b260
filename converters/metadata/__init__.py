"""The `general.*` keys and the names of files, derived from model cards, paths and configurations."""
