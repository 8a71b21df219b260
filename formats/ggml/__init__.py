"""The parts of GGML-era containers: preludes, tensor records, type numbers, models in several files."""
