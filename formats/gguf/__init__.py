"""The parts of GGUF: header layout, values, shards, the writer. The reader stands in formats/readers."""
