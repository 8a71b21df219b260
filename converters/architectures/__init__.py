"""One module an architecture, each exposing `SPEC: Architecture`: tables only."""
