"""Read UQFF 1 of mistral.rs: quantized matrices in safetensors files, with the other tensors in residual.safetensors.

Found by writing such files with mistral.rs 0.9.5 (`mistralrs` of PyPI, `Which.Plain(write_uqff=…)`): `X.weight.format`
says how `X.weight` is packed. 0 are ggml's blocks, of which `X.weight.dtype` is ggml's number of the type and
`X.weight.shape` the shape; 1 plain numbers; 4 (AFQ) MLX's affine groups, of `X.weight.bits` and `X.weight.group_size`.
Names and layouts are those of the checkpoint that it was made of.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.checkpoint_folder.folder import Weights, claim
from ggferry.formats.checkpoint_folder.shard_index import join_files
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import (
    AmbiguousError,
    MissingError,
    NotFoundError,
    ShapeError,
    UnsupportedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from ggferry.formats.files.sources import Source
from ggferry.formats.limits import MAX_DIM, MAX_DIMS
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, WeightsName, names_in, readers
from ggferry.quant.codec import types_by_id
from ggferry.quant.types import BlockError

CONTAINER, ENDING, RESIDUAL = "uqff", ".uqff", "residual.safetensors"
VERSION = "uqff.version"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,4})\.uqff", re.ASCII)
BLOCKS, PLAIN, AFQ = 0, 1, 4
_OTHERS = {2: "HQQ"}
"""Numbers of packings that are not read, by what mistral.rs calls them."""
_AGAIN = "convert the original checkpoint, or write it again with an isq type of ggml (q4k, q8_0, …)"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim files of this name that begin as safetensors files do, and folders with what is not quantized."""
    if size == 0 and os.path.isdir(path):
        return Match(CONTAINER) if claim(path, "", CONTAINER) == CONTAINER else None
    return Match(CONTAINER) if path.lower().endswith(ENDING) and head[8:9] == b"{" else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: its folder, or one of its files, which stands for all of one quantization.

    Raises NotFoundError, AmbiguousError for a folder of several quantizations, UnsupportedVersionError,
    UnsupportedError for what is no block of ggml, and every CorruptError.
    """
    weights = _located(path)
    plain = next(one for one in readers() if one.name == "safetensors")
    files: list[Source] = []
    groups: dict[str, dict[str, int]] = {}
    try:
        parts = []
        for number, name in enumerate(weights.files):
            found = plain.open(name, ())
            files += found.files
            tensors = {key: _of_file(ref, number) for key, ref in found.tensors.items()}
            if number:  # behind the residual
                _check_version(files[number], found.header["metadata"])
                tensors = _unpacked(files[number], tensors, groups)
            parts.append((name, tensors))
        joined, notes = join_files(parts, None)
        beside = sidecars(weights)
        config, caveats = configuration(weights, beside)
        if groups:  # as MLX's own configurations say it
            config = {**config, "quantization": {**next(iter(groups.values())), **groups}}
    except BaseException:
        for source in files:
            source.close()
        raise
    return Checkpoint(
        CONTAINER,
        1,
        tuple(files),
        joined,
        metadata=config,
        era="mistral.rs",
        notes=(*weights.notes, *notes, *caveats),
        sidecars=beside,
    )


def _of_file(ref: TensorRef, number: int) -> TensorRef:
    """Return a tensor of a file that was opened alone as one of the file of this number."""
    return replace(ref, spans=tuple(replace(span, file=number) for span in ref.spans))


def _located(path: str) -> Weights:
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    found = {name: match for name in sorted(names_in(folder)) if (match := _SHARD.fullmatch(name))}
    own = None if folder == path else _SHARD.fullmatch(os.path.basename(path))
    stems = sorted({match["stem"] for match in found.values()})
    if own is None and len(stems) != 1:
        hint = "name one of its files"
        if not stems:
            raise NotFoundError("no NAME-0.uqff", path=path)
        raise AmbiguousError("several quantizations of one model", path=path, found=stems[:6], hint=hint)
    stem = own["stem"] if own is not None else stems[0]
    names = {int(match["number"]): name for name, match in found.items() if match["stem"] == stem}
    missing = next((number for number in range(len(names)) if number not in names), None)
    if missing is not None:
        raise NotFoundError("a file of the model is missing", path=os.path.join(folder, f"{stem}-{missing}{ENDING}"))
    if not os.path.isfile(os.path.join(folder, RESIDUAL)):
        raise NotFoundError("what is not quantized is missing", path=os.path.join(folder, RESIDUAL))
    ordered = (RESIDUAL, *(names[number] for number in sorted(names)))
    return Weights(CONTAINER, folder, tuple(os.path.join(folder, name) for name in ordered))


def _check_version(source: Source, metadata: Mapping[str, str]) -> None:
    found = metadata.get(VERSION)
    if found is None or not found.startswith("1."):
        expected = "1, which mistral.rs writes since 0.9"
        raise UnsupportedVersionError(
            "UQFF version", path=source.path, found=found or "none stated", expected=expected, hint=_AGAIN
        )


def _unpacked(
    source: Source, tensors: Mapping[str, TensorRef], groups: dict[str, dict[str, int]]
) -> dict[str, TensorRef]:
    """Return the tensors of a file as what they are; MLX's by its names, with bits and sizes of groups in `groups`.

    Raises as `open_checkpoint`.
    """
    found: dict[str, TensorRef] = {}
    used = {name for name in tensors if name.startswith(f"{VERSION}.")}
    for name, ref in tensors.items():
        if f"{name}.format" not in tensors:
            continue
        packing = _numbers(source, tensors, f"{name}.format")[0]
        ends: tuple[str, ...] = ("format",)
        if packing == BLOCKS:
            found[name] = _blocks(source, tensors, ref)
            ends += ("dtype", "shape")
        elif packing == PLAIN:
            found[name] = ref
        elif packing == AFQ:
            base = name.removesuffix(".weight")
            groups[base] = {each: _numbers(source, tensors, f"{name}.{each}")[0] for each in ("bits", "group_size")}
            found[name] = ref
            for each in ("scales", "biases"):
                found[f"{base}.{each}"] = replace(_needed(source, tensors, f"{name}.{each}"), name=f"{base}.{each}")
            ends += ("bits", "group_size", "scales", "biases")
        else:
            words = f"{_OTHERS.get(packing, 'another packing')} ({packing})"
            raise UnsupportedError(
                f"packing of {name!r}", path=source.path, found=words, expected="0, 1, 4", hint=_AGAIN
            )
        used |= {name, *(f"{name}.{end}" for end in ends)}
    return {**found, **{name: ref for name, ref in tensors.items() if name not in used}}


def _needed(source: Source, tensors: Mapping[str, TensorRef], name: str) -> TensorRef:
    if name not in tensors:
        raise MissingError("tensor that describes another is missing", path=source.path, expected=name)
    return tensors[name]


def _blocks(source: Source, tensors: Mapping[str, TensorRef], ref: TensorRef) -> TensorRef:
    number = _numbers(source, tensors, f"{ref.name}.dtype")[0]
    shape = _numbers(source, tensors, f"{ref.name}.shape")
    kind = types_by_id().get(number)
    if kind is None:
        raise UnsupportedTypeError(f"type of {ref.name!r}", path=source.path, found=number)
    if not 0 < len(shape) <= MAX_DIMS or any(not 0 < size <= MAX_DIM for size in shape):
        raise ShapeError(f"shape of {ref.name!r}", path=source.path, found=list(shape)[:9])
    try:
        nbytes = kind.nbytes(shape)
    except BlockError as error:
        raise ShapeError(f"{ref.name!r}: {error}", path=source.path) from None
    if ref.type.name != "U8" or ref.nbytes != nbytes:
        found, expected = f"{ref.nbytes} bytes of {ref.type}", f"{nbytes} bytes of {kind} {list(shape)}"
        raise ShapeError(f"data of {ref.name!r}", path=source.path, found=found, expected=expected)
    span = ref.spans[0]
    return TensorRef(ref.name, kind, shape, (type(span)(span.file, span.offset, shape),))


def _numbers(source: Source, tensors: Mapping[str, TensorRef], name: str) -> tuple[int, ...]:
    """Return the few integers of a tensor that describes another. Raises MissingError, ShapeError."""
    ref = _needed(source, tensors, name)
    if ref.type.name not in ("U8", "U32") or len(ref.shape) > 1 or not 0 < ref.elements <= MAX_DIMS:
        raise ShapeError(f"tensor {name!r}", path=source.path, found=f"{ref.type} {list(ref.shape)}")
    data, size = source.read(ref.spans[0].offset, ref.nbytes), 1 if ref.type.name == "U8" else 4
    return tuple(int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size))


CONTAINERS = (Container(CONTAINER, "UQFF", Kind.TRAINING, versions=(1,), storage_word=False),)
WEIGHTS = (WeightsName(0, CONTAINER, "residual", "safetensors", further=ENDING),)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (ENDING,), WEIGHTS)
