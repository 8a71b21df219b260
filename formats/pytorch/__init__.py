"""The parts of PyTorch files: zip archives, the pickle subset, state dicts, Meta's model-parallel parts."""
