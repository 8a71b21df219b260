"""Backup and restore of a data folder: an archive with the ledger as of one moment, and the files it speaks of.

The ledger is copied by SQLite's own online backup, so the server goes on. Files are copied after it: a file is
published before the ledger says that it is done, and not changed then, so all that the copy says is done is there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import IO, Any, TypedDict

import ggferry
from ggferry.formats.errors import CorruptError, NotFoundError, RefusedError, UsageError
from ggferry.formats.files.partial_files import write_file
from ggferry.service.records.ledger_url import redact
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.secret_box import FILE as KEY
from ggferry.service.server.store.secret_box import key_file
from ggferry.service.server.work.inspection import ACCEPTED
from ggferry.service.server.work.planning import secrets_file
from ggferry.support.heavy import sa
from ggferry.support.platform import here

FORMAT = 1
MANIFEST, LEDGER = "manifest.json", "ledger"
CHUNK = 1 << 20


class Manifest(TypedDict):
    """What an archive says of itself, as its last member: sizes in bytes and SHA-256 of the members before it."""

    ggferry_backup: int
    ggferry: str
    created: float
    data: str
    whole: bool
    files: dict[str, tuple[int, str]]


def backup(
    settings: Settings, path: str, *, files: bool = True, overwrite: bool = False, with_key: bool = False
) -> Manifest:
    """Write an archive of a data folder whose server may be running; `files`: also of uploads and outputs.

    `with_key`: also the key by which secrets in the ledger are encrypted, if it is in the data folder.

    Raises UsageError for a ledger in PostgreSQL, which has tools of its own, and RefusedError where `path` is there.
    """
    place = settings.ledger_place
    store = Store(place)
    try:
        if not store.url.startswith("sqlite"):
            hint = "pg_dump of the ledger first, then a copy of the data folder and of --dest"
            raise UsageError("the ledger is in PostgreSQL", found=redact(store.url), hint=hint)
        source = store.url.partition("///")[2]
    finally:
        store.close()
    manifest: Manifest = {
        "ggferry_backup": FORMAT,
        "ggferry": ggferry.__version__,
        "created": time.time(),
        "data": os.path.realpath(settings.data),
        "whole": files,
        "files": {},
    }
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=settings.data) as scratch:
        copy = os.path.join(scratch, LEDGER)
        copy_ledger(source, copy)

        def write(file: IO[bytes]) -> None:
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                _add(archive, manifest, LEDGER, copy)
                key = [(KEY, key_file(settings))] if with_key and os.path.isfile(key_file(settings)) else []
                for name, each in (*key, *_files(settings, files)):
                    with suppress(FileNotFoundError):  # its time was over while the archive was written
                        _add(archive, manifest, name, each)
                _add_text(archive, MANIFEST, json.dumps(manifest, indent=1) + "\n")

        write_file(path, write, overwrite=overwrite, private=True)
    return manifest


def copy_ledger(source: str, target: str) -> None:
    """Copy an SQLite ledger as of one moment, while others write to it, and examine the copy. Raises CorruptError."""
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as from_,
        closing(sqlite3.connect(target)) as to,
    ):
        os.chmod(target, 0o600)
        from_.backup(to)
        to.execute("PRAGMA journal_mode=DELETE")
        (found,) = to.execute("PRAGMA integrity_check").fetchone()
    if found != "ok":
        raise CorruptError("the ledger is damaged", path=source, found=str(found)[:200])


def restore(path: str, data: str) -> Manifest:
    """Make a data folder of an archive, under its name only once every file is there and was compared.

    Raises RefusedError where the folder holds anything, CorruptError for an archive that is not whole.
    """
    if os.path.isdir(data) and os.listdir(data):
        raise RefusedError("the data folder is not empty", path=data, hint="--data NEW, or move it away")
    parent = os.path.dirname(os.path.abspath(data))
    os.makedirs(parent, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=".restore-", dir=parent)
    try:
        manifest = _unpack(path, scratch)
        _forget_unfinished(os.path.join(scratch, LEDGER))
        for folder in ("uploads", "outputs"):
            os.makedirs(os.path.join(scratch, folder), 0o700, exist_ok=True)
        if os.path.isdir(data):
            os.rmdir(data)
        os.rename(scratch, data)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return manifest


def _files(settings: Settings, files: bool) -> Iterator[tuple[str, str]]:
    """Yield the members of an archive besides the ledger: name and path."""
    if os.path.isfile(secrets_file(settings)):
        yield os.path.basename(secrets_file(settings)), secrets_file(settings)
    data = os.path.realpath(settings.data)
    for top in (settings.uploads, settings.output_folder) if files else ():
        if os.path.commonpath((top, data)) != data:
            continue
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path) and not name.endswith(".partial"):
                    yield os.path.relpath(path, data), path


def _add(archive: tarfile.TarFile, manifest: Manifest, name: str, path: str) -> None:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        head = tarfile.TarInfo(name)
        head.size, head.mtime, head.mode = status.st_size, int(status.st_mtime), 0o600
        head.pax_headers = {"mtime": f"{status.st_mtime_ns // 10**9}.{status.st_mtime_ns % 10**9:09}"}
        passing = _Hashing(file)
        archive.addfile(head, passing)
    manifest["files"][name] = (status.st_size, passing.digest.hexdigest())


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    head = tarfile.TarInfo(name)
    head.size, head.mode = len(data), 0o600
    archive.addfile(head, io.BytesIO(data))


class _Hashing:
    """A file whose bytes are digested as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self.digest.update(data)
        return data


def _unpack(path: str, folder: str) -> Manifest:
    try:
        archive = tarfile.open(path, "r|")  # noqa: SIM115
    except FileNotFoundError:
        raise NotFoundError("no such archive", path=path) from None
    except (tarfile.TarError, EOFError) as error:
        raise _broken(path, str(error)) from None
    found: dict[str, tuple[int, str]] = {}
    manifest: Any = None
    with archive:
        try:
            for member in archive:
                if manifest is not None or not member.isreg() or not _is_ours(member.name):
                    raise _broken(path, f"a member {member.name[:200]!r}")
                file = archive.extractfile(member)
                assert file is not None
                if member.name == MANIFEST:
                    manifest = json.loads(file.read(1 << 30))
                else:
                    found[member.name] = (member.size, _write(file, os.path.join(folder, member.name), member))
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise _broken(path, str(error)) from None
    if not isinstance(manifest, dict) or manifest.get("ggferry_backup") != FORMAT:
        raise _broken(path, "no manifest of this version at its end: it is cut off, or no backup")
    declared = {name: tuple(each) for name, each in manifest["files"].items()}
    for name in sorted(declared.keys() | found.keys()):
        if declared.get(name) != found.get(name):
            raise _broken(path, f"{name} is not what the manifest says")
    if LEDGER not in found:
        raise _broken(path, "no ledger")
    made: Manifest = manifest  # type: ignore[assignment]
    return made


def _is_ours(name: str) -> bool:
    parts = name.split("/")
    top = len(parts) == 1 and name in (LEDGER, MANIFEST, KEY, "web")
    return top or (parts[0] in ("uploads", "outputs") and len(parts) > 1 and not {"", ".", ".."} & set(parts))


def _write(file: IO[bytes], path: str, member: tarfile.TarInfo) -> str:
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    digest = hashlib.sha256()
    with open(here.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | here.NOFOLLOW, 0o600), "wb") as out:
        while data := file.read(CHUNK):
            digest.update(data)
            out.write(data)
        out.flush()
        os.fsync(out.fileno())
    seconds, _, rest = str(member.pax_headers.get("mtime") or f"{member.mtime}.0").partition(".")
    time_ns = int(seconds) * 10**9 + int(rest.ljust(9, "0")[:9] or 0)
    os.utime(path, ns=(time_ns, time_ns))  # a plan knows an upload's files by their time
    return digest.hexdigest()


def _forget_unfinished(ledger: str) -> None:
    """Drop uploads that were still under way: what came of them is not in the archive. They are sent again."""
    store = Store(ledger)
    try:
        table, received = store.t.uploads, store.t.received
        under_way = sa.select(table.c.id).where(table.c.state != ACCEPTED)
        for each in (received, store.t.pieces):
            store.run(sa.delete(each).where(each.c.upload.in_(under_way)))
        store.run(sa.delete(table).where(table.c.state != ACCEPTED))
    finally:
        store.close()


def _broken(path: str, found: str) -> CorruptError:
    return CorruptError("not a whole backup", path=path, found=found, hint="take another one")
