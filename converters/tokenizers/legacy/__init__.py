"""Vocabularies that stand inside GGML-era files, repaired where the era's converters lost something."""
