"""`split`, `merge` and `check_shards`: GGUF files written again with the same tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ggferry.formats.files.local_files import Named
from ggferry.service.library.keywords import StrPath
from ggferry.support.progress import Stage, silent
from ggferry.support.sizes import parse_size


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files that hold what others held.

    Attributes:
        output: The file written; of several, the first.
        outputs: All files written.
        receipt_path: The receipt that goes on with the source's; None where the source had none that fits.
        notes: What a user should know.
    """

    output: str
    outputs: tuple[str, ...]
    receipt_path: str | None
    notes: tuple[str, ...]


def split(
    path: StrPath,
    out: StrPath | None = None,
    *,
    split_max_tensors: int = 0,
    split_max_size: int | str | None = None,
    tensor_first_split: bool = True,
    force: bool = False,
    progress: Stage = silent,
) -> Rewritten:
    """Cut a GGUF file into shards, as `ggferry split` does.

    Args:
        path: A GGUF file.
        out: NAME of NAME-00001-of-0000N.gguf; None: the file's own.
        split_max_tensors: Tensors a shard; 128 where no limit is given.
        split_max_size: Bytes of tensors a shard, or a text: '4G' is 4·10⁹, '4GiB' is 4·2³⁰.
        tensor_first_split: Whether the first shard holds tensors.
        force: Whether existing files are replaced.
        progress: As for `convert`.

    Returns:
        The shards; together they are the file, byte for byte.

    Raises:
        CorruptError: The file is cut, or contradicts itself.
        GgferryError: As `convert`; then nothing is left.

    Example:
        >>> ggferry.split("model.gguf", split_max_tensors=12).outputs
        ('model-00001-of-00002.gguf', 'model-00002-of-00002.gguf')
    """
    from ggferry.converters.rewrite.splitting import Cuts, carry_out

    size = parse_size(split_max_size) if isinstance(split_max_size, str) else split_max_size or 0
    cuts = Cuts(split_max_tensors, size, tensor_first_split)
    name = None if out is None else os.fspath(out)
    cutting, wrote = carry_out("split", Named(os.fspath(path)), name, cuts, force=force, stage=progress)
    return Rewritten(wrote.paths[0], wrote.paths, wrote.receipt, (*cutting.notes, *wrote.notes))


def merge(path: StrPath, out: StrPath | None = None, *, force: bool = False, progress: Stage = silent) -> Rewritten:
    """Join the shards of a GGUF model, or the pieces of a file that was cut at any byte, as `ggferry merge` does.

    Args:
        path: A shard, or a piece such as 'model.gguf.part1of2'; the others are found by its name.
        out: The file to write; None: the name without what makes it a shard or a piece.
        force: Whether an existing file is replaced.
        progress: As for `convert`.

    Returns:
        The whole file.

    Raises:
        NotFoundError: A shard or a piece is missing.
        CorruptError: What is there is cut, or does not belong together.
        GgferryError: As `convert`; then nothing is left.

    Example:
        >>> ggferry.merge("model-00001-of-00002.gguf", "whole.gguf").output
        'whole.gguf'
    """
    from ggferry.converters.rewrite.pieces import is_piece, join, pieces_of
    from ggferry.converters.rewrite.splitting import carry_out

    given, name = Named(os.fspath(path)), None if out is None else os.fspath(out)
    notes: tuple[str, ...] = ()
    if is_piece(given):
        wrote = join(pieces_of(given), name, force=force, stage=progress)
    else:
        cutting, wrote = carry_out("merge", given, name, force=force, stage=progress)
        notes = cutting.notes
    return Rewritten(wrote.paths[0], wrote.paths, wrote.receipt, (*notes, *wrote.notes))


def check_shards(shards: StrPath, whole: StrPath, *, progress: Stage = silent) -> int:
    """Prove that shards hold what a whole GGUF file holds: every key, and every tensor byte for byte.

    Args:
        shards: One of the shards.
        whole: The whole file.
        progress: As for `convert`.

    Returns:
        The number of tensors compared.

    Raises:
        VerificationError: They differ; the message names the first difference.
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.check_shards("model-00001-of-00002.gguf", "model.gguf")
        21
    """
    from ggferry.converters.rewrite.splitting import check

    return check(Named(os.fspath(shards)), Named(os.fspath(whole)), progress)[1]
