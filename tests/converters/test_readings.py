"""What a proof costs: the source is read once to write and once to prove, the output once; searches are sampled."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import pytest
from blake3 import blake3

import ggferry
from ggferry.converters.conversion import run as convert
from ggferry.converters.conversion.kinds.gguf import plan_in
from ggferry.converters.model_graph import rows
from ggferry.converters.proof import tensors
from ggferry.formats.errors import VerificationError
from ggferry.support.progress import Stage
from helpers.third_party_fixtures import FIXTURES


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("level", "of_source", "of_output"), [("none", 1, 1), ("fast", 2, 1)])
def test_bytes_in_memory_are_not_read_again(
    level: str, of_source: int, of_output: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests of source and output are taken from what passes; only headers and what lies in them is read besides."""
    from ggferry.formats.files.sources import LocalFile

    read: Counter[str] = Counter()
    read_into = LocalFile.read_into

    def counted(self: LocalFile, offset: int, buffer: memoryview) -> None:
        read[Path(self.path).suffix if ".gguf" not in self.path else "output"] += len(buffer)
        read_into(self, offset, buffer)

    monkeypatch.setattr(LocalFile, "read_into", counted)
    source = FIXTURES / "hf" / "ckpt" / "llama_k256"
    done = ggferry.convert(source, tmp_path / "o.gguf", outtype="q8_0", verify=level, jobs=threads)
    (weights,) = source.glob("*.safetensors")
    small = 1 << 16
    if threads == 1:  # of several, any may lose its turn, and in chunks as small as here all of them
        assert read[".safetensors"] <= of_source * weights.stat().st_size + small
        assert read["output"] <= of_output * Path(done.output).stat().st_size + small
    assert done.receipt["source"]["files"][0]["blake3"] == blake3(weights.read_bytes()).hexdigest()
    assert done.receipt["output"]["files"][0]["blake3"] == blake3(Path(done.output).read_bytes()).hexdigest()


def test_of_a_search_a_sample_is_encoded_again_and_every_byte_is_held_against_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHUNK", 1 << 15)
    source = FIXTURES / "hf" / "ckpt" / "llama_k256"
    encoded: Counter[str] = Counter()
    encode = tensors.encode_rows
    monkeypatch.setattr(
        tensors,
        "encode_rows",
        lambda kind, rows, *a: (encoded.update({kind.name: rows.size}), encode(kind, rows, *a))[1],
    )
    done = ggferry.convert(source, tmp_path / "o.gguf", outtype="q4_k", verify="fast")
    told = {one["name"]: one for one in done.receipt["tensors"]}
    searched = [one for one in told.values() if one["type"] == "Q4_K"]
    elements = sum(prod(one["shape"]) for one in searched)
    assert all(one["encoded_again"] and one["encoded_again_share"] < 1 for one in searched)
    assert encoded["Q4_K"] < elements / 4
    again = sum(prod(one["shape"]) * one["encoded_again_share"] for one in searched)
    assert encoded["Q4_K"] == pytest.approx(again, rel=1e-3)


def test_a_changed_bit_in_what_was_not_encoded_again_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest bit of one nibble: its value stays well within what rounding explains."""
    monkeypatch.setattr(rows, "CHUNK", 1 << 15)
    prove = convert.prove

    def damage(outputs: list[convert.PlannedOutput], paths: list[str], stage: Stage, *more: object) -> object:
        step = next(
            step for step in plan_in(outputs[0]).steps if step.type.name == "Q4_K" and len(step.node.shape) == 2
        )
        piece = rows.piece_rows(step.node, step.type)
        with Path(paths[0]).open("r+b") as file:
            file.seek(step.offset + piece * step.type.row_bytes(step.node.shape[-1]) + 20)  # in the second piece
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        return prove(outputs, paths, stage, *more)

    monkeypatch.setattr(convert, "prove", damage)
    with pytest.raises(VerificationError, match="not the bytes that were written"):
        ggferry.convert(FIXTURES / "hf" / "ckpt" / "llama_k256", tmp_path / "o.gguf", outtype="q4_k", verify="fast")
    assert not list(tmp_path.iterdir())
