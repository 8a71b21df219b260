"""Derivations read the other way: what a configuration stated, from what GGUF states."""
