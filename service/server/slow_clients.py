"""A connection whose request head does not end within a time is closed, and one whose client stops reading an answer.

uvicorn bounds the size of a head, and not its time; it waits for a client that reads nothing for good.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

SECONDS = 20.0


class BoundedH11Protocol(Protocol):
    """A protocol of uvicorn with a limit for the time until the head of a request is whole."""

    silence = 30.0
    """Seconds after which a client that takes nothing of an answer is cut off."""
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _any = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._waiting = self.loop.call_later(SECONDS, self._check)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the head of a request that they begin has its time."""
        super().data_received(data)
        self._any = True
        if self._waiting is None and self._is_incomplete():
            self._waiting = self.loop.call_later(SECONDS, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        for timer in (self._waiting, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for a client that reads more slowly than it is sent to."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Go on, since the client has read."""
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def _watch_reading(self) -> None:
        unsent = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < unsent:
                self._watch_reading()
            else:  # close() would wait for the client to read the rest
                self.transport.abort()

        self._stalled = self.loop.call_later(self.silence, check)

    def _is_incomplete(self) -> bool:
        """Return whether a part of a head is there, and not the rest."""
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _check(self) -> None:
        self._waiting = None
        if (not self._any or self._is_incomplete()) and not self.transport.is_closing():
            self.transport.close()
