"""Known values of blocks are gguf-py's, of every type that it decodes and a GGUF file can hold, and ours."""

from __future__ import annotations

import gguf
import known_values as maker
import numpy as np
import pytest

from ggferry.converters.proof.compare import Case, compare_outputs
from ggferry.converters.proof.tensors import Encoding, Sides
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import VerificationError
from ggferry.quant.accuracy import known_values
from helpers.third_party_fixtures import FIXTURES


def test_the_list_is_what_gguf_py_says() -> None:
    lines = [line for kind in gguf.GGMLQuantizationType if (line := maker.known(kind))]
    names = [line.split(" ")[0] for line in lines]
    assert list(known_values.known()) == names
    for line in lines:
        name, data, digest = line.split(" ")
        assert known_values.known()[name] == (bytes.fromhex(data), digest)


@pytest.mark.parametrize("name", known_values.known())
def test_our_decoders_give_the_known_values(name: str) -> None:
    assert known_values.decodes_as_known(name)


def test_a_wrong_decoder_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(str(FIXTURES / "legacy-llama/ggjt3-20230821/q4_0.bin"))
    monkeypatch.setattr("ggferry.converters.proof.compare.decodes_as_known", lambda name: name != "Q4_0")
    with pytest.raises(VerificationError, match="decoder of Q4_0"):
        compare_outputs([Case(Sides(graph, graph, Encoding()), "fast")])


def test_other_values_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data, digest = known_values.known()["Q8_0"]
    other = np.frombuffer(data, np.uint8).copy()
    other[5] ^= 1
    monkeypatch.setattr(known_values, "known", lambda: {"Q8_0": (other.tobytes(), digest)})
    assert not known_values.decodes_as_known.__wrapped__("Q8_0")
