"""The compiled decoder of a type, which takes the reference's place only where it gives the reference's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.quant.kernels import Compiled
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats


def compiled(kind: BlockType, decode: Callable[[Bytes, int], Floats], module: str) -> Compiled:
    """Return the compiled decoder of a type: its name in `module`; when loaded it is held against `decode`."""

    def agrees(run: Callable[[Bytes, Floats, int], bool]) -> bool:
        count = -(-37 // kind.elements)
        noise = np.random.default_rng(0).integers(0, 256, (64, count * kind.block_bytes), np.uint8)
        for row in noise:
            found = np.empty(count * kind.elements, np.float32)
            if run(row, found, found.size) and found.tobytes() != decode(row[None], found.size).tobytes():
                return False
        return True

    return Compiled(f"ggferry.quant.kernels.{module}", kind.name.lower(), agrees=agrees)
