"""Write down what gguf-py makes of known blocks of every type it decodes: `quant/accuracy/known_values.txt`.

    python tools/known_values.py > quant/accuracy/known_values.txt

Nothing of ggferry is imported: a proof holds our decoders against these values before it trusts what they say.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from itertools import count

import gguf
import numpy as np

BLOCKS = 4
HEAD = """\
# Blocks, and what gguf-py {version} decodes them to: type, bytes, SHA-256 of the float32 values (little-endian).
# Made by tools/known_values.py; not edited by hand.
"""


def known(kind: gguf.GGMLQuantizationType) -> str | None:
    """The line of one type: random bytes whose values are all finite. None for a type that gguf-py does not decode."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    for seed in count():
        data = np.random.default_rng((kind.value, seed)).integers(0, 256, (BLOCKS, size), np.uint8)
        try:
            with np.errstate(all="ignore"):
                values = gguf.quants.dequantize(data, kind).astype("<f4")
        except NotImplementedError:
            return None
        if np.isfinite(values).all():
            return f"{kind.name} {data.tobytes().hex()} {hashlib.sha256(values.tobytes()).hexdigest()}"
    return None


def main() -> None:
    """Print the list."""
    print(HEAD.format(version=version("gguf")), end="")
    for kind in gguf.GGMLQuantizationType:
        if line := known(kind):
            print(line)


if __name__ == "__main__":
    main()
