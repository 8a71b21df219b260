"""Keys of GGUF files as texts: their names, their types, their values."""
