"""Put a finished local file into a store.

Nothing gets the final name before it was read back and found equal, nothing that has the final name is ever
overwritten, and the receipt comes last. Why this is no upload straight to the final name: docs/decisions/uploads.md.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.metadata.beside import FOLDER_RECEIPT, MAX_RECEIPT, MMPROJ, RECEIPT, files_written
from ggferry.converters.proof.receipt import to_json
from ggferry.formats.errors import (
    ChangedError,
    GgferryError,
    NotFoundError,
    RefusedError,
    TransientError,
    TransportError,
    UnreachableError,
    UnsupportedError,
)
from ggferry.formats.files.digests import digest
from ggferry.formats.files.local_files import read_bytes
from ggferry.service.storage.backends import other_filesystems as anyfs
from ggferry.service.storage.backends import s3
from ggferry.service.storage.ranged_file import RangedFile
from ggferry.service.storage.stores import READ_ONLY, exists, place, read_whole, remove, stat

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import FileRecord

TRIES = 3  # uploads of one file; a damaged one is nobody's fault
STALE = 7 * 24 * 3600  # seconds; no upload takes as long, and S3's own rule for these is often the same
LONGEST = 160  # bytes that names beside an output take more: shards, receipts, partials
HINT = "move it away, or choose another output in the plan"
_PARTIAL = re.compile(
    r"\.(?P<mark>[0-9a-z]*)-(?P<fence>\d+)-(?P<time>[0-9a-f]+)-(?P<copy>[0-9a-f]{12})(?P<rest>\.partial)", re.ASCII
)
_PARTIAL_NAME = re.compile(rf"(?P<output>.+){_PARTIAL.pattern}", re.ASCII | re.DOTALL)
Progress = Callable[[int], None]
_reported: set[str] = set()


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes.

    Attributes:
        mark: The job and its ledger, in letters and digits.
        fence: A number that is larger for every later holder of that job; what an earlier holder left may be removed.
    """

    mark: str = ""
    fence: int = 0


NOBODY = Writer()


def check_destination(url: str) -> None:
    """Raise UnsupportedError for a place that ggferry does not write to."""
    scheme = url.partition("://")[0]
    if scheme in READ_ONLY:
        raise UnsupportedError(
            "not a destination",
            path=url,
            found=f"{scheme}://",
            hint="write to a local folder or an object store, then upload that (hf upload)",
        )


def prepare(url: str, size: int, writer: Writer, tell: Callable[[str], None] = lambda words: None) -> None:
    """Make sure that an output can be written, before anything is done for it.

    What earlier holders of the job left is removed, the place must be writable, and no other file may have the name of
    the output or of its receipt. A file of the right size may be the job's own, which `publish` finds out.

    Args:
        url: The output.
        size: Its bytes; −1: unknown.
        writer: Who writes.
        tell: Called with notes.

    Raises:
        RefusedError: Another file has the name.
        AccessError: The place may not be written.
    """
    if _is_s3(url):
        s3.check_name(url, LONGEST)
    sweep(url, writer)
    receipt = _check_receipt(url + RECEIPT)
    if exists(url) and receipt is None and 0 <= size != stat(url).bytes:
        raise RefusedError("exists already", path=url, found=f"{stat(url).bytes} bytes", hint=HINT)
    _check_creates(url, writer, tell)


def prepare_folder(url: str, writer: Writer, tell: Callable[[str], None] = lambda words: None) -> None:
    """Make sure that a folder can be written, as `prepare` does for a file; what has a name in it is seen later."""
    receipt = f"{url}/{FOLDER_RECEIPT}"
    if _is_s3(url):
        s3.check_name(receipt, LONGEST)
    sweep_folder(url, writer)
    _check_receipt(receipt)
    _check_creates(receipt, writer, tell)


def _check_creates(url: str, writer: Writer, tell: Callable[[str], None]) -> None:
    if not _creates(url, writer) and _home(url) not in _reported:
        _reported.add(_home(url))
        tell(f"{_home(url)} does not know conditional writes: it cannot detect two writers of one name at one time")


def publish_all(
    receipts: Mapping[str, Mapping[str, Any]],
    folder: str,
    scratch: str,
    writer: Writer,
    confirm: Callable[[], None],
    progress: Progress,
) -> bool:
    """Upload the files of finished outputs from `folder`, then their receipts.

    Args:
        receipts: The receipt of each output, by its URL; all of them go to one place.
        folder: Where the files are.
        scratch: For blocks of what is read back.
        writer: Who writes.
        confirm: Raises when the job is no longer ours.
        progress: Called with the bytes just sent.

    Returns whether all files were there already. A run that is killed in between leaves complete files without a
    receipt: the next run finds them equal and adds it.
    """
    there = next(iter(receipts)).rpartition("/")[0]
    files = files_written(*receipts.values())[::-1]  # the first, by whose name the output goes, comes last
    were_there = publish_files(there, files, folder, scratch, writer, confirm, progress)
    seconds = dict.fromkeys(record["name"] for each in receipts.values() for record in each.get(MMPROJ, ())[:1])
    for name in (f"{each}{RECEIPT}" for each in seconds):
        put_receipt(read_bytes(os.path.join(folder, name), MAX_RECEIPT), f"{there}/{name}")
    for url, receipt in reversed([*receipts.items()]):
        confirm()
        version = stat(url).version
        put_receipt(to_json(receipt).encode("utf-8", "backslashreplace"), url + RECEIPT)
        if stat(url).version != version:
            remove(url + RECEIPT)
            raise RefusedError("replaced by another writer while it was published", path=url, hint=HINT)
    return were_there


def publish_files(
    there: str,
    files: Sequence[FileRecord],
    folder: str,
    scratch: str,
    writer: Writer,
    confirm: Callable[[], None],
    progress: Progress,
) -> bool:
    """Upload files from `folder` to the place `there`, in their order. Arguments and result are those of `publish_all`.

    Of an output that is a folder, `there` is the output, and the last file its receipt: a store has no folders, and
    until the receipt is there, what is below is no output. A run that is killed in between leaves complete files, which
    the next one finds equal.
    """
    sent = False
    for record in files:
        confirm()
        local, name = os.path.join(folder, record["name"]), f"{there}/{record['name']}"
        sent |= publish(local, name, record["blake3"], scratch, progress, writer)
    return not sent


def publish(local: str, url: str, blake3: str, scratch: str, progress: Progress, writer: Writer = NOBODY) -> bool:
    """Upload `local`, whose digest is `blake3`, as `url`; return False when it was there already.

    It is uploaded to a name of its own, read back, then copied by the store. Raises RefusedError where another file has
    that name, TransportError when what is read back differs again and again.
    """
    for attempt in range(TRIES):
        if _taken(url, blake3, scratch):
            if attempt:  # perhaps by the attempt before, which could not remove its partial
                sweep(url, replace(writer, fence=writer.fence + 1))
            return False
        try:
            if _is_s3(url):
                _through_s3(local, url, blake3, scratch, progress, writer)
            else:
                _through_any(local, url, blake3, scratch, progress, writer)
            return True
        except s3.ExistsError:
            continue  # somebody was quicker: perhaps with the same bytes
        except TransientError:
            if attempt == TRIES - 1:
                raise
        progress = _silent  # what is sent again is not counted again
    if not _taken(url, blake3, scratch):
        raise UnreachableError("the store refuses the name as taken, and has no file of that name", path=url)
    return False


def _silent(count: int) -> None:
    pass


def _taken(url: str, blake3: str, scratch: str) -> bool:
    """Return whether the file is there already. Raises RefusedError where another one is."""
    if not exists(url):
        return False
    if object_digest(url, scratch) != blake3:
        raise RefusedError("exists already, and is not what this job would write", path=url, hint=HINT)
    return True


def _through_s3(local: str, url: str, blake3: str, scratch: str, progress: Progress, writer: Writer) -> None:
    """Upload to S3 and let the store copy.

    The upload into which the store will copy is begun first: the partial's name holds its mark, so that whoever finds
    the one can end the other.
    """
    size = os.path.getsize(local)
    copying = s3.begin_copy(url)
    try:
        with _partial(url, writer, mark_of_upload(copying.upload)) as partial:
            version = s3.upload(local, partial, progress)
            _read_back(partial, version, blake3, scratch)
            create = _creates(url, writer)
            if not create and exists(url):
                raise s3.ExistsError(url)
            copied = s3.copy(version, partial, copying, size, create)
            _confirm(url, size, version, copied, blake3, scratch)
    except NotFoundError as error:  # swept by somebody, or its answer lost: the next attempt sees what is there
        s3.abort(copying)
        raise TransportError(f"the upload is gone: {error.message}", path=url) from None
    except BaseException:
        s3.abort(copying)
        raise


def _through_any(local: str, url: str, blake3: str, scratch: str, progress: Progress, writer: Writer) -> None:
    size = os.path.getsize(local)
    with _partial(url, writer, os.urandom(6).hex()) as partial:
        version = anyfs.upload(local, partial, progress)
        _read_back(partial, version, blake3, scratch)
        if exists(url):
            raise s3.ExistsError(url)
        _confirm(url, size, "", anyfs.copy(partial, url), blake3, scratch)


def _read_back(partial: str, version: str, blake3: str, scratch: str) -> None:
    try:
        found = object_digest(partial, scratch, version)
    except ChangedError as error:  # the name is nobody else's: the next attempt takes another one
        raise TransportError("replaced by another writer", path=partial, found=error.found) from None
    if found != blake3:
        raise TransportError("the upload read back differs", path=partial, found=found, expected=blake3)


def _confirm(url: str, size: int, version: str, copied: str, blake3: str, scratch: str) -> None:
    """Raise RefusedError unless the object under the final name is what was copied.

    Its ETag proves that, if it is that of the parts read back; else every byte is read.
    """
    now = stat(url)
    if now.bytes == size and now.version == copied and version and now.version == version:
        return
    if now.bytes != size or object_digest(url, scratch) != blake3:
        raise RefusedError("another writer has put another file under this name", path=url, hint=HINT)


def object_digest(url: str, scratch: str, version: str = "") -> str:
    """Return the BLAKE3 of a remote file, read by ranges; nothing is kept. `version`: the version it must be."""
    found = stat(url)
    if version and found.version != version:
        raise TransportError("replaced by another writer", path=url, found=found.version, expected=version)
    with RangedFile(found, scratch, room=0) as source:
        return digest(source)


# --- receipts ------------------------------------------------------------------------------------------------------


def put_receipt(data: bytes, url: str) -> None:
    """Write a receipt for an output that is proved to be ours; an older receipt there is out of date.

    Raises RefusedError where the name is another file's.
    """
    for _ in range(TRIES):
        old = _check_receipt(url)
        if old == data:
            return
        try:
            if not _is_s3(url):
                anyfs.put(data, url)
            else:
                s3.put(data, url, None if old is None else stat(url).version)
            return
        except s3.ExistsError:
            continue
    raise UnreachableError("could not reserve the output name", path=url)


def _check_receipt(url: str) -> bytes | None:
    """Return what exists under a receipt's name, None for nothing. Raises RefusedError for anything but a receipt."""
    try:
        found = read_whole(url, MAX_RECEIPT)
    except NotFoundError:
        return None
    with suppress(ValueError, RecursionError):
        if isinstance(record := json.loads(found), dict) and "ggferry" in record:
            return found
    raise RefusedError("a file with a receipt's name is not a receipt", path=url, hint=HINT)


# --- partials ------------------------------------------------------------------------------------------------------


def partial_name(url: str, writer: Writer, copy: str) -> str:
    """Return a name that no other attempt uses.

    It states whose it is, since when, and `copy` (12 digits: the mark of the copy's upload).
    """
    return f"{url}.{writer.mark}-{writer.fence}-{int(time.time()):x}-{copy}.partial"


@contextmanager
def _partial(url: str, writer: Writer, copy: str) -> Iterator[str]:
    """Yield a name next to `url`, under which nothing is left, however this ends."""
    partial = partial_name(url, writer, copy)
    try:
        yield partial
    except BaseException:
        with suppress(GgferryError):  # the first error is the one to report; the next run sweeps
            remove(partial)
        raise
    remove(partial)


def sweep(url: str, writer: Writer) -> list[str]:
    """Remove partials of exactly this output that nobody can be working on, and return their names.

    These are partials of earlier holders of this job, and partials older than any upload takes. Their multipart uploads
    are ended, and after an earlier holder also a copy that was begun and has no partial: should another writer of this
    name have begun it just now, that one begins again.
    """
    found = list(s3.named_like(url) if _is_s3(url) else ((each, None) for each in anyfs.beside(url)))
    swept, copies, live = [], set(), set()
    for name, upload in found:
        match = _PARTIAL.fullmatch(name[len(url) :])
        if match is None:
            continue
        if not _is_stale(match, writer):
            live.add(match["copy"])
            continue
        with suppress(NotFoundError):
            remove(name) if upload is None else s3.abort(s3.Copying(name, upload))
        copies.add(match["copy"])
        swept.append(name)
    for name, upload in found:
        if name != url or upload is None:
            continue
        mark = mark_of_upload(upload)
        if mark in copies or (writer.fence > 1 and mark not in live):
            s3.abort(s3.Copying(url, upload))
    return swept


def sweep_folder(url: str, writer: Writer) -> list[str]:
    """Remove the partials of all files of a folder, as `sweep` does those of one, and return their names."""
    inside = f"{url}/"
    found = list(s3.named_like(inside) if _is_s3(url) else ((each, None) for each in anyfs.beside(inside)))
    partials = [(name, parse_partial(name), upload) for name, upload in found]
    files = {name if partial is None else partial.output for name, partial, upload in partials if partial or upload}
    return [gone for each in sorted(files) for gone in sweep(each, writer)]


@dataclass(frozen=True, slots=True)
class Partial:
    """What the name of a partial says: the output, who writes it, since when (s since 1970), the mark of its copy."""

    output: str
    writer: Writer
    begun: int
    copy: str


def parse_partial(url: str) -> Partial | None:
    """Return what a partial's name says; None for the name of anything else."""
    match = _PARTIAL_NAME.fullmatch(url)
    if match is None:
        return None
    writer = Writer(match["mark"], int(match["fence"]))
    return Partial(match["output"], writer, int(match["time"], 16), match["copy"])


def _is_stale(match: re.Match[str], writer: Writer) -> bool:
    earlier = bool(writer.mark) and match["mark"] == writer.mark and int(match["fence"]) < writer.fence
    return earlier or time.time() - int(match["time"], 16) > STALE


def mark_of_upload(upload: str) -> str:
    """Return how the name of a partial says into which multipart upload it is to be copied."""
    from blake3 import blake3

    return str(blake3(upload.encode()).hexdigest())[:12]


def _creates(url: str, writer: Writer) -> bool:
    """Return whether the place supports creating only what does not exist yet."""
    return _is_s3(url) and s3.conditional(partial_name(url, writer, os.urandom(6).hex()))


def _is_s3(url: str) -> bool:
    return place(url) is s3


def _home(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
