"""Vocabularies: read from the source's files, written as GGUF keys, and checked by reference encoders."""
