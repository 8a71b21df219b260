"""What the server keeps, in tables beside the ledger's: tokens, plans, the archive's index, uploads, events."""
