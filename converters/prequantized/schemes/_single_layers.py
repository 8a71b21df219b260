"""What configurations say of single layers: GPTQModel's `dynamic`, AutoRound's `extra_config`.

Their keys are names of layers, or regular expressions, which are not run on what strangers wrote: settings are named
for a layer, or they are one of those that the configuration has, and the layer's shapes tell which.

Source: GPTQModel `quantization/config.py` (`dynamic_get`), auto-round `inference/convert_model.py`
(`get_layer_config`).
"""

from __future__ import annotations

from collections.abc import Callable

from ggferry.converters.prequantized.schemes._common import Config
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import AmbiguousError

PLACES = ("dynamic", "extra_config")
SIZES = ("bits", "group_size")


def has_single_layers(config: Config) -> bool:
    """Return whether a configuration has settings for some layers of their own."""
    return any(isinstance(config.get(place), dict) and config[place] for place in PLACES)


def for_layer(checkpoint: Checkpoint, config: Config, layer: str, columns: Callable[[int, int], int | None]) -> Config:
    """Return the configuration with the bits and the group size of a layer.

    Args:
        checkpoint: Where the layer is.
        config: The configuration of the model.
        layer: Name of the layer.
        columns: The columns of a group of the layer, where it has the shapes of these bits and this size; else None.

    Returns `config` as it is where no settings fit. Raises AmbiguousError where several fit that differ.
    """
    if not has_single_layers(config):
        return config
    own = [
        group for place in PLACES if isinstance(config.get(place), dict) for name, group in config[place].items()
        if isinstance(group, dict) and name == layer
    ]  # fmt: skip
    others = [
        group for place in PLACES if isinstance(config.get(place), dict) for group in config[place].values()
        if isinstance(group, dict)
    ]  # fmt: skip
    found = {tuple(group.get(key, config.get(key)) for key in SIZES) for group in (own or [{}, *others])}
    whole = [(bits, size) for bits, size in found if type(bits) is type(size) is int]
    fitting = sorted({(bits, wide) for bits, size in whole if (wide := columns(bits, size)) is not None})
    if len(fitting) > 1:
        raise AmbiguousError(
            f"bits and group size of {layer!r}",
            path=checkpoint.path,
            found=" or ".join(f"{bits} and {size}" for bits, size in fitting),
            hint='name the layer in "extra_config" of quantization_config: {"bits": …, "group_size": …}',
        )
    return {**config, **dict(zip(SIZES, fitting[0], strict=True))} if fitting else config
