"""Uploads in an object store that several servers share: any of them takes the next piece, and reads what was sent.

A piece is one or more objects, which the ledger lists when they are acknowledged. The server that inspects an upload
puts the files together on its disk, and what it accepts goes to the store under the files' own names. Objects that no
acknowledgment names go with their upload (docs/decisions/shared-uploads.md).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from ggferry.formats.errors import BusyError, GgferryError, NotFoundError, TransportError
from ggferry.service.server.incoming.pieces import Sink
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.storage.backends import s3
from ggferry.service.storage.stores import Found, join, listing, place, remove
from ggferry.support.heavy import sa

OBJECT = 16 << 20  # bytes of an object that a piece is kept in, at most
AT_ONCE = 4  # objects that are in memory while they are sent or read


class InStore:
    """The files of uploads below a URL."""

    shared = True

    def __init__(self, settings: Settings, store: Store) -> None:
        self._url, self._accepted = str(settings.uploads_in), settings.upload_place
        self._store = store
        self.folder = settings.quarantine
        """Where bytes wait, and uploads are put together."""
        self._turns, self._open, self._lock = threading.Semaphore(AT_ONCE), set[tuple[str, int]](), threading.Lock()

    def make(self, key: str, listed: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing: objects come with the pieces."""

    def open(self, key: str, number: int, name: str, start: int) -> Objects:
        """Open a file from where it ends. Raises BusyError where another request of this server sends it."""
        with self._lock:
            if (key, number) in self._open:
                raise BusyError("another request is sending this file", hint="wait until it has ended")
            self._open.add((key, number))
        return Objects(self, key, number, start)

    def closed(self, key: str, number: int) -> None:
        """Let another request send a file."""
        with self._lock:
            self._open.discard((key, number))

    def put(self, key: str, number: int, at: int, data: bytes) -> str:
        """Write an object with some bytes of a file, and return its name."""
        url = join(self._pieces(key), f"{number}-{at}-{os.urandom(6).hex()}")
        s3.put(data, url, None)
        return url

    def turn(self) -> threading.Semaphore:
        """Return what bounds the objects that are in memory."""
        return self._turns

    def received(self, key: str, number: int) -> list[tuple[str, int, int]]:
        """Return the objects of what was acknowledged of a file in their order: URL, first byte, bytes."""
        table = self._store.t.pieces
        condition = (table.c.upload == key) & (table.c.file == number)
        columns = (table.c.url, table.c.start, table.c.bytes)
        rows = self._store.all(sa.select(*columns).where(condition).order_by(table.c.start))
        return [(str(row["url"]), int(row["start"]), int(row["bytes"])) for row in rows]

    def content(self, url: str, start: int, size: int) -> bytes:
        """Return the bytes of an object; it is of one version for good."""
        with self._turns:
            data = place(url).whole(Found(url, size, ""))
        if len(data) != size:
            raise TransportError("an object of an upload is not what was put there", path=url, offset=start)
        return data

    def whole(self, key: str, listed: Sequence[Mapping[str, Any]]) -> str | None:
        """Put an upload together in a folder of this machine, and return it."""
        folder = os.path.join(self.folder, key)
        shutil.rmtree(folder, ignore_errors=True)  # of a server that ended
        for number, each in enumerate(listed):
            path = os.path.join(folder, each["name"])
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(path, "xb") as out:
                for url, start, size in self.received(key, number):
                    out.write(self.content(url, start, size))
        return folder

    def moved(self, key: str) -> str | None:
        """Return nothing: what is not recorded as accepted is inspected again."""
        return None

    def accept(self, key: str, listed: Sequence[Mapping[str, Any]]) -> None:
        """Write the files of an upload under their names. The same again writes the same."""
        for each in listed:
            s3.upload(os.path.join(self.folder, key, each["name"]), join(self.source(key), each["name"]), _nothing)

    def source(self, key: str) -> str:
        """Return the URL of the folder of an accepted upload."""
        return join(self._accepted, key)

    def remove_pieces(self, key: str) -> None:
        """Remove what an upload that was inspected needs no more: the pieces, and its folder on this machine."""
        self._remove(self._pieces(key))
        self._store.run(sa.delete(self._store.t.pieces).where(self._store.t.pieces.c.upload == key))
        shutil.rmtree(os.path.join(self.folder, key), ignore_errors=True)

    def forget(self, key: str) -> None:
        """Remove all of an upload."""
        self.remove_pieces(key)
        self._remove(self.source(key))

    def _remove(self, url: str) -> None:
        for found in _below(url):
            with suppress(NotFoundError):
                remove(found.path)

    def _pieces(self, key: str) -> str:
        return join(join(self._url, "pieces"), key)


def _below(url: str) -> Iterator[Found]:
    with suppress(NotFoundError):
        yield from listing(url)


def _nothing(count: int) -> None:
    pass


class Objects(Sink):
    """A file of which one request writes the next bytes; they wait on this disk until they are an object."""

    def __init__(self, owner: InStore, key: str, number: int, start: int) -> None:
        self._owner, self._key, self._number, self._at = owner, key, number, start
        self._waiting: IO[bytes] = tempfile.TemporaryFile(dir=owner.folder)  # noqa: SIM115 (until `close`)
        self._bytes = 0
        self.objects: tuple[tuple[str, int], ...] = ()
        """The objects that were written, each with its bytes."""

    def read(self, size: int, at: int) -> bytes:
        """Return bytes of what was acknowledged, of one object at most."""
        for url, start, length in self._owner.received(self._key, self._number):
            if start <= at < start + length:
                return self._owner.content(url, start, length)[at - start : at - start + size]
        return b""

    def write(self, data: memoryview, at: int) -> int:
        """Keep bytes until there are enough for an object."""
        some = data[: OBJECT - self._bytes]
        self._waiting.write(some)
        self._bytes += len(some)
        if self._bytes == OBJECT:
            self._put()
        return len(some)

    def keep(self) -> None:
        """Write what waits to the store."""
        if self._bytes:
            self._put()

    def _put(self) -> None:
        with self._owner.turn():
            self._waiting.seek(0)
            data = self._waiting.read(self._bytes)
            url = self._owner.put(self._key, self._number, self._at, data)
        self.objects = (*self.objects, (url, len(data)))
        self._at, self._bytes = self._at + len(data), 0
        self._waiting.seek(0)

    def drop(self) -> None:
        """Remove the objects; those that stay go with their upload."""
        for url, _ in self.objects:
            with suppress(GgferryError):
                remove(url)
        self.objects = ()

    def close(self) -> None:
        """Let another request send the file."""
        self._waiting.close()
        self._owner.closed(self._key, self._number)
