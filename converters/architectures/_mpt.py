"""What only MPT derives."""

from ggferry.converters.schema.derivations import Values


def alibi_bias(values: Values) -> float:
    """attention.max_alibi_bias: 8 unless the configuration says another, nothing where it says no ALiBi."""
    return float(values.get("alibi_stated", 8.0)) if values["alibi"] else 0.0
