"""Models that make sound of codes, up to a spectrum: each computes as those of `computations` do."""
