"""What SmolLM3 alone computes of its settings."""

from ggferry.converters.schema.derivations import Values


def windows(values: Values) -> tuple[bool, ...] | None:
    """Return which blocks have a window, if there is one: as listed, or those that turn nothing."""
    if not values["n_swa"]:
        return None
    listed = values.get("layer_windows")
    return tuple(not rotated for rotated in values["rope_layers"]) if listed is None else tuple(listed)
