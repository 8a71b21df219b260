"""Vocabularies stored inside GGML-era files, repaired where the era's converters lost something."""
