"""What is more than one file: the command line, archives, the ledger."""
