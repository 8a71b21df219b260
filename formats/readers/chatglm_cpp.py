"""Read chatglm.cpp's files: a number of the model, its sizes, its tokenizer's own file, then tensors until the end.

Tensors have the publisher's names; their data are aligned to 16 bytes. Blocks are those of ggml since GGJT v3. Source:
li-plus/chatglm.cpp `chatglm_cpp/convert.py`, `chatglm.h` (ConfigRecordV1GQA, ConfigRecordV2), `chatglm.cpp`
(`Pipeline`, `read_state_dict`); version 1 is that of July 2023 to April 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.errors import (
    DuplicateError,
    EncodingError,
    OutOfRangeError,
    TruncatedError,
    UnsupportedError,
    UnsupportedVersionError,
)
from ggferry.formats.fields import Cursor, Struct
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.limits import MAX_DIM, MAX_DIMS, MAX_GGML_TENSORS, MAX_NAME, MAX_STRING
from ggferry.formats.reader import HEAD_BYTES, Container, HeaderLayout, Kind, Match, Reader
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockError

CONTAINER = "chatglm.cpp"
MAGIC = b"ggml"
ALIGNMENT = 16
CHATGLM_2, CHATGLM_3, CHATGLM_4 = 2, 3, 4
OTHERS = {
    1: "ChatGLM-6B, whose rotation in two dimensions no GGUF architecture has",
    1024: "Baichuan 7B, of which no file of chatglm.cpp could be had to hold a reading against",
    1025: "Baichuan 13B, of which no file of chatglm.cpp could be had to hold a reading against",
    1280: "InternLM, of which no file of chatglm.cpp could be had to hold a reading against",
}
"""Other models, by their number, and why they are not read."""
VOCABULARY = "chatglm-ggml.bin"
"""What convert.py calls such a file; the name under which it is a sidecar of its own, for its vocabulary."""
TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"}
EPS, BASE = 1e-5, 10000.0
"""What version 1 does not state, as chatglm.cpp takes it."""
FIRST = Struct(
    "chatglm.cpp header, version 1",
    """
    dtype    i32  0..8
    vocab    i32  1..MAX_VOCAB
    width    i32  1..MAX_WIDTH
    heads    i32  1..MAX_HEADS
    layers   i32  1..MAX_LAYERS
    inner    i32  1..MAX_WIDTH      of the feed-forward networks
    context  i32  1..MAX_WIDTH
    bos      i32
    eos      i32
    pad      i32
    sep      i32
    groups   i32  1..MAX_HEADS      heads of keys and values
    """,
)
SECOND = Struct(
    "chatglm.cpp header, version 2",
    """
    dtype    i32  0..8
    vocab    i32  1..MAX_VOCAB
    width    i32  1..MAX_WIDTH
    heads    i32  1..MAX_HEADS
    groups   i32  1..MAX_HEADS      heads of keys and values
    layers   i32  1..MAX_LAYERS
    inner    i32  1..MAX_WIDTH      of the feed-forward networks
    eps      f32  0..1
    virtual  i32  0..MAX_WIDTH      tokens of a tuned prefix
    base     f32  1..               of the rotation
    context  i32  1..MAX_WIDTH
    eos      i32
    pad      i32
    """,
)
VERSIONS = {1: FIRST, 2: SECOND}


class Prelude(NamedTuple):
    """What stands before the tensors.

    Attributes:
        model: Number of the model.
        version: Of the header.
        header: Its fields.
        vocabulary: First byte of the tokenizer's file, and its bytes.
    """

    model: int
    version: int
    header: Mapping[str, Any]
    vocabulary: tuple[int, int]


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim files that begin with the letters in this order; those of ggml's own have them reversed."""
    return Match(CONTAINER) if head.startswith(MAGIC) else None


def read_prelude(source: Source) -> Prelude:
    """Read what stands before the tensors.

    Raises:
        UnsupportedError: Another model, or one with a tuned prefix.
        UnsupportedVersionError: Another version of the header.
        CorruptError: The file is broken.
    """
    from ggferry.formats.ggml.other_programs import is_minigpt4  # few files need it

    if is_minigpt4(source.read(0, min(HEAD_BYTES, source.size))):
        raise UnsupportedError(
            "this is a file of minigpt4.cpp: a vision encoder and a Q-Former, for which llama.cpp has no projector",
            path=source.path,
            offset=16,
            found="Qformer",
            hint="its language model, Vicuna, is another file, which is read; the rest is in MiniGPT-4's checkpoints",
        )
    cursor = Cursor(source, len(MAGIC))
    model, version = cursor.integer("i32", "model"), cursor.integer("i32", "version")
    if model in OTHERS and version in VERSIONS:
        raise UnsupportedError(f"this is {OTHERS[model]}", path=source.path, offset=4, found=model)
    if version not in VERSIONS or model not in (CHATGLM_2, CHATGLM_3, CHATGLM_4):
        raise UnsupportedVersionError(
            "model and version of a file of chatglm.cpp, or one of ChatGLM-6B of June 2023, which had neither",
            path=source.path,
            offset=4,
            found=f"{model}, {version}",
            expected="models 2 to 4, version 1 or 2",
        )
    header: dict[str, Any] = VERSIONS[version].read(cursor)
    if header.get("virtual"):
        raise UnsupportedError("a tuned prefix of keys and values, which GGUF lacks", path=source.path, offset=4)
    if header["width"] % header["heads"] or header["heads"] % header["groups"]:
        found = f"{header['width']} columns, {header['heads']} heads, {header['groups']} of keys and values"
        raise OutOfRangeError("sizes of the header", path=source.path, offset=12, found=found)
    size = cursor.integer("i32", "bytes of the vocabulary", 1, MAX_STRING)
    at = cursor.offset
    cursor.skip(size, "the vocabulary")
    return Prelude(model, version, header, (at, size))


def vocabulary(path: str) -> tuple[Prelude, bytes]:
    """Return what stands before the tensors of a file, and the tokenizer's own file within it."""
    source = open_source(path)
    try:
        prelude = read_prelude(source)
        return prelude, source.read(*prelude.vocabulary)
    finally:
        source.close()


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the model at `path`; it is a sidecar of its own, which holds the vocabulary.

    Raises what `read_prelude` does, and CorruptError for broken tensors.
    """
    source = open_source(path)
    try:
        prelude = read_prelude(source)
        tensors = _tensors(source, sum(prelude.vocabulary))
    except BaseException:
        source.close()
        raise
    first = prelude.version == 1
    note = f"version 1 states neither epsilon nor rotary base: {EPS:g} and {BASE:g}, as chatglm.cpp takes them"
    return Checkpoint(
        CONTAINER,
        prelude.version,
        (source,),
        tensors,
        {"header": _configuration(prelude.header)},
        era="July 2023 to April 2024" if first else "since April 2024",
        alignment=ALIGNMENT,
        notes=(note,) if first else (),
        sidecars={VOCABULARY: path},
    )


def _configuration(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes under the names that the publisher's config.json has for them."""
    return {
        "padded_vocab_size": header["vocab"],
        "hidden_size": header["width"],
        "num_attention_heads": header["heads"],
        "multi_query_attention": True,
        "multi_query_group_num": header["groups"],
        "kv_channels": header["width"] // header["heads"],
        "num_layers": header["layers"],
        "ffn_hidden_size": header["inner"],
        "layernorm_epsilon": header.get("eps", EPS),
        "rope_ratio": header.get("base", BASE) / BASE,
        "seq_length": header["context"],
        "add_qkv_bias": True,
    }


def _tensors(source: Source, at: int) -> dict[str, TensorRef]:
    found: dict[str, TensorRef] = {}
    while at < source.size:
        if len(found) >= MAX_GGML_TENSORS:
            raise OutOfRangeError("tensors", path=source.path, offset=at, expected=f"at most {MAX_GGML_TENSORS}")
        ref = _tensor(Cursor(source, at))
        if ref.name in found:
            raise DuplicateError("duplicate tensor name", path=source.path, offset=at, found=ref.name)
        found[ref.name] = ref
        at = ref.spans[0].offset + ref.nbytes
    return found


def _tensor(cursor: Cursor) -> TensorRef:
    size = cursor.integer("i32", "bytes of a tensor's name", 1, MAX_NAME)
    start = cursor.offset
    try:
        name = cursor.take(size, "a tensor's name").decode()
    except UnicodeDecodeError:
        raise cursor.error(EncodingError, "name of a tensor", at=start) from None
    rank = cursor.integer("i32", f"axes of {name!r}", 1, MAX_DIMS)
    shape = tuple(cursor.integer("i32", f"size of {name!r}", 1, MAX_DIM) for _ in range(rank))
    number = cursor.integer("i32", f"type of {name!r}", 0, max(TYPES))
    if number not in TYPES:
        raise cursor.error(OutOfRangeError, f"type of {name!r}", found=number, expected=", ".join(map(str, TYPES)))
    offset = cursor.offset + -cursor.offset % ALIGNMENT
    kind = block_type(TYPES[number])
    try:
        ref = TensorRef(name, kind, shape, (Span(0, offset, shape),))
        end = offset + ref.nbytes
    except BlockError as error:
        raise cursor.error(OutOfRangeError, f"{name!r}: {error}") from None
    if end > cursor.offset + cursor.remaining:
        raise cursor.error(TruncatedError, f"the file ends inside tensor {name!r}", expected=f"{end} bytes")
    return ref


CHATGLM = Container(CONTAINER, "chatglm.cpp", Kind.TRAINING, (MAGIC,), tuple(VERSIONS))
SPEC = Reader("chatglm_cpp", probe, open_checkpoint, (CHATGLM,), (".bin",))
