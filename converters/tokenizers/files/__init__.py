"""One module for each kind of sidecar file that holds a model's tokenizer; each exposes `SOURCE`."""
