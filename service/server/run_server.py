"""Run a server until SIGTERM or Ctrl-C: the socket, the link, the orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import uvicorn

from ggferry.formats.errors import UnreachableError, of_os
from ggferry.service.server.application import application
from ggferry.service.server.guard.bodies import HEADER_BYTES
from ggferry.service.server.guard.observe import Log
from ggferry.service.server.settings import Settings
from ggferry.service.server.slow_clients import BoundedH11Protocol
from ggferry.service.server.state import Service, open_service
from ggferry.support.platform import here
from ggferry.support.printable import printable

BACKLOG = 2048
THREADS = 32  # that write, read and sync files
LINK = "sign-in-link"
"""File of the data folder with the link that signs in, where there is no terminal to tell it to."""
LEAVE = 5  # seconds that answers on their way have at the end


def serve(settings: Settings, tell: Callable[[str], None]) -> None:
    """Serve until stopped. `tell` gets the lines for the person who started it. Raises GgferryError."""
    service = open_service(settings)
    listener = _listen(settings)
    try:
        service.outputs.check()
    except UnreachableError as error:  # jobs wait for it as they wait for any place in trouble
        service.observer.log.write("store", "warning", message=str(error))
    service.start()
    try:
        _run(service, listener, tell)
    finally:
        service.drain()
        service.observer.log.write("end")


def _run(service: Service, listener: socket.socket, tell: Callable[[str], None]) -> None:
    server, settings = _Server(service), service.settings
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    shown = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else host
    _log_libraries(service.observer.log)
    log = service.observer.log
    log.write("start", host=settings.host, port=port, ledger=service.store.shown, data=settings.data)
    if sys.stderr.isatty():
        tell(f"serving  http://{host}:{port}/ · ledger {service.store.shown} · data {settings.data}")
    _tell_link(service, f"http://{shown}:{port}{settings.root_path}/", tell)
    server.run([listener])


class _JsonLines(logging.Handler):
    """Puts what libraries log among the server's own lines."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        text = printable(record.getMessage(), 500)
        self._log.write("library", record.levelname.lower(), name=record.name, message=text)


def _log_libraries(log: Log) -> None:
    """Take uvicorn's messages and Python's warnings into the log: as they are, they are not JSON."""
    logging.getLogger().addHandler(_JsonLines(log))
    ray = logging.getLogger("ray")  # it has a handler of its own from its import on
    ray.handlers.clear()
    ray.propagate = True
    logging.captureWarnings(True)


def _tell_link(service: Service, page: str, tell: Callable[[str], None]) -> None:
    """Tell a person at a terminal the link that signs them in.

    Anywhere else there is a log of nothing but JSON, which is kept and sent on: there the link is in a file that its
    owner alone can read.
    """
    link = f"{page}?token={service.link()}"
    if sys.stderr.isatty():
        tell(f"open     {link}")
        return
    path = os.path.join(service.settings.data, LINK)
    own = f"{path}.{os.urandom(4).hex()}"  # another server may start in the same folder
    try:
        with open(here.open_file(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | here.NOFOLLOW, 0o600), "w") as file:
            file.write(f"{link}\n")
        os.replace(own, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(own)
        raise of_os(error, path=path) from None
    service.observer.log.write("open", url=page, link_in=path)


def _listen(settings: Settings) -> socket.socket:
    """Return a listening socket. Raises UnreachableError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is stated, and without it a kept connection waits 40 ms an answer
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


def _protocol(silence: float) -> type[BoundedH11Protocol]:
    return type("Protocol", (BoundedH11Protocol,), {"silence": silence})


class _Server(uvicorn.Server):
    """uvicorn, which tells the service when it is to end."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            application(service),
            http=_protocol(service.settings.upload_silence),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `application` believes those that are named
            backlog=BACKLOG,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=LEAVE,
            h11_max_incomplete_event_size=2 * HEADER_BYTES,
        )
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
        loop = asyncio.get_running_loop()

        def end(number: int, frame: FrameType | None) -> None:
            # takes no lock: a second signal may come while the first is in here, on this same thread
            loop.call_soon_threadsafe(self.handle_exit, number, None)

        def take() -> dict[int, Any]:
            return {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}

        def retake() -> None:
            with suppress(RuntimeError):  # the loop is closed: the server is ending
                loop.call_soon_threadsafe(take)

        before = take()
        # Ray's own handler of SIGTERM prints a stack, and ends the process after 3 s
        self._service.runner.connected = retake
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else handler)
