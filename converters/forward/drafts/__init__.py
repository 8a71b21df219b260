"""How drafts compute: models that guess tokens for another one, of whose states they read."""
