"""The client of the service: `ggferry.Client`, and what `ggferry remote` calls. It needs only the standard library."""
