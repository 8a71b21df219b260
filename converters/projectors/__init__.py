"""One module a projector, the second file of a model that also sees or hears: `SPEC: Architecture`, tables only."""
