"""Compiled inner loops of the codecs (numba, CPU). Imported only when a kernel is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggferry.quant.codec import Bytes, Floats


_listener: Callable[[], None] | None = None


def on_compilation(listener: Callable[[], None]) -> None:
    """`listener` is called once, from any thread, if a kernel must be compiled: not where a cache has its code."""
    global _listener
    _listener = listener


def announce_compilation() -> None:
    """What a kernel does before it is compiled."""
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        listener()


def lazy_kernel(module: str, name: str) -> Callable[[Floats, Floats | None], Bytes]:
    """The `Codec.encode` that `module` has under `name`; numba is loaded at the first call, and what is not in its
    cache is compiled then (seconds, once a machine)."""

    def encode(values: Floats, weights: Floats | None = None) -> Bytes:
        run: Any = getattr(import_module(module), name)
        rows: Bytes = run(values, weights)
        return rows

    return encode
