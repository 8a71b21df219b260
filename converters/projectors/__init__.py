"""One module a projector, the mmproj file of a multimodal model: `SPEC: Architecture`, tables only."""
