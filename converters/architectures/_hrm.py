"""HRM-Text: what its embeddings are multiplied by."""

from ggferry.converters.schema.derivations import Values


def embedding_scale(values: Values) -> float:
    """Return what embeddings are multiplied by where nothing states it: one through their spread at the start."""
    return 1 / float(values["spread"]) if values.get("spread") else 1.0
