"""ggferry: carries language-model weights out of legacy and training formats into GGUF v3, and proves it."""

__version__ = "0.1.0"
