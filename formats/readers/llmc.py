"""Read llm.c's `.bin`: GPT-2 with its sizes in a header of 256 numbers, and tensors in a fixed order, all of one type.

Versions 3 (float32) and 5 (bfloat16) are those that its programs read since 28 April 2024; the embedding is padded with
rows that are no tokens. Versions 1, 2 and 4 of the three weeks before had two orders of tensors under one number.
Tensors are named as in train_gpt2.c, with the number of the block. Source: karpathy/llm.c `train_gpt2.py`
(`write_model`, `write_tensors`), `train_gpt2.c`, `dev/eval/export_hf.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, Dropped
from ggferry.formats.checkpoint_folder.sidecars import files_of
from ggferry.formats.errors import InconsistentError, UnsupportedError, UnsupportedVersionError
from ggferry.formats.fields import Cursor, Struct
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader
from ggferry.formats.readers._flat_tensors import FlatTensor, read_flat

CONTAINER = "llm.c"
MAGIC = (20240326).to_bytes(4, "little")
OTHERS = {
    20240327: "the state of a run (inputs, logits and gradients), not a model",
    20240328: "a tokenizer, not a model",
    20240520: "tokens to train on, not a model",
    20240527: "the optimizer of a training run, not a model: the model is in the file model_….bin beside it",
    20240801: "tokens to train on, not a model",
    20240803: "a LLaMA 3 of train_llama3.py, which no program reads back",
}
"""Other files of the project, by the number that they begin with."""
TYPES = {3: "F32", 5: "BF16"}
ERA = "since 28 April 2024"
HEADER_BYTES = 1024
HEADER = Struct(
    "llm.c header",
    """
    magic    bytes[4]
    version  i32                    3 float32, 5 bfloat16
    context  i32  1..MAX_WIDTH
    vocab    i32  1..MAX_VOCAB      tokens
    layers   i32  1..MAX_LAYERS
    heads    i32  1..MAX_HEADS
    width    i32  1..MAX_WIDTH
    rows     i32  1..MAX_VOCAB      of the embedding: the tokens, padded to a multiple of 128
    """,
)
BESIDE = ("gpt2_tokenizer.bin", "tokenizer.json", "vocab.json", "merges.txt")


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim files of the project by the number at their beginning."""
    if head.startswith(MAGIC):
        return Match(CONTAINER, int.from_bytes(head[4:8], "little") if len(head) >= 8 else None)
    return Match(CONTAINER) if int.from_bytes(head[:4], "little") in OTHERS else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the model at `path`. Its tokenizer is looked for beside it: gpt2_tokenizer.bin, or GPT-2's own files.

    Raises:
        UnsupportedError: It is another file of the project.
        UnsupportedVersionError: A version whose order of tensors is not known.
        InconsistentError: Sizes of the header contradict each other.
        CorruptError: The file is broken (TruncatedError, OutOfRangeError, TrailingBytesError).
    """
    source = open_source(path)
    try:
        _check_kind(source)
        header: dict[str, Any] = HEADER.read(Cursor(source))
        version = int(header["version"])
        if version not in TYPES:
            raise UnsupportedVersionError(
                "version of llm.c whose order of tensors its number does not say",
                path=path,
                offset=4,
                found=version,
                expected="3 (float32) or 5 (bfloat16)",
                hint="write it again with train_gpt2.py of today",
            )
        if header["width"] % header["heads"] or header["rows"] < header["vocab"]:
            found = (
                f"{header['width']} columns, {header['heads']} heads; {header['vocab']} tokens, {header['rows']} rows"
            )
            raise InconsistentError("sizes of the header", path=path, offset=8, found=found)
        tensors = read_flat(source, HEADER_BYTES, _tensors(header, TYPES[version]))
    except BaseException:
        source.close()
        raise
    unused = tensors.pop("wte.padding", None)
    reason = "rows without a token, which only make the matrix higher"
    return Checkpoint(
        CONTAINER,
        version,
        (source,),
        tensors,
        {"header": _configuration(header)},
        era=ERA,
        dropped=(Dropped(unused, reason, follows=True),) if unused is not None else (),
        sidecars=files_of(path, LLMC),
    )


def _check_kind(source: Source) -> None:
    number = int.from_bytes(source.read(0, min(4, source.size)), "little")
    if number in OTHERS:
        raise UnsupportedError(f"this is {OTHERS[number]}", path=source.path, offset=0, found=number)


def _configuration(header: Mapping[str, int]) -> dict[str, Any]:
    """Return the sizes under the names that config.json has for them."""
    return {
        "vocab_size": header["vocab"],
        "n_positions": header["context"],
        "n_embd": header["width"],
        "n_layer": header["layers"],
        "n_head": header["heads"],
    }


def _tensors(header: Mapping[str, int], kind: str) -> Iterator[FlatTensor]:
    width = header["width"]
    yield FlatTensor("wte", (header["vocab"], width), kind)
    if header["rows"] > header["vocab"]:
        yield FlatTensor("wte.padding", (header["rows"] - header["vocab"], width), kind)
    yield FlatTensor("wpe", (header["context"], width), kind)
    of_blocks: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("ln1w", (width,)),
        ("ln1b", (width,)),
        ("qkvw", (3 * width, width)),
        ("qkvb", (3 * width,)),
        ("attprojw", (width, width)),
        ("attprojb", (width,)),
        ("ln2w", (width,)),
        ("ln2b", (width,)),
        ("fcw", (4 * width, width)),
        ("fcb", (4 * width,)),
        ("fcprojw", (width, 4 * width)),
        ("fcprojb", (width,)),
    )
    for name, shape in of_blocks:
        for block in range(header["layers"]):
            yield FlatTensor(f"{name}.{block}", shape, kind)
    yield FlatTensor("lnfw", (width,), kind)
    yield FlatTensor("lnfb", (width,), kind)


LLMC = Container(CONTAINER, "llm.c", Kind.TRAINING, versions=tuple(TYPES), beside=BESIDE)
SPEC = Reader("llmc", probe, open_checkpoint, (LLMC,), (".bin",))
