"""Arithmetic on blocks: types, codecs, kernels, recipes. No files, no models."""
