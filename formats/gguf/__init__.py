"""The parts of GGUF: header layout, values, shards, the writer. The reader is in formats/readers."""
