"""What can be said of files in hand: sizes, memory, digests, differences, what a file is and whether it is whole."""
