"""How tensors of a source dialect become tensors of GGUF."""
