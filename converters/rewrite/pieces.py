"""Join the pieces of a file that was cut at any byte for an upload: `model.gguf.part1of2`, `model.gguf-split-a`.

Such pieces are no shards: only the first begins like a model, and it ends inside one. That the joined file is whole is
seen in its header, before a byte of it is written.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate

from ggferry.converters.metadata.beside import RECEIPT
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.rewrite.parts import stored
from ggferry.converters.rewrite.rewrite_output import CHUNK, Wrote, digest_of, recovered
from ggferry.formats import limits
from ggferry.formats.errors import NotFoundError, TruncatedError, UsageError, VerificationError
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import recorded, unrecorded
from ggferry.formats.files.partial_files import begin_file, name_together
from ggferry.formats.files.sources import LocalFile, Source, open_source
from ggferry.formats.free_space import check_free_space
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.gguf.tensor_digests import fresh_digest
from ggferry.formats.gguf.values import align
from ggferry.formats.readers.gguf import MAGIC, parse
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass
from ggferry.support.threads import workers

_FORMS = tuple(
    re.compile(form, re.DOTALL)
    for form in (
        r"(?P<stem>.+?)[.-](?:part|split)?-?(?P<number>\d{1,4})[-_]?of[-_]?(?P<count>\d{1,4})",
        r"(?P<stem>.+?)[.-](?:part|split)[-_.]?(?P<number>\d{1,4}|[a-z]{1,3})",
        r"(?P<stem>.+)\.(?P<number>\d{3})",
    )
)


class JoinedSource:
    """Several files read as one, end to end."""

    def __init__(self, sources: Sequence[Source], path: str) -> None:
        self.path, self._sources = path, tuple(sources)
        self._ends = list(accumulate(source.size for source in sources))
        self.size = self._ends[-1]

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. Raises TruncatedError when they are not there."""
        if size < 0 or offset + size > self.size:
            raise TruncatedError(
                f"{size} bytes wanted, the pieces end at {self.size:#x}", path=self.path, offset=offset
            )
        buffer = bytearray(size)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises TruncatedError when the bytes are not there."""
        if offset < 0 or offset + len(buffer) > self.size:
            raise TruncatedError("the pieces end here", path=self.path, offset=self.size)
        done = 0
        while done < len(buffer):
            number = bisect_right(self._ends, offset + done)
            start = self._ends[number] - self._sources[number].size
            count = min(len(buffer) - done, self._ends[number] - offset - done)
            self._sources[number].read_into(offset + done - start, buffer[done : done + count])
            done += count

    def close(self) -> None:
        """Close all files."""
        for source in self._sources:
            source.close()


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one file, in order.

    Attributes:
        paths: Their names.
        stem: The name of the whole.
    """

    paths: tuple[str, ...]
    stem: str


def is_piece(path: str) -> bool:
    """Return whether a file is a byte piece and no shard: by its name, and because it is no whole GGUF file."""
    if shard_of(os.path.basename(path)) or _form_of(path) is None:
        return False
    with LocalFile(Named(path)) as source:
        if source.size < 4 or source.read(0, 4) != MAGIC:
            return True
    try:
        parse(open_source(Named(path))).close()
    except TruncatedError:
        return True
    return False


def _form_of(path: str) -> tuple[re.Pattern[str], re.Match[str]] | None:
    matches = ((form, form.fullmatch(os.path.basename(path))) for form in _FORMS)
    return next(((form, match) for form, match in matches if match), None)


def pieces_of(path: str) -> Pieces:
    """Return the piece at `path` and those that belong to it by their names.

    Raises NotFoundError naming one that is missing.
    """
    found = _form_of(path)
    if found is None:
        raise UsageError("not the name of a piece", path=path, expected="NAME.part1of2, NAME-split-a, NAME.001")
    form, match = found
    folder, count = os.path.dirname(path), match.groupdict().get("count")
    others = (form.fullmatch(name) for name in os.listdir(folder or os.curdir))
    same = [m for m in others if m and m["stem"] == match["stem"] and m.groupdict().get("count") == count]
    alike = [m for m in same if m["number"].isdigit() == match["number"].isdigit()]
    by_number = {_number(m["number"]): m.string for m in alike}
    first = 0 if 0 in by_number else 1
    last = int(count) if count else max(by_number)
    if last - first >= limits.MAX_SHARDS:
        raise UsageError("number of pieces", path=path, found=last, expected=f"at most {limits.MAX_SHARDS}")
    missing = next((number for number in range(first, last + 1) if number not in by_number), None)
    if missing is not None:
        raise NotFoundError(f"piece {missing} of {match['stem']} is missing", path=path)
    names = [by_number[number] for number in range(first, last + 1)]
    return Pieces(tuple(os.path.join(folder, name) for name in names), os.path.join(folder, match["stem"]))


def ordered(paths: Sequence[str]) -> Pieces:
    """Return pieces that were all named, in this order. Raises UsageError where their names state another one."""
    forms = [_form_of(path) for path in paths]
    numbers = [_number(found[1]["number"]) for found in forms if found]
    if len(numbers) == len(paths) and numbers != sorted(numbers):
        raise UsageError("pieces in another order than their names say", path=paths[0], found=", ".join(paths))
    stem = forms[0][1]["stem"] if forms[0] else os.path.basename(paths[0]) + ".whole"
    return Pieces(tuple(paths), os.path.join(os.path.dirname(paths[0]), stem))


def check_pieces(pieces: Pieces) -> int | None:
    """Return the number of tensors of the whole, without writing it. Raises as `check_whole`."""
    with ExitStack() as stack:
        sources = [stack.enter_context(LocalFile(Named(path))) for path in pieces.paths]
        return check_whole(JoinedSource(sources, pieces.paths[0]))


def _number(text: str) -> int:
    """Return 1 for '1', '001', 'a' and 'aa'."""
    if text.isdigit():
        return int(text)
    value = 0
    for letter in text:
        value = value * 26 + ord(letter) - ord("a")
    return value + 1


def join(pieces: Pieces, out: str | None, *, force: bool = False, stage: Stage = silent) -> Wrote:
    """Join pieces and publish the whole file, if it is one.

    Raises:
        CorruptError: Together the pieces are too short, too long or no model.
        RefusedError: The target exists, without `force`.
        GgferryError: What else keeps a file from being read or written; then nothing is left.
    """
    target = out or (pieces.stem if pieces.stem.endswith(".gguf") else f"{pieces.stem}.gguf")
    with recorded() as opened, ExitStack() as stack:
        sources = [stack.enter_context(LocalFile(Named(path))) for path in pieces.paths]
        whole = JoinedSource(sources, pieces.paths[0])
        count = check_whole(whole)
        recovered(target)
        partial = stack.enter_context(begin_file(target, overwrite=force, sources=opened.identities))
        check_free_space(target, whole.size)
        sums, buffer = fresh_digest(workers()), memoryview(bytearray(min(CHUNK, whole.size)))
        with stage(Phase.WRITING, whole.size) as progress:
            for at in range(0, whole.size, CHUNK):
                piece = buffer[: min(CHUNK, whole.size - at)]
                whole.read_into(at, piece)
                sums.update(piece)
                partial.append(piece)
                progress(len(piece))
        partial.attempt(os.fsync, partial.fd)
        with unrecorded(), LocalFile(Named(partial.path)) as written, stage(Phase.VERIFYING, whole.size) as progress:
            if digest_of(written, 0, written.size, progress) != sums.hexdigest() or written.size != whole.size:
                raise VerificationError("other bytes than those of the pieces", path=target)
            if count is None:
                again = open_checkpoint(Named(partial.path))
                count = len(again.tensors)
                again.close()
        opened.check_unchanged()
        with interrupts_wait():
            name_together([partial], overwrite=force)
    stale = os.path.lexists(target + RECEIPT)
    notes = (f"{os.path.basename(target + RECEIPT)} was there before and may describe another file",) if stale else ()
    return Wrote((target,), whole.size, count, notes, None)


def check_whole(whole: JoinedSource) -> int | None:
    """Return the number of tensors in a GGUF file that is read from pieces; None for another container.

    Raises CorruptError where it is cut, or longer than its header says.
    """
    if whole.read(0, min(4, whole.size)) != MAGIC:
        return None
    file = parse(whole)
    tensors = stored(file)
    end = max((align(tensor.offset + tensor.nbytes, file.alignment) for tensor in tensors), default=whole.size)
    if whole.size < end:  # a file may lack its last padding; of pieces, any may lack a byte, and all behind it is moved
        raise TruncatedError(
            "together the pieces are shorter than the whole",
            path=whole.path,
            found=f"{whole.size} bytes",
            expected=f"{end} bytes",
        )
    return len(tensors)
