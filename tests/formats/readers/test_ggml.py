"""GGML, GGMF, GGJT: what the original programs wrote, and what must be refused."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import pytest

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.understand import understand
from ggferry.formats.errors import (
    BadValueError,
    CorruptError,
    DuplicateError,
    GgferryError,
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TruncatedError,
    UnexpectedTensorError,
    UnsupportedError,
)
from helpers.builders import MAGIC, Llama, record
from helpers.third_party_fixtures import FIXTURES, entry_cases, legacy_llama

SMALL = {"n_vocab": 262, "n_embd": 32, "n_head": 4, "n_head_kv": 2, "n_layer": 2, "n_ff": 64}


def manifest_type(name: str) -> str:
    for suffix in ("_PLANAR", "_V1", "_V2", "_64"):
        name = name.removesuffix(suffix)
    return name


@pytest.mark.parametrize(("root", "entry"), entry_cases(legacy_llama()))
def test_header_types_and_values_are_the_manifests(root: Path, entry: dict) -> None:
    checkpoint = open_checkpoint(str(root / entry["file"]))
    assert (checkpoint.container, checkpoint.version or 0) == (entry["container"], entry["version"])
    assert dict(checkpoint.header) == entry["hparams"]
    counted: dict[str, int] = {}
    for ref in checkpoint.tensors.values():
        counted[manifest_type(ref.type.name)] = counted.get(manifest_type(ref.type.name), 0) + 1
    assert counted == entry["tensor_types"]
    if "dequant_f32_sha256_file_order" in entry:
        digest = hashlib.sha256()
        for ref in sorted(checkpoint.tensors.values(), key=lambda ref: ref.spans[0].offset):
            digest.update(values_of(checkpoint, ref, 0, ref.rows).tobytes())
        assert digest.hexdigest() == entry["dequant_f32_sha256_file_order"]


def test_two_parts_hold_the_values_of_one() -> None:
    root = FIXTURES / "legacy-llama"
    one = open_checkpoint(str(root / "ggml-20230320/q4_0.bin"))
    two = open_checkpoint(str(root / "ggmf1-20230330-2part/q4_0.bin"))
    assert len(two.files) == 2
    assert {drop.ref.name for drop in two.dropped} == {n for n, ref in one.tensors.items() if len(ref.shape) == 1}
    for name, ref in one.tensors.items():
        other = two.tensors[name]
        assert other.shape == ref.shape
        a, b = values_of(one, ref, 0, ref.rows), values_of(two, other, 0, other.rows)
        assert (a == b).all(), name


def test_a_later_part_leads_to_its_first(tmp_path: Path) -> None:
    root = FIXTURES / "legacy-llama" / "ggmf1-20230330-2part"
    checkpoint = open_checkpoint(str(root / "q4_0.bin.1"))
    assert checkpoint.path.endswith("q4_0.bin")
    assert any("part 1" in note for note in checkpoint.notes)


def test_missing_part_is_named(tmp_path: Path) -> None:
    source = FIXTURES / "legacy-llama" / "ggmf1-20230330-2part" / "q4_0.bin"
    copy = tmp_path / "m.bin"
    copy.write_bytes(source.read_bytes())
    with pytest.raises(NotFoundError, match="part 1 of 2"):
        open_checkpoint(str(copy))


def test_parts_of_different_models_are_refused(tmp_path: Path) -> None:
    source = FIXTURES / "legacy-llama" / "ggmf1-20230330-2part" / "q4_0.bin"
    (tmp_path / "m.bin").write_bytes(source.read_bytes())
    second = bytearray(Path(f"{source}.1").read_bytes())
    second[16:20] = struct.pack("<i", 256)  # n_mult
    (tmp_path / "m.bin.1").write_bytes(second)
    with pytest.raises(InconsistentError, match="n_mult"):
        open_checkpoint(str(tmp_path / "m.bin"))


def test_gpt4all_vocabulary_one_short(tmp_path: Path) -> None:
    model = Llama(**SMALL, container="ggml", version=None)
    data = model.bytes()
    prelude = model.prelude()
    last = model.vocabulary()[-1]
    path = tmp_path / "gpt4all.bin"
    path.write_bytes(prelude[: -4 - len(last)] + data[len(prelude) :])
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.vocab is not None and len(checkpoint.vocab.tokens) == model.n_vocab - 1
    assert len(checkpoint.tensors) == len(model.tensors())
    assert any("never written" in note for note in checkpoint.notes)


# Not Q4_0 of one block a row: there planes and blocks are the same bytes.
PLANES = [(k, w) for k in ("Q4_0_PLANAR", "Q4_0_V1", "Q4_1_PLANAR", "Q4_1_V1") for w in (32, 64, 512, 8192)][1:]


@pytest.mark.parametrize(("kind", "width"), PLANES)
def test_planes_and_blocks_are_told_apart(tmp_path: Path, kind: str, width: int) -> None:
    model = Llama(
        n_vocab=262,
        n_embd=min(width, 512),
        n_head=4,
        n_head_kv=4,
        n_layer=1,
        n_ff=width,
        kind=kind,
        container="ggml",
        version=None,
    )
    checkpoint = open_checkpoint(str(model.write(tmp_path / "m.bin")))
    assert {ref.type.name for ref in checkpoint.tensors.values() if len(ref.shape) > 1} == {kind}


@pytest.mark.slow
@pytest.mark.parametrize(("container", "version"), [("ggml", None), ("ggmf", 1), ("ggjt", 3)])
def test_cut_at_any_byte_is_one_of_our_errors(tmp_path: Path, container: str, version: int | None) -> None:
    data = Llama(**SMALL, container=container, version=version).bytes()
    path = tmp_path / "cut.bin"
    path.write_bytes(data)
    prelude = len(Llama(**SMALL, container=container, version=version).prelude())
    # Every byte where structures meet, every eleventh and 97th where the same record repeats itself.
    cuts = [
        *range(120),
        *range(120, prelude, 11),
        *range(prelude - 30, prelude + 90),
        *range(len(data) - 40, len(data)),
    ]
    cuts += range(prelude, len(data), 97)
    for cut in sorted(set(cuts), reverse=True):
        os.truncate(path, cut)
        with pytest.raises(CorruptError):
            understand(open_checkpoint(str(path)))


@pytest.mark.parametrize("field", range(7))
@pytest.mark.parametrize("value", [-(2**31), -1, 0, 2**31 - 1, 99999])
def test_header_fields_out_of_range(tmp_path: Path, field: int, value: int) -> None:
    data = bytearray(Llama(**SMALL).bytes())
    data[8 + 4 * field : 12 + 4 * field] = struct.pack("<i", value)
    path = tmp_path / "bad.bin"
    path.write_bytes(data)
    harmless = (
        (field == 2 and 0 < value <= 1 << 20) or (field == 5 and 0 <= value <= 1 << 20) or (field, value) == (6, 0)
    )
    if harmless:  # n_mult and n_rot are obsolete: the tensors know better; ftype 0 is this file's own
        assert understand(open_checkpoint(str(path))).sizes["n_ff"] == 64
    else:
        with pytest.raises(CorruptError) as caught:
            understand(open_checkpoint(str(path)))
        assert caught.value.exit_code == 5


def with_tensors(tmp_path: Path, change, **shape) -> str:
    """A model whose records `change` may edit: a list of (name, code, shape, data)."""
    model = Llama(**{**SMALL, **shape})
    records = []
    for name, dims in model.tensors():
        size = 4
        for dim in dims:
            size *= dim
        records.append([name, 0, dims, bytes(size)])
    change(records)
    data = bytearray(model.prelude())
    for name, code, dims, raw in records:
        data += record(name, code, tuple(dims), raw, 32, len(data))
    path = tmp_path / "edited.bin"
    path.write_bytes(data)
    return str(path)


def _edit(index, position, value):
    def change(records):
        records[index][position] = value

    return change


CASES = {
    "duplicate": (lambda r: r.append(list(r[0])), DuplicateError),
    "unknown tensor": (lambda r: r.append(["rope.freqs", 0, (8,), bytes(32)]), UnexpectedTensorError),
    "missing tensor": (lambda r: r.pop(5), MissingError),
    "missing layer": (lambda r: r.__delitem__(slice(12, None)), MissingError),
    "leading zero in block number": (_edit(4, 0, "layers.00.attention.wk.weight"), UnexpectedTensorError),
    "type 99": (_edit(3, 1, 99), OutOfRangeError),
    "type 4 in v3": (_edit(3, 1, 4), OutOfRangeError),
    "transposed": (_edit(8, 2, (32, 64)), ShapeError),
    "wrong rows": (lambda r: r.__setitem__(4, [r[4][0], 0, (15, 32), bytes(15 * 128)]), CorruptError),
    "embedding rows": (lambda r: r.__setitem__(0, [r[0][0], 0, (261, 32), bytes(261 * 128)]), ShapeError),
    "row not whole blocks": (lambda r: r.__setitem__(3, [r[3][0], 2, (32, 31), bytes(1000)]), CorruptError),
    "no dims": (lambda r: r.__setitem__(1, [r[1][0], 0, (), bytes(4)]), OutOfRangeError),
    "three dims": (lambda r: r.__setitem__(1, [r[1][0], 0, (1, 1, 32), bytes(128)]), OutOfRangeError),
    "empty name": (_edit(1, 0, ""), OutOfRangeError),
    "long name": (_edit(1, 0, "n" * 5000), OutOfRangeError),
    "other family": (
        lambda r: [x.__setitem__(0, f"transformer.h.{i}.x") for i, x in enumerate(r)],
        UnexpectedTensorError,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_malformed_records(tmp_path: Path, case: str) -> None:
    change, kind = CASES[case]
    path = with_tensors(tmp_path, change)
    with pytest.raises(kind) as caught:
        understand(open_checkpoint(path))
    assert caught.value.exit_code == 5 and caught.value.path == path


def test_edited_builder_is_readable_unedited(tmp_path: Path) -> None:
    assert understand(open_checkpoint(with_tensors(tmp_path, lambda r: None))).sizes["n_head_kv"] == 2


def test_trailing_bytes_and_padding(tmp_path: Path) -> None:
    data = Llama(**SMALL).bytes()
    path = tmp_path / "m.bin"
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptError):
        open_checkpoint(str(path))
    at = len(Llama(**SMALL).prelude()) + 20 + len("tok_embeddings.weight")
    assert at % 32 and data[at] == 0
    path.write_bytes(data[:at] + b"\1" + data[at + 1 :])
    with pytest.raises(OverlapError, match="padding"):
        open_checkpoint(str(path))


def test_scores_must_be_numbers(tmp_path: Path) -> None:
    data = bytearray(Llama(**SMALL).bytes())
    at = data.index(struct.pack("<iB", 1, 100)) + 5
    data[at : at + 4] = struct.pack("<f", float("nan"))
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    with pytest.raises(BadValueError, match="token 103") as caught:
        open_checkpoint(str(path))
    assert caught.value.offset == at


@pytest.mark.parametrize(
    ("head", "words"),
    [(b"nsgg", "session"), (b"ggjt", "byte-reversed")],
)
def test_what_is_not_a_model_is_named(tmp_path: Path, head: bytes, words: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(head + bytes(100))
    with pytest.raises(UnsupportedError, match=words) as caught:
        open_checkpoint(str(path))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("container", "version"), [("ggjt", 0), ("ggjt", 4), ("ggjt", -1), ("ggmf", 2)])
def test_versions_that_never_existed(tmp_path: Path, container: str, version: int) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(struct.pack("<Ii", MAGIC[container], version) + bytes(100))
    with pytest.raises(OutOfRangeError, match="never existed"):
        open_checkpoint(str(path))


def test_vocab_only_is_not_taken_for_a_model(tmp_path: Path) -> None:
    path = tmp_path / "vocab.bin"
    path.write_bytes(Llama(**SMALL).prelude())
    checkpoint = open_checkpoint(str(path))
    with pytest.raises(MissingError, match="vocab-only"):
        understand(checkpoint)
    assert understand(checkpoint, vocab_only=True).sizes["n_head"] == 4


@pytest.mark.slow
def test_single_byte_flips_never_escape(tmp_path: Path) -> None:
    data = Llama(**{**SMALL, "n_layer": 1}).bytes()
    path = tmp_path / "flip.bin"
    accepted = 0
    prelude = len(Llama(**SMALL).prelude())
    for at in [*range(36), *range(36, prelude, 13), *range(prelude, prelude + 60)]:
        flipped = bytearray(data)
        flipped[at] ^= 0xFF
        path.write_bytes(flipped)
        try:
            understand(open_checkpoint(str(path)))
            accepted += 1
        except GgferryError:
            pass
    assert accepted, "token texts and scores may be anything"


def test_truncation_inside_the_last_tensor_names_it(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(Llama(**SMALL).bytes()[:-1])
    with pytest.raises(TruncatedError, match=r"layers\.1\.ffn_norm\.weight"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("container", ["ggml", "ggmf"])
def test_three_parts_are_the_model_that_was_cut(container: str, tmp_path: Path) -> None:
    model = Llama(n_ff=192, kind="F16", container=container, version=1 if container == "ggmf" else None)
    whole = open_checkpoint(str(model.write(tmp_path / "whole.bin")))
    parts = open_checkpoint(str(model.write(tmp_path / "m.bin", parts=3)))
    assert len(parts.files) == 3
    for name, ref in whole.tensors.items():
        theirs = values_of(parts, parts.tensors[name], 0, ref.rows)
        assert theirs.tobytes() == values_of(whole, ref, 0, ref.rows).tobytes(), name
    (tmp_path / "m.bin.1").unlink()
    with pytest.raises(GgferryError, match=r"m\.bin\.1"):
        open_checkpoint(str(tmp_path / "m.bin"))
