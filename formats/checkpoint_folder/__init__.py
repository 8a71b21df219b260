"""Models that are folders: which files belong to them, and the index of their shards."""
