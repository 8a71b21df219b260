"""Bytes that are sent to the server: the pieces of a file, known by their digests, and the names files may have."""
