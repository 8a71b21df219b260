"""Meaning: architectures, layouts, tokenizers, plans, and the proof that nothing was lost."""
