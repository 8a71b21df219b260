"""The `general.*` keys and the names of files: from model cards, paths and configurations."""
