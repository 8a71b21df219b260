"""The HTTP API below /api/v1: each route parses, calls a function of `functions.py` or `work/`, and answers JSON."""
