"""What trainers call tensors, and how they lay them out, carried to the names and the layouts of transformers."""
