"""The client of the service: `ggferry.Client`, and what `ggferry remote` calls."""
