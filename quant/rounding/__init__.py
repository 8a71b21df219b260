"""Which scales and levels of a type are taken, where they are not llama-quantize's."""
