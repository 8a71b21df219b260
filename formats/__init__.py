"""Bytes become named things, and named things become bytes. Nothing here knows any model."""
