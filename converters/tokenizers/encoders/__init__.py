"""One module a kind of GGUF vocabulary, each exposing `SPEC`: its keys, and an encoder that reads them."""
