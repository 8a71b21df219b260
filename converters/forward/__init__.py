"""The reference forward pass: torch, float32, weights streamed by layer, parametrized by a recipe's conventions."""
