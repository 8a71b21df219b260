"""The reference forward pass: torch, float32, layers streamed, parametrised by conventions."""
