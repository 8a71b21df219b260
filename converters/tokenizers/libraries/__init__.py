"""The libraries that models are made with, run on their files in a bounded process: the source's side of the proof."""
