"""Checkpoints whose weights are quantized already: recognized here, dequantized as their scheme defines."""
