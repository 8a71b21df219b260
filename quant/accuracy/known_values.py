"""Compare our decoders with known blocks: what gguf-py makes of some bytes of every type it decodes.

Both sides of a proof decode by the same code, so a level off by one would cancel out in everything it compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from ggferry.quant.codec import codec
from ggferry.support.heavy import np

LIST = "known_values.txt"


@cache
def decodes_as_known(name: str) -> bool:
    """Return whether our decoder of the type gives the known values.

    True where none are known: types of the GGML era, those of checkpoints, sums that nobody decodes.
    """
    if name not in known():
        return True
    data, expected = known()[name]
    one = codec(name)
    blocks = np.frombuffer(data, np.uint8).reshape(-1, one.type.block_bytes)
    return hashlib.sha256(one.decode(blocks, one.type.elements).astype("<f4").tobytes()).hexdigest() == expected


@cache
def known() -> Mapping[str, tuple[bytes, str]]:
    """Return blocks and the digest of their values by type."""
    text = (files(__package__) / LIST).read_text(encoding="ascii")
    rows = [line.split(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: (bytes.fromhex(data), digest) for name, data, digest in rows}
