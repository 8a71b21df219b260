"""A connection whose request head does not end within a time is closed: uvicorn bounds its size, and not its time."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

SECONDS = 20.0


class BoundedH11Protocol(Protocol):
    """A protocol of uvicorn with a limit for the time until the head of a request is whole."""

    _waiting: asyncio.TimerHandle | None = None
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
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _is_incomplete(self) -> bool:
        """Return whether a part of a head is there, and not the rest."""
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _check(self) -> None:
        self._waiting = None
        if (not self._any or self._is_incomplete()) and not self.transport.is_closing():
            self.transport.close()
