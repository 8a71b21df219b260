"""Serve ranges of remote files to a worker that holds no credentials: it asks its parent over a private socket.

Parent: `Broker` serves the files it was given. Worker: `BrokeredFile` is a `formats.files.sources.Source`. A request is
(file number, offset, size); an answer is one byte (0: data follows, 1: an error as JSON) and the rest. Neither side
ever unpickles: the parent must not trust the worker, which parses hostile files.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from ggferry.formats import errors
from ggferry.formats.errors import GgferryError, TruncatedError
from ggferry.formats.files.sources import Source
from ggferry.formats.packed.scratch import Scratch
from ggferry.service.storage.urls import mask
from ggferry.support.platform import here

REQUEST = struct.Struct("<IQQ")
MOST = 8 << 20  # bytes of one answer
_LOOPBACK = "127.0.0.1"
OK, FAILED = b"\0", b"\1"


def _place_of(address: str) -> tuple[Any, str]:
    """Return where a broker listens, and the family of its socket: a file's, or a port's where there are none."""
    host, _, port = address.partition(":")
    return ((host, int(port)), "AF_INET") if host == _LOOPBACK else (address, "AF_UNIX")


class Broker:
    """Serves ranges of `files` to whoever knows `key`, until closed."""

    def __init__(self, files: Sequence[Source]) -> None:
        self._home = Scratch()  # the system's: a socket's path has 107 bytes at most
        self.key = os.urandom(32)
        self._files, self._closed = tuple(files), False
        if here.PASSES_FILES:
            self.address = os.path.join(self._home.path, "broker")
            self._listener = Listener(self.address, "AF_UNIX", backlog=64, authkey=self.key)
        else:
            self._listener = Listener((_LOOPBACK, 0), "AF_INET", backlog=64, authkey=self.key)
            self.address = f"{_LOOPBACK}:{self._listener.address[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        place, family = _place_of(self.address)
        with suppress(OSError), socket.socket(getattr(socket, family)) as waker:  # accept() notices no closed socket
            waker.connect(place)
        with suppress(OSError):
            self._listener.close()
        self._home.close()
        for file in self._files:
            file.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception:  # closed, or a caller without the key
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            while True:
                connection.send_bytes(self._answer(connection.recv_bytes(REQUEST.size)))

    def _answer(self, request: bytes) -> bytes:
        try:
            number, offset, size = map(int, REQUEST.unpack(request))
            if number >= len(self._files) or size > MOST:
                raise TruncatedError("request for a file that is not served")
            return OK + self._files[number].read(offset, size)
        except GgferryError as error:
            return FAILED + json.dumps({**error.as_dict(), "class": type(error).__name__}).encode()
        except Exception as error:
            message = mask(f"{type(error).__name__}: {error}")
            return FAILED + json.dumps({"class": "GgferryError", "message": message}).encode()


class BrokeredFile:
    """File `number` of the broker at `address`, called `path`; safe to use from any thread."""

    def __init__(self, address: str, key: bytes, number: int, path: str, size: int) -> None:
        self.path, self.size = path, size
        self._address, self._key, self._number = address, key, number
        self._local = threading.local()
        self._open: list[Connection] = []

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes wanted, the file ends at {self.size:#x}", path=self.path, offset=offset)
        pieces = []
        while size:
            pieces.append(self._ask(offset, min(size, MOST)))
            offset, size = offset + len(pieces[-1]), size - len(pieces[-1])
        return b"".join(pieces)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset + len(buffer) > self.size:
            raise TruncatedError(f"{len(buffer)} bytes wanted", path=self.path, offset=offset)
        for at in range(0, len(buffer), MOST):
            piece = self.read(offset + at, min(MOST, len(buffer) - at))
            buffer[at : at + len(piece)] = piece

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._local = threading.local()

    def __enter__(self) -> BrokeredFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, offset: int, size: int) -> bytes:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = Client(*_place_of(self._address), authkey=self._key)
            self._open.append(connection)
        connection.send_bytes(REQUEST.pack(self._number, offset, size))
        answer: bytes = connection.recv_bytes(MOST + 1)
        if answer[:1] == OK:
            return bytes(answer[1:])
        raise revive(json.loads(answer[1:]), self.path)


def revive(record: Mapping[str, object], path: str | None = None) -> GgferryError:
    """Return an error that crossed a process boundary as plain data."""
    kind = getattr(errors, str(record.get("class", "")), GgferryError)
    if not (isinstance(kind, type) and issubclass(kind, GgferryError)):
        kind = GgferryError
    offset = record.get("offset")
    error: GgferryError = kind(
        str(record.get("message", "")),
        path=path or str(record.get("path") or "") or None,
        offset=offset if isinstance(offset, int) else None,
        found=record.get("found"),
        expected=record.get("expected"),
        hint=None if record.get("hint") is None else str(record["hint"]),
    )
    return error
