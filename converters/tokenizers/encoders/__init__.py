"""One module for each kind of GGUF vocabulary; each exposes `SPEC`: its keys, and an encoder that reads them."""
