"""The kinds of outputs of a conversion: each plans, writes, proves and describes its outputs."""
