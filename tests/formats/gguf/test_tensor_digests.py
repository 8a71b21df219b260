"""The digest of a tensor does not depend on the order in which its pieces are written."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from blake3 import blake3

from ggferry.formats.gguf import tensor_digests
from ggferry.formats.gguf.tensor_digests import TensorDigests, digest_of_set

DATA = {"a": os.urandom(100_000), "b": os.urandom(1), "c": os.urandom(33_333)}
EXPECTED = {name: blake3(data).hexdigest() for name, data in DATA.items()}


@pytest.mark.parametrize("order", ["forward", "backward", "random", "threads"])
def test_pieces_in_any_order(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_digests, "PIECE", 700)  # a piece of 1,000 bytes is read back in two
    file = {name: bytearray(len(data)) for name, data in DATA.items()}
    digests = TensorDigests(lambda name, at, view: view.__setitem__(slice(None), file[name][at : at + len(view)]))
    pieces = [(name, at) for name, data in DATA.items() for at in range(0, len(data), 1000)]
    if order == "backward":
        pieces.reverse()
    elif order != "forward":
        random.Random(order).shuffle(pieces)

    def write(piece: tuple[str, int]) -> None:
        name, at = piece
        data = DATA[name][at : at + 1000]
        file[name][at : at + 1000] = data
        digests.add(name, at, memoryview(data))

    with ThreadPoolExecutor(8 if order == "threads" else 1) as pool:
        list(pool.map(write, pieces))
    assert {name: digests.hexdigest(name) for name in DATA} == EXPECTED


def test_a_tensor_without_data_has_the_digest_of_nothing() -> None:
    assert TensorDigests(lambda *_: None).hexdigest("none") == blake3(b"").hexdigest()


def test_the_digest_of_a_set_is_that_of_the_lines() -> None:
    lines = "".join(f"{EXPECTED[name]}\n" for name in DATA)
    assert digest_of_set(EXPECTED.values()) == blake3(lines.encode()).hexdigest()
