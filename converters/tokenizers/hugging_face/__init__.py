"""tokenizer.json carried out as it says, for comparing the GGUF side with it."""
