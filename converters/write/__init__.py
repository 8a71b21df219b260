"""Carry a plan out: tensors are streamed into files that get their names once they are whole. No decisions."""
