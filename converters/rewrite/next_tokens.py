"""Take the blocks that predict further tokens off a GGUF file, and put a file of such blocks onto one of the decoder.

What comes out has the tensors and the keys of the file that a conversion with `--no-mtp`, or without it, writes. Such
blocks stand behind those of the decoder, and `block_count` counts both (`converters/architectures/_nextn.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

from ggferry.converters.metadata.beside import RECEIPT
from ggferry.converters.metadata.file_names import size_label
from ggferry.converters.model_graph.open_checkpoint import architecture_named
from ggferry.converters.next_token_blocks import are_alone, block_of, own_names
from ggferry.converters.rewrite.changes import Changes
from ggferry.converters.rewrite.lineage import Lineage
from ggferry.converters.rewrite.parts import Part, Stored, close, parse_parts
from ggferry.converters.rewrite.rewrite_output import NewFile, Wrote, digest_of, recovered, write
from ggferry.converters.rewrite.splitting import Cutting
from ggferry.formats.errors import InconsistentError, RefusedError, UsageError
from ggferry.formats.files.digests import Digests
from ggferry.formats.files.local_files import Named, read_start
from ggferry.formats.files.opened_files import recorded
from ggferry.formats.gguf.header_layout import packed_key
from ggferry.formats.gguf.shards import SHARD_KEYS
from ggferry.formats.gguf.values import Value, ValueType, string
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.threads import workers

COUNTED, PREDICTING = "block_count", "nextn_predict_layers"
LABEL = "general.size_label"
_MAGIC = b"GGUF"


def _number(metadata: Mapping[str, Value], key: str) -> int:
    """Return a key that is a whole number; 0 where there is none."""
    value = metadata.get(key)
    return value.data if value is not None and isinstance(value.data, int) else 0


def _architecture(part: Part) -> str:
    declared = part.metadata.get("general.architecture")
    return str(declared.data) if declared is not None else ""


def _label(metadata: Mapping[str, Value], tensors: Iterable[Stored]) -> str:
    """Return the size class that a conversion counts of these tensors."""
    sizes = {tensor.name: math.prod(tensor.shape) for tensor in tensors}
    experts = _number(metadata, f"{metadata['general.architecture'].data}.expert_count")
    routed = sum(size for name, size in sizes.items() if "_exps" in name)
    return size_label(sum(sizes.values()), experts, routed)


def stripped(changes: Changes, parts: Sequence[Part]) -> Changes:
    """Return the changes of an edit that also takes the blocks that predict further tokens off.

    Raises UsageError where the file states none, or a key of theirs is to be set, and RefusedError for shards and for
    what has no decoder.
    """
    part, name = parts[0], _architecture(parts[0])
    if len(parts) > 1:
        raise RefusedError("--strip-mtp: split in shards", path=part.file.path, hint="ggferry merge makes one file")
    extra, blocks = (_number(part.metadata, f"{name}.{key}") for key in (PREDICTING, COUNTED))
    if not extra:
        raise UsageError("--strip-mtp: the model states no blocks that predict further tokens", path=part.file.path)
    first = blocks - extra
    if first < 1 or not any(tensor.name.startswith("blk.0.") for tensor in part.tensors):
        raise RefusedError("--strip-mtp: nothing would be left but the embedding", path=part.file.path)
    gone = tuple(tensor.name for tensor in part.tensors if block_of(tensor.name) >= first)
    after = _of_decoder(part.metadata, name, blocks, first)
    left = [tensor for tensor in part.tensors if tensor.name not in gone]
    after |= _counted_again(part.metadata, part.tensors, left)
    if taken := next((key for key in after if key in changes.after), None):
        raise UsageError("--strip-mtp: key is changed twice", found=taken)
    before = {key: part.metadata.get(key) for key in after}
    return replace(changes, before={**changes.before, **before}, after={**changes.after, **after}, dropped=gone)


def _of_decoder(metadata: Mapping[str, Value], name: str, blocks: int, first: int) -> dict[str, Value | None]:
    """Return the keys that change where a model of `blocks` blocks keeps the first ones."""
    after: dict[str, Value | None] = {f"{name}.{PREDICTING}": None}
    after[f"{name}.{COUNTED}"] = replace(metadata[f"{name}.{COUNTED}"], data=first)
    for key, value in metadata.items():
        if key.startswith(f"{name}.") and value.type is ValueType.ARRAY and len(value) == blocks:
            after[key] = replace(value, data=value.data[:first])
    return after


def _counted_again(
    metadata: Mapping[str, Value], before: Sequence[Stored], after: Sequence[Stored]
) -> dict[str, Value | None]:
    """Return the size class of other tensors, where the one that the file states was counted."""
    declared = metadata.get(LABEL)
    counted = declared is not None and declared.data == _label(metadata, before)
    return {LABEL: string(_label(metadata, after))} if counted else {}


# --- grafting -------------------------------------------------------------------------------------------------------


def is_graft(paths: Sequence[str]) -> bool:
    """Return whether two names are those of GGUF files, of which the second has such blocks alone."""
    if len(paths) != 2 or not all(os.path.isfile(path) and read_start(path, 4) == _MAGIC for path in paths):
        return False
    parts = parse_parts(paths[1])
    try:
        return _is_alone(parts)
    finally:
        close(parts)


def _is_alone(parts: Sequence[Part]) -> bool:
    whole = replace(parts[0].file, tensors={n: ref for part in parts for n, ref in part.file.tensors.items()})
    table = architecture_named(_architecture(parts[0]))
    return table is not None and are_alone(whole, table)


def plan_graft(trunk: Sequence[Part], blocks: Sequence[Part], out: str) -> NewFile:
    """Return the file of a decoder and of the blocks that predict further tokens for it.

    Raises InconsistentError naming the first key or tensor by which the two are not of one model, UsageError for a
    decoder that has such blocks itself.
    """
    first, other = trunk[0], blocks[0]
    name = _architecture(first)
    if _number(first.metadata, f"{name}.{PREDICTING}"):
        raise UsageError(
            "the model has blocks that predict further tokens already",
            path=first.file.path,
            hint="ggferry edit --strip-mtp takes them off",
        )
    _check_of_one_model(first, other, name)
    table = architecture_named(name)
    apart = own_names(table) if table else frozenset()
    if apart & {tensor.name for part in blocks for tensor in part.tensors}:
        raise RefusedError(
            "the blocks that predict further tokens mix their streams by tensors of their own, which have the names of "
            "the decoder's: llama.cpp reads two files",
            path=other.file.path,
            found=min(apart),
        )
    own = tuple(tensor for part in trunk for tensor in part.tensors)
    added = tuple(tensor for part in blocks for tensor in part.tensors if block_of(tensor.name) >= 0)
    like, order = first.version, first.file.big_endian
    if order != other.file.big_endian:
        raise InconsistentError("another byte order", path=other.file.path)
    ours = {key: raw for key, raw in first.keys.items() if key not in SHARD_KEYS}
    theirs = {key: raw for key, raw in other.keys.items() if key.startswith(f"{name}.")}
    both = {**ours, **theirs}
    keys = {key: both[key] for key in _in_order([key for key in other.keys if key in both], list(ours))}
    for key, value in _counted_again(first.metadata, own, [*own, *added]).items():
        if value is not None:
            keys[key] = packed_key(key, value, like, order)
    return NewFile(out, keys, (*own, *added), first)


def _in_order(known: list[str], others: Sequence[str]) -> list[str]:
    """Return the known keys, and each other one behind the key that it stands behind."""
    for before, key in pairwise(("", *others)):
        if key not in known:
            known.insert(known.index(before) + 1 if before else 0, key)
    return known


def _check_of_one_model(first: Part, other: Part, name: str) -> None:
    """Raise InconsistentError where two files state different models, but for what the blocks added change."""
    if _architecture(other) != name:
        raise InconsistentError(
            "not of one model: general.architecture", path=other.file.path, found=_architecture(other), expected=name
        )
    table = architecture_named(name)
    of_decoder = tuple(f"{name}.{start}" for start in table.of_decoder) if table else ()
    path, extra = other.file.path, _number(other.metadata, f"{name}.{PREDICTING}")
    blocks = _number(first.metadata, f"{name}.{COUNTED}")
    expected = _of_decoder(other.metadata, name, blocks + extra, blocks)
    theirs = {key: expected.get(key, value) for key, value in other.metadata.items()}
    keys = [key for key in {**theirs, **first.metadata} if key.startswith((f"{name}.", "tokenizer.ggml.tokens"))]
    for key in keys:
        found, ours = theirs.get(key), first.metadata.get(key)
        absent = None in (found, ours) and key.startswith(("tokenizer.", *of_decoder))
        if found != ours and not absent:
            raise InconsistentError(f"not of one model: {key}", path=path, found=_shown(found), expected=_shown(ours))
    if _number(other.metadata, f"{name}.{COUNTED}") != blocks + extra:
        raise InconsistentError(f"not of one model: {name}.{COUNTED}", path=path, expected=blocks + extra)


def _shown(value: Value | None) -> object:
    return "nothing" if value is None else value.data if value.type is not ValueType.ARRAY else f"{len(value)} items"


def _compared(trunk: Sequence[Part], blocks: Sequence[Part], stage: Stage) -> tuple[str, ...]:
    """Return a note for every tensor of the decoder that both files hold, in other bytes. Raises InconsistentError."""
    ours = {tensor.name: tensor for part in trunk for tensor in part.tensors}
    both = [
        (ours[tensor.name], tensor)
        for part in blocks
        for tensor in part.tensors
        if block_of(tensor.name) < 0 and tensor.name in ours
    ]
    notes = []
    with stage(Phase.CHECKING, sum(one.nbytes + other.nbytes for one, other in both)) as progress:
        for one, other in both:
            if one.shape != other.shape:
                path = other.source.path
                raise InconsistentError(
                    f"not of one model: {one.name}", path=path, found=other.shape, expected=one.shape
                )
            digests = {digest_of(each.source, each.offset, each.nbytes, progress) for each in (one, other)}
            if len(digests) > 1:
                types = f"{one.type.name} and {other.type.name}"
                notes.append(f"{one.name} has other bytes in both files ({types}): the decoder's are kept")
    return tuple(notes)


def graft(
    trunk: str, blocks: str, out: str, *, force: bool = False, dry: bool = False, stage: Stage = silent
) -> tuple[Cutting, Wrote | None]:
    """Join two files, read the result again and publish it; `dry` plans it only. Raises one of `formats.errors`."""
    with recorded() as opened, ExitStack() as stack:
        decoder = parse_parts(Named(trunk))
        stack.callback(close, decoder)
        further = parse_parts(Named(blocks))
        stack.callback(close, further)
        file = plan_graft(decoder, further, out)
        cutting = Cutting("merge", (trunk, len(decoder)), (file,), _compared(decoder, further, stage))
        if dry:
            return cutting, None
        recovered(out)
        beside = [path for path in (trunk, blocks) if os.path.lexists(path + RECEIPT)]
        unfit = ("receipts of the two files describe them apart: the new file has none",) if beside else ()
        digests = stack.enter_context(Digests(workers()))
        wrote = write([file], Lineage(notes=unfit), digests, opened, command="merge", done={}, stage=stage, force=force)
        return cutting, wrote
