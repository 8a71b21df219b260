"""Importance matrices: what a model multiplies its weights with."""
