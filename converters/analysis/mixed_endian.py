"""Tensors of a big-endian GGUF file whose data stayed little-endian: found by their values, and put right.

convert_hf_to_gguf.py --bigendian swaps the numbers of numpy types. BF16 and the quantized types are bytes to it
(gguf-py, quants.py and gguf_writer.py, `add_tensor`), and stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import RefusedError, VerificationError, of_os
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import recorded, unrecorded
from ggferry.formats.files.partial_files import Partial, begin_file, name_together
from ggferry.formats.tensor_read import read_rows
from ggferry.quant.codec import LLAMA_CPP, codec
from ggferry.quant.endian import swap
from ggferry.support.heavy import np
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes

SAMPLE, CHUNK = 1 << 20, 4 << 20  # bytes that are inspected of a tensor, and that are copied at a time
LARGEST = 1e12
"""No weight is larger; a number with the exponent of chance is larger, or is none, once in a few dozen times."""


@dataclass(frozen=True, slots=True)
class MixedEndian:
    """What the values say: names of tensors that are little-endian, and of those that do not tell."""

    stray: tuple[str, ...]
    unclear: tuple[str, ...]


def mixed_endian(checkpoint: Checkpoint) -> MixedEndian:
    """Return which tensors of a big-endian file are little-endian.

    A tensor is where its bytes are impossible as they should be read and possible swapped. Where both are possible,
    the others of its type tell, if they agree; where neither is, it is damaged, and is none.
    """
    stray, unclear, sound = [], [], set()
    for ref in checkpoint.tensors.values():
        if not _swappable(ref):
            continue
        stored = _sample(checkpoint, ref)
        swapped = swap(ref.type, stored)
        if not (stored != swapped).any():
            continue  # the same either way
        proper, other = _possible(ref, swapped), _possible(ref, stored)
        if other and not proper:
            stray.append(ref.name)
        elif proper and not other:
            sound.add(ref.type.name)
        elif proper:
            unclear.append(ref.name)
    types = {checkpoint.tensors[name].type.name for name in stray} - sound
    resolved = [name for name in unclear if checkpoint.tensors[name].type.name in types]
    return MixedEndian((*stray, *resolved), tuple(name for name in unclear if name not in resolved))


def _swappable(ref: TensorRef) -> bool:
    """Return whether a tensor has numbers of several bytes, and today's converter leaves them."""
    wide = any(member.item_bytes > 1 for member in ref.type.fields) and codec(ref.type.name).runtime == LLAMA_CPP
    return wide and ref.elements > 0 and (ref.type.quantized or ref.type.name == "BF16")


def _sample(checkpoint: Checkpoint, ref: TensorRef) -> Bytes:
    """Return rows of a tensor as they are stored: its first ones, up to a MiB."""
    rows = max(1, min(ref.rows, SAMPLE // max(1, ref.row_bytes)))
    return read_rows(checkpoint, ref, 0, rows)


def _possible(ref: TensorRef, rows: Bytes) -> bool:
    """Return whether little-endian rows hold values that weights may have."""
    with np.errstate(all="ignore"):
        values = codec(ref.type.name).decode(rows, ref.columns)
        sound = np.isfinite(values).all() and (np.abs(values) < LARGEST).all()
    return bool(sound) and not _negative_scales(ref, rows)


def _negative_scales(ref: TensorRef, rows: Bytes) -> bool:
    """Return whether a scale of Q8_0 has a sign or dwarfs another: it is the largest value of a block, by 127."""
    if ref.type.name != "Q8_0":
        return False
    scales = rows.reshape(-1, ref.type.block_bytes)[:, :2].copy().view("<f2").astype(np.float32)
    return bool((scales < 0).any())


# --- repair --------------------------------------------------------------------------------------------------------


def repair(path: str, out: str, *, force: bool = False, stage: Stage = silent) -> tuple[str, ...]:
    """Write a big-endian file again with every tensor big-endian, and prove it; return the tensors that were swapped.

    The header and all other tensors keep their bytes. The file gets its name when it has been read again: its mixed
    tensors hold what the source holds in the other order, everything else is equal. A kill leaves nothing that looks
    finished.

    Raises:
        RefusedError: Nothing is to be repaired, or the values do not tell which tensors are.
        VerificationError: What was written is not what was read.
        GgferryError: Other errors of reading and writing.
    """
    with recorded() as opened, ExitStack() as stack:
        checkpoint = open_checkpoint(path)
        stack.callback(checkpoint.close)
        found = _to_repair(checkpoint)
        with interrupts_wait():
            partial = stack.enter_context(begin_file(out, overwrite=force, sources=opened.identities))
        size = checkpoint.nbytes
        try:
            with stage(Phase.WRITING, size) as progress, os.fdopen(partial.fd, "wb", closefd=False) as file:
                for piece in _pieces(checkpoint, found):
                    file.write(piece)
                    progress(len(piece))
            os.fsync(partial.fd)
        except OSError as error:
            raise of_os(error, "cannot be written", out) from None
        with stage(Phase.VERIFYING, size) as progress, unrecorded():
            for count in _proved(checkpoint, partial, found):
                progress(count)
        opened.check_unchanged()
        with interrupts_wait():
            name_together([partial], overwrite=force)
    return found


def _to_repair(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not checkpoint.big_endian or checkpoint.container != "gguf":
        raise RefusedError("nothing to repair: only big-endian GGUF files are", path=checkpoint.path)
    if len(checkpoint.files) > 1:
        raise RefusedError("the model is split into shards", path=checkpoint.path, hint="merge it first: ggferry merge")
    found = mixed_endian(checkpoint)
    if not found.stray:
        raise RefusedError("nothing to repair: no tensor is of the other byte order", path=checkpoint.path)
    types = {checkpoint.tensors[name].type.name for name in found.stray}
    if open_ones := [name for name in found.unclear if checkpoint.tensors[name].type.name in types]:
        raise RefusedError(
            "the byte order of these tensors cannot be told from their values", path=checkpoint.path, found=open_ones[0]
        )
    return found.stray


def _pieces(checkpoint: Checkpoint, swapped: tuple[str, ...]) -> Iterator[memoryview | bytes]:
    """Yield the bytes of the new file, from its first to its last."""
    source, at = checkpoint.files[0], 0
    for ref in sorted(checkpoint.tensors.values(), key=lambda each: each.spans[0].offset):
        if ref.name not in swapped:
            continue
        begin = ref.spans[0].offset
        yield from _copied(checkpoint, at, begin)
        step = max(1, CHUNK // ref.row_bytes)
        for start in range(0, ref.rows, step):
            stop = min(start + step, ref.rows)
            yield swap(ref.type, read_rows(checkpoint, ref, start, stop)).tobytes()
        at = begin + ref.nbytes
    yield from _copied(checkpoint, at, source.size)


def _copied(checkpoint: Checkpoint, begin: int, end: int) -> Iterator[bytes]:
    for at in range(begin, end, CHUNK):
        yield checkpoint.files[0].read(at, min(CHUNK, end - at))


def _proved(checkpoint: Checkpoint, partial: Partial, swapped: tuple[str, ...]) -> Iterator[int]:
    """Read the new file as any other and compare; yield the bytes that agreed. Raises VerificationError."""
    again = open_checkpoint(Named(partial.path))
    try:
        begin = int(checkpoint.header["data_offset"])
        if again.files[0].read(0, begin) != checkpoint.files[0].read(0, begin) or list(again.tensors) != list(
            checkpoint.tensors
        ):
            raise VerificationError("the header was not copied", path=partial.path)
        for name, ref in checkpoint.tensors.items():
            step = max(1, CHUNK // max(1, ref.row_bytes))
            for start in range(0, ref.rows, step):
                stop = min(start + step, ref.rows)
                old, new = read_rows(checkpoint, ref, start, stop), read_rows(again, again.tensors[name], start, stop)
                if name in swapped:  # as a reader of big-endian files sees it: the values that were stored
                    new = swap(ref.type, new)
                if not np.array_equal(old, new):
                    raise VerificationError(f"tensor {name!r} is not what it was", path=partial.path)
                yield old.nbytes
        left = mixed_endian(again)
        if left.stray:
            raise VerificationError("a tensor is still of the other byte order", path=partial.path, found=left.stray[0])
    finally:
        again.close()
