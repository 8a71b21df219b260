"""GGUF files written again without a model graph: edited, split, merged. Tensor data is carried byte for byte."""
