"""Models read tensor by tensor to be compared: digests, and differences within and across containers."""
