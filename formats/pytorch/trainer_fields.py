"""Read what trainers pickle beside tensors, as data: arguments in a `Namespace`, enumerations, numbers of numpy.

No object of their classes is made: each is a record of fields (`pickle_names.Record`).
"""

from __future__ import annotations

from typing import Any

from ggferry.formats.limits import MAX_NAME
from ggferry.formats.pytorch.pickle_names import Global, Record, View

MAX_FIELDS = 4096
"""Most arguments of a training: Megatron-LM has about 700."""
_NUMPY = frozenset(
    [
        *("numpy.dtype", "numpy.ndarray"),
        *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    ]
)
_PLAIN = frozenset(
    [
        *("argparse.Namespace", "signal.Signals", "_io.BytesIO", "datetime.timedelta", "datetime.datetime"),
        *(f"{module}.{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
    ]
)
_PACKAGES = ("megatron.", "nemo.", "omegaconf.", "transformer_engine.", "modelopt.", "nvidia_resiliency_ext.")


class TrainerClasses:
    """The names of classes that a training's files mention beside tensors, those of some packages among them."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def __contains__(self, name: object) -> bool:
        known = name in _NUMPY or name in _PLAIN
        return known or (isinstance(name, str) and name.startswith(self._packages))


MEGATRON = TrainerClasses(*_PACKAGES)


def plain_fields(value: Any) -> dict[str, Any]:
    """Return the arguments of a `Namespace`, or the items of a dictionary, that are plain values; {} for others.

    Numbers, texts and lists of them stay; a dtype is its name, an enumeration's member what it was made with.
    """
    if isinstance(value, Record):
        value = value.state
    if not isinstance(value, dict) or len(value) > MAX_FIELDS:
        return {}
    made = {key: _plain(item) for key, item in value.items() if isinstance(key, str)}
    return {key: item for key, item in made.items() if item is not _NONE}


_NONE = object()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_NAME else _NONE
    if isinstance(value, Global):
        return value.name
    if isinstance(value, Record):
        return _plain(value.args[0]) if len(value.args) == 1 and not isinstance(value.args[0], Record) else _NONE
    if isinstance(value, (list, tuple)) and len(value) <= MAX_FIELDS and not isinstance(value, View):
        items = [_plain(item) if not isinstance(item, (list, tuple)) else _NONE for item in value]
        return _NONE if any(item is _NONE for item in items) else items
    return _NONE
