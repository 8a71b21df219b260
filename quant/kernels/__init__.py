"""Compiled inner loops of the codecs (numba, CPU). Imported only when a kernel is used."""
