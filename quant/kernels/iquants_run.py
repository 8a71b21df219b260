"""From a codec's encode to a kernel of the IQ types: what is refused, and how a kernel's refusal gets its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ggferry.quant.blocks import ValueRefused, check_values
from ggferry.quant.kernels.common import all_finite, encode_rows, importance
from ggferry.quant.types import BlockError, BlockType

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

_NO_WEIGHTS = np.zeros(0, np.float32)


def numerators(middle: int, reach: int, step: float) -> Floats:
    """float32 `middle + step·i` for i = −reach … reach, the last repeated to fill lanes of eight."""
    tries = np.float32(middle) + np.arange(-reach, reach + 1, dtype=np.float32) * np.float32(step)
    return np.pad(tries, (0, -len(tries) % 8), mode="edge")


def encode(
    kind: BlockType,
    kernel: Callable[..., int],
    values: Floats,
    weights: Floats | None,
    *tables: Any,
    needs_weights: bool = False,
) -> Bytes:
    """Rows of `kind` from float32 `(R, columns)`.

    `kernel(values, importance, weighted, columns, *tables, out)` encodes flat blocks and returns −1 or the number of a
    block that it cannot encode. Raises BlockError for a missing or impossible importance matrix, ValueRefused for NaN,
    infinity and what overflows on the way: where llama.cpp aborts or its result fails its own validation.
    """
    check_values(kind, values)
    columns = values.shape[1]
    if weights is None and needs_weights:
        raise BlockError(f"{kind.name} needs an importance matrix")
    important = _NO_WEIGHTS if weights is None else importance(kind, weights, columns)

    def run(flat: Floats, out: Bytes, first: int) -> bool:
        if not all_finite(flat, 0, flat.size):
            return False
        bad = kernel(flat, important, weights is not None, columns, *tables, out)
        if bad >= 0:
            row, column = divmod((first + bad) * kind.elements, columns)
            raise ValueRefused(row, column, f"the block here is too large for {kind.name}: its sums overflow")
        return True

    return encode_rows(kind, run, values)
