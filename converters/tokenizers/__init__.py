"""One module a tokenizer kind: source vocabulary to GGUF keys, and the reference encoder that checks them."""
