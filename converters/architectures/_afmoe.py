"""What of an AFM mixture's configuration follows for its embeddings."""

import math

from ggferry.converters.schema.derivations import Values


def embedding_scale(values: Values) -> float:
    """What embeddings are multiplied by: the root of their width, where the configuration says so."""
    return root(values) if values["mup"] else 1.0


def root(values: Values) -> float:
    """The root of the width, which llama.cpp always takes."""
    return math.sqrt(values["n_embd"])
