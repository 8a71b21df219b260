"""The meaning of models: architectures, layouts, tokenizers, plans, and the proof that nothing was lost."""
