"""Grok: how its scores of attention are scaled, and which of its numbers nothing states."""

from ggferry.converters.schema.derivations import Values


def score_scale(values: Values) -> float:
    """Return attention.output_scale: the factor of the scores, one over the root of a head's width."""
    return float(values["head_dim"] ** -0.5)
