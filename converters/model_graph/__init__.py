"""A checkpoint bound to an architecture: roles of tensors, values of hyper-parameters, rows on demand."""
