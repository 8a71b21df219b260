"""The reference forward pass: torch, float32, layers streamed, parametrized by conventions."""
