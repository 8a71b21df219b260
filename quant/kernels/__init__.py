"""Compiled inner loops of the codecs (numba, CPU). Imported only when a kernel is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggferry.quant.codec import Bytes, Floats


def lazy_kernel(module: str, name: str) -> Callable[[Floats, Floats | None], Bytes]:
    """The `Codec.encode` that `module` has under `name`; numba is loaded at the first call, and what is not in its
    cache is compiled then (seconds, once a machine)."""

    def encode(values: Floats, weights: Floats | None = None) -> Bytes:
        run: Any = getattr(import_module(module), name)
        rows: Bytes = run(values, weights)
        return rows

    return encode
