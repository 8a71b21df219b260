"""Compiled inner loops of the codecs (numba, CPU). They are imported only when a kernel is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggferry.quant.codec import Bytes, Floats


_listener: Callable[[], None] | None = None


def on_compilation(listener: Callable[[], None]) -> None:
    """Call `listener` once, from any thread, if a kernel must be compiled because no cache has its code."""
    global _listener
    _listener = listener


def announce_compilation() -> None:
    """Call the listeners; a kernel does this before it is compiled."""
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        listener()


def lazy_kernel(module: str, name: str) -> Callable[[Floats, Floats | None], Bytes]:
    """Return the `Codec.encode` that `module` has under `name`.

    numba is loaded at the first call, and what is not in its cache is compiled then (seconds, once on each machine).
    """

    def encode(values: Floats, weights: Floats | None = None) -> Bytes:
        run: Any = getattr(import_module(module), name)
        rows: Bytes = run(values, weights)
        return rows

    return encode
