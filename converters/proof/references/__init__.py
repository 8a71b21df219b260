"""Witnesses: independent programs, asked in processes of their own what the source or the output computes."""
