"""Folders that the library MLX loads: what of a model it keeps as integers with scales."""
