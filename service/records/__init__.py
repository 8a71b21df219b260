"""What outlives a run: the plan file, the ledger, the report."""
