"""Attention to some keys: those that an indexer chooses, or that many tokens are compressed into."""
