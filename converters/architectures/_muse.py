"""Muse Glimmer: the norms of queries and keys, which GGUF has and a checkpoint has not, and which blocks turn."""

from ggferry.converters.schema.derivations import Values


def query_norm(values: Values) -> tuple[float, ...]:
    """Return the weights of the queries' norm, `(head_dim,)`: the factor of normed queries."""
    return (float(values["qk_scale"]),) * int(values["head_dim"])


def key_norm(values: Values) -> tuple[float, ...]:
    """Return the weights of the keys' norm, `(head_dim,)`: ones."""
    return (1.0,) * int(values["head_dim"])


def rotated(values: Values) -> tuple[bool, ...]:
    """Return which blocks rotate queries and keys: those with a base in the list, else those with a window."""
    listed = values.get("rope_bases")
    return tuple(bool(item) for item in (values["swa_layers"] if listed is None else listed))


def rotated_differently(values: Values) -> int:
    """Return how many blocks turn without a window, or have one and do not turn."""
    return sum(bool(a) != bool(b) for a, b in zip(values["rope_layers"], values["swa_layers"], strict=False))


def other_bases(values: Values) -> int:
    """Return how many blocks have another rotary base than the model."""
    return sum(base not in (0, values["rope_base"]) for base in values.get("rope_bases", ()))


def windowed(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window where nothing lists them: all but every fourth, counted from the last."""
    count = values["n_layer"]
    return tuple((count - 1 - n) % 4 != 0 for n in range(count))
