"""Checkpoints whose weights are quantized already: recognized here, and dequantized as their scheme defines."""
