"""Bytes to named things and back. No knowledge of any model."""
