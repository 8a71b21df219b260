"""Checkpoints of orbax: the key-value store OCDBT, and the arrays of zarr in it."""
