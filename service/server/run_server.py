"""Run a server until SIGTERM or Ctrl-C: the socket, the link, the orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType

import uvicorn

from ggferry.formats.errors import UnreachableError
from ggferry.service.server.application import application
from ggferry.service.server.guard.bodies import HEADER_BYTES
from ggferry.service.server.settings import Settings
from ggferry.service.server.slow_headers import BoundedH11Protocol
from ggferry.service.server.state import Service, open_service

BACKLOG = 2048
THREADS = 32  # that write, read and sync files
LEAVE = 5  # seconds that answers on their way have at the end


def serve(settings: Settings, tell: Callable[[str], None]) -> None:
    """Serve until stopped. `tell` gets the lines for the person who started it. Raises GgferryError."""
    service = open_service(settings)
    listener = _listen(settings)
    service.start()
    server = _Server(service)
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    shown = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else host
    tell(f"serving  http://{host}:{port}/ · ledger {service.store.shown} · data {settings.data}")
    tell(f"open     http://{shown}:{port}/?token={service.link()}")
    service.observer.log.write("start", host=settings.host, port=port, ledger=service.store.shown)
    try:
        server.run([listener])
    finally:
        service.drain()
        service.observer.log.write("end")


def _listen(settings: Settings) -> socket.socket:
    """Return a listening socket. Raises UnreachableError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        words = f"cannot listen there: {error.strerror}"
        raise UnreachableError(
            words, found=f"{settings.host}:{settings.port}", hint="--port 0: any that is free"
        ) from None
    listener.listen(BACKLOG)
    listener.set_inheritable(False)
    return listener


class _Server(uvicorn.Server):
    """uvicorn, which tells the service when it is to end."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            application(service), http=BoundedH11Protocol, ws="none", loop="asyncio", lifespan="off", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, backlog=BACKLOG, timeout_keep_alive=15,
            timeout_graceful_shutdown=LEAVE, h11_max_incomplete_event_size=2 * HEADER_BYTES,
        )  # fmt: skip
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, with threads enough for files that are slow to be written."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "ggferry-io"))
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end: no new jobs, and listeners are sent away."""
        self._service.draining.set()
        threading.Thread(target=self._service.hub.close, daemon=True).start()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order at SIGTERM and Ctrl-C; uvicorn's own would end the process by the signal when all is done."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else handler)
