"""Read llama2.c's `.bin`: LLaMA for teaching, with all sizes in a header and its tensors in an order that never varied.

Version 0 has no magic: seven sizes, then float32 tensors, a tensor of all blocks before the next. It is claimed where
these sizes lead to the size of the file, byte by byte. Versions 1 and 2 have a header of 256 bytes, vectors first;
2 has int8 with a float32 scale for a group of neighbors in a row. Tensors are named as in run.c, with the number of the
block. Source: karpathy/llama2.c `export.py` (`legacy_export`, `version1_export`, `version2_export`), `run.c`, `runq.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import files_of
from ggferry.formats.errors import InconsistentError
from ggferry.formats.fields import Cursor, Struct
from ggferry.formats.files.sources import open_source
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader
from ggferry.formats.readers._flat_tensors import FlatTensor, read_flat

CONTAINER = "llama2.c"
MAGIC = b"24ka"  # 0x616b3432
ERA = "since July 2023"
SIZES = """
dim        i32  1..MAX_WIDTH
hidden     i32  1..MAX_WIDTH   rows of w1 and w3
layers     i32  1..MAX_LAYERS
heads      i32  1..MAX_HEADS
kv_heads   i32  1..MAX_HEADS
"""
VERSION0 = Struct(
    "llama2.c header",
    SIZES
    + """
    vocab    i32                   negative where the output is a tensor of its own
    context  i32  1..MAX_WIDTH
    """,
)
VERSIONED = Struct(
    "llama2.c header",
    """
    magic    bytes[4]              'ak42' as a little-endian u32
    version  i32  1..2
    """
    + SIZES
    + """
    vocab    i32  1..MAX_VOCAB
    context  i32  1..MAX_WIDTH
    shared   u8   0..1             whether the embedding is the output, too
    """,
)
BESIDE = ("tokenizer.model", "tokenizer.bin")
GROUP = Struct("llama2.c group", "size  i32  1..MAX_WIDTH   columns that share a scale")
DATA = 256  # where the tensors of versions 1 and 2 begin


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim files with the magic, and those whose size is what seven sizes at their beginning lead to."""
    if head.startswith(MAGIC):
        return Match(CONTAINER, int.from_bytes(head[4:8], "little") if len(head) >= 8 else None)
    if len(head) < VERSION0.size:
        return None
    header = dict(zip((member.name for member in VERSION0.members), struct.unpack_from("<7i", head), strict=True))
    if (
        any(
            member.low is not None and not member.low <= header[member.name] <= (member.high or 0)
            for member in VERSION0.members
        )
        or not 0 < abs(header["vocab"]) <= limits.MAX_VOCAB
        or _problem(header)
    ):
        return None
    total = VERSION0.size + sum(tensor.nbytes for tensor in _version0(header))
    return Match(CONTAINER, 0) if size == total else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the model at `path`.

    Its tokenizer is looked for beside it: tokenizer.bin, or the tokenizer.model that this was made of.

    Raises:
        InconsistentError: Sizes of the header contradict each other.
        CorruptError: The file is broken (TruncatedError, OutOfRangeError, TrailingBytesError).
    """
    source = open_source(path)
    try:
        cursor = Cursor(source)
        versioned = source.read(0, min(4, source.size)) == MAGIC
        header: dict[str, Any] = (VERSIONED if versioned else VERSION0).read(cursor)
        version = header.pop("version", 0)
        header.pop("magic", None)
        group = GROUP.read(cursor)["size"] if version == 2 else 0
        problem = _problem(header, int(group))
        if problem:
            raise InconsistentError(problem, path=path, offset=8 if versioned else 0)
        if versioned:
            tensors = read_flat(source, DATA, _quantized(header, int(group)) if version == 2 else _version1(header))
        else:
            tensors = read_flat(source, VERSION0.size, _version0(header))
    except BaseException:
        source.close()
        raise
    quantization = {"quantization_config": {"quant_method": CONTAINER, "group_size": group}} if group else {}
    return Checkpoint(
        CONTAINER,
        int(version),
        (source,),
        tensors,
        {"header": _configuration(header), **({"group_size": group} if group else {})},
        quantization,
        era=ERA,
        sidecars=files_of(path, LLAMA2C),
    )


def _problem(header: Mapping[str, int], group: int = 0) -> str:
    """Return how sizes contradict each other, in words; "" where they do not."""
    dim, heads, kv_heads = header["dim"], header["heads"], header["kv_heads"]
    if dim % heads or dim // heads % 2:
        return f"{dim} columns in {heads} heads of an even width"
    if heads % kv_heads:
        return f"{heads} heads share {kv_heads} heads of keys"
    if group and (dim % group or header["hidden"] % group):
        return f"rows of {dim} and {header['hidden']} columns in groups of {group}"
    return ""


def _configuration(header: Mapping[str, int]) -> dict[str, Any]:
    """Return the sizes under the names that config.json has for them, and what run.c computes with."""
    return {
        "vocab_size": abs(header["vocab"]),
        "hidden_size": header["dim"],
        "intermediate_size": header["hidden"],
        "num_hidden_layers": header["layers"],
        "num_attention_heads": header["heads"],
        "num_key_value_heads": header["kv_heads"],
        "max_position_embeddings": header["context"],
        "tie_word_embeddings": _shared(header),
    }


def _shared(header: Mapping[str, int]) -> bool:
    return bool(header.get("shared", header["vocab"] > 0))


def _matrices(header: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the shapes of the matrices of a block, in their order."""
    dim, hidden = header["dim"], header["hidden"]
    keys = dim // header["heads"] * header["kv_heads"]
    attention = {"wq": (dim, dim), "wk": (keys, dim), "wv": (keys, dim), "wo": (dim, dim)}
    return {**attention, "w1": (hidden, dim), "w2": (dim, hidden), "w3": (hidden, dim)}


def _blocks(header: Mapping[str, int], name: str, shape: tuple[int, ...]) -> Iterator[FlatTensor]:
    return (FlatTensor(f"{name}.{block}", shape) for block in range(header["layers"]))


def _embedding(header: Mapping[str, int], name: str = "token_embedding_table") -> FlatTensor:
    return FlatTensor(name, (abs(header["vocab"]), header["dim"]))


def _version0(header: Mapping[str, int]) -> Iterator[FlatTensor]:
    vector, matrices = (header["dim"],), _matrices(header)
    yield _embedding(header)
    yield from _blocks(header, "rms_att_weight", vector)
    for name in ("wq", "wk", "wv", "wo"):
        yield from _blocks(header, name, matrices[name])
    yield from _blocks(header, "rms_ffn_weight", vector)
    for name in ("w1", "w2", "w3"):
        yield from _blocks(header, name, matrices[name])
    yield FlatTensor("rms_final_weight", vector)
    for name in ("freq_cis_real", "freq_cis_imag"):
        yield FlatTensor(name, (header["context"], header["dim"] // header["heads"] // 2))
    if not _shared(header):
        yield _embedding(header, "wcls")


def _vectors(header: Mapping[str, int]) -> Iterator[FlatTensor]:
    vector = (header["dim"],)
    yield from _blocks(header, "rms_att_weight", vector)
    yield from _blocks(header, "rms_ffn_weight", vector)
    yield FlatTensor("rms_final_weight", vector)


def _weights(header: Mapping[str, int]) -> Iterator[FlatTensor]:
    yield _embedding(header)
    for name, shape in _matrices(header).items():
        yield from _blocks(header, name, shape)
    if not _shared(header):
        yield _embedding(header, "wcls")


def _version1(header: Mapping[str, int]) -> Iterator[FlatTensor]:
    yield from _vectors(header)
    yield from _weights(header)


def _quantized(header: Mapping[str, int], group: int) -> Iterator[FlatTensor]:
    yield from _vectors(header)
    for tensor in _weights(header):
        rows, columns = tensor.shape
        yield FlatTensor(tensor.name, tensor.shape, "I8")
        yield FlatTensor(f"{tensor.name}.scales", (rows, columns // group))


LLAMA2C = Container(CONTAINER, "llama2.c", Kind.TRAINING, (MAGIC,), (0, 1, 2), beside=BESIDE)
SPEC = Reader("llama2c", probe, open_checkpoint, (LLAMA2C,), (".bin",))
