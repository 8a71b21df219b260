"""What trainers and other libraries call tensors, and their layouts, carried to those of transformers."""
