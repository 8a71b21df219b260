"""GGUF files on the Hugging Face Hub: which may be published, the model card, and the commit."""
