"""Tiny random models, a module a family: what `transformers` is given to make one, each with a name."""
