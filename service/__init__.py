"""What handles more than one file: the command line, the library, archives, the ledger."""
