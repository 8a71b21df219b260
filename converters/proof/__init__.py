"""The proof: the output is read again and compared with its source, and a receipt states what was shown."""
