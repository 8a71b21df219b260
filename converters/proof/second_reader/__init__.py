"""The source read a second time, by libraries that share nothing with our readers and dequantizers."""
