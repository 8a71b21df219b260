"""Witnesses: programs that others wrote, asked in processes of their own what the source or the output computes."""
