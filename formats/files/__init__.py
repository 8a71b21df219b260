"""Files as such: opened, read at offsets, digested, written under partial names and published."""
