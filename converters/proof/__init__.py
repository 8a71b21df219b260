"""The proof: the output, read again, compared with its source; and the receipt that says what was shown."""
