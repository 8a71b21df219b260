"""Gemma as Google's package of that name keeps it."""
