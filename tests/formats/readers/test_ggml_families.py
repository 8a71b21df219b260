"""GGML-era files of the families beside LLaMA: which they are, and what their tensors hold, against their makers."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.model_graph.open_checkpoint import (
    architectures,
    header_layouts,
    open_checkpoint,
)
from ggferry.converters.model_graph.rows import values_of
from ggferry.formats.errors import AmbiguousError, CorruptError, UnsupportedError, UsageError
from ggferry.formats.reader import HeaderLayout, Kind, kind_of
from ggferry.formats.readers import ggml
from helpers.third_party_fixtures import FIXTURES, entry_cases, legacy_other

LAYOUTS = {"neox": "gptneox", "neox-old": "gptneox-2023-04", "falcon-early": "falcon-2023-06-05"}
LAYOUTS |= {"falcon-early2": "falcon-2023-06-10"}
"""Names of the manifest's candidates → ours, where they differ."""
FUSED = ("g0", "g04", "g1")
"""Their ggml rounded level × d + m once where we round twice (tests/quant/codecs/test_codecs.py)."""


EACH = pytest.mark.parametrize(("root", "entry"), entry_cases(legacy_other()))
MINE = FIXTURES / "legacy-other"


@cache
def layouts() -> dict[str, HeaderLayout]:
    return {layout.name: layout for layout in header_layouts()}


@EACH
def test_every_file_is_one_family_s(root: Path, entry: dict) -> None:
    checkpoint = open_checkpoint(str(root / entry["file"]))
    expected = entry["parses_as"][0] if entry["arch"] != "falcon" else "falcon"
    assert checkpoint.layout is not None
    assert checkpoint.layout.removesuffix("-ggcc") == LAYOUTS.get(expected, expected)
    assert list(checkpoint.header.values()) == list(entry["hparams"].values())
    kinds = {ref.type.name for ref in checkpoint.tensors.values()}
    plain = {name.removesuffix("_V1").removesuffix("_V2").removesuffix("_PLANAR") for name in kinds}
    assert plain == {name.removesuffix("_PLANAR") for name in entry["tensor_types"]}
    assert len(checkpoint.tensors) == entry["n_tensors"] + (entry["arch"] == "whisper")  # its mel filters


@EACH
def test_every_quantized_tensor_has_its_maker_s_values(root: Path, entry: dict) -> None:
    checkpoint = open_checkpoint(str(root / entry["file"]))
    for name, witness in entry.get("dequant", {}).items():
        ref = checkpoint.tensors[name]
        assert list(ref.shape[::-1]) == witness["ne"]
        if ref.type.planar:  # their reading of bloomz.cpp's planes as blocks is the trap, not the truth
            continue
        values = values_of(checkpoint, ref, 0, ref.rows)
        step = np.abs(values).max() * 2.0**-22
        assert np.abs(values.reshape(-1)[:8] - witness["first8"]).max() <= step
        digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
        if digest != witness["sha256_f32"]:
            assert entry["dequant_lib"] in FUSED and ref.type.name[:4] in ("Q4_1", "Q5_1", "Q4_3"), (name, ref.type)
            assert abs(values.astype(np.float64).sum() - witness["sum"]) <= values.size * step


@EACH
def test_the_layouts_that_walk_to_the_end_are_the_ambiguity_table_s(root: Path, entry: dict) -> None:
    """Without the names of the tensors several headers fit; the table of the facts says which, and no others do."""
    fitting = set()
    for name, layout in layouts().items():
        if name.startswith(
            ("bert.cpp", "biogpt.cpp", "clip.cpp")
        ):  # of whose header of seven sizes the table knows nothing
            continue
        anything = replace(layout, names=("*",), planar=())
        try:
            ggml.read(str(root / entry["file"]), [anything])
        except (CorruptError, UnsupportedError):
            continue
        fitting.add(name)
    expected = {LAYOUTS.get(name, name) for name in entry["parses_as"]}
    if entry["magic"] == "0x67676363":
        expected = {"falcon-ggcc"}
    version = ggml.MAGIC[bytes.fromhex(entry["magic"][2:])[::-1]], entry["version"]
    expected = {name for name in expected if version in layouts()[name].containers}
    if entry["hparams"]["ftype"] > 18 or set(entry["tensor_types"]) & {"Q5_0", "Q5_1", "Q8_0"}:
        expected.discard("llama")  # whose ftype has no version, and whose unversioned files are older than these types
    assert fitting == expected
    if len(expected) > 1:
        several = [replace(layouts()[name], names=("*",), planar=()) for name in expected]
        with pytest.raises(AmbiguousError, match="--arch"):
            ggml.read(str(root / entry["file"]), several)


def test_a_first_token_of_one_byte_may_be_taken_for_an_ftype(tmp_path: Path) -> None:
    """GPT-2, ftype 9 (Q5_1, version 0): read as a token's length swallows the count and token 0 ('!'), and Falcon's
    header of five fields walks to the end. The names tell."""
    data = bytearray((MINE / "gpt2/gpt2-s64-g04-q4_3.bin").read_bytes())
    data[24] = 9
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    early = replace(layouts()["falcon-2023-06-05"], names=("*",))
    assert ggml.read(str(path), [early]).layout == "falcon-2023-06-05"
    assert open_checkpoint(str(path)).layout == "gpt2"


def test_the_ftype_keeps_other_headers_away() -> None:
    """GPT-2 as NeoX of April 2023: the count of the vocabulary stands where ftype would."""
    with pytest.raises(CorruptError, match="ftype"):
        ggml.read(str(MINE / "gpt2/gpt2-s64-g04-q4_3.bin"), [replace(layouts()["gptneox-2023-04"], names=("*",))])


def test_the_user_may_say_which() -> None:
    path = str(MINE / "bloom/bloom-s64-bloomzcpp-q4_1.bin")
    assert open_checkpoint(path, "bloom").layout == "bloom"
    with pytest.raises(CorruptError):
        open_checkpoint(path, "gptj")
    with pytest.raises(UnsupportedError):
        open_checkpoint(path, "rwkv")
    with pytest.raises(UsageError, match="gptneox"):
        open_checkpoint(path, "phi2")


def test_every_layout_is_read_by_a_dialect_of_its_owners() -> None:
    for spec in architectures().values():
        readers = [dialect for dialect in spec.dialects if dialect.source == "ggml"]
        legacy = [layout for layout in spec.headers if kind_of(layout.containers[0][0]) is Kind.LEGACY]
        for layout in legacy:
            assert any(not dialect.layouts or layout.name in dialect.layouts for dialect in readers), layout.name
            fields = {member.name for member in layout.header.members}
            assert layout.names and (layout.vocab.count == "none" or "n_vocab" in fields)
            assert layout is layouts()[layout.name]  # one name, one layout
        assert bool(readers) == bool(legacy), spec.name
