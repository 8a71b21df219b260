"""A client that asks for a file and reads nothing does not hold its memory for good."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from ggferry.service.server.run_server import _protocol


class Sent:
    """An application that sends without end, and notes when its client is gone."""

    def __init__(self, pause: float = 0.0) -> None:
        self.gone, self.pieces, self._pause = asyncio.Event(), 0, pause

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        left = asyncio.ensure_future(receive())
        while not left.done():
            await send({"type": "http.response.body", "body": bytes(1 << 18), "more_body": True})
            self.pieces += 1
            await asyncio.sleep(self._pause)
        assert left.result()["type"] == "http.disconnect"
        self.gone.set()


async def served(app: Sent, silence: float, client: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=_protocol(silence), lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server._serve([listener]))
    try:
        await asyncio.wait_for(client(listener.getsockname()), 60)
    finally:
        server.should_exit = True
        await running


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    async def scene() -> int:
        app = Sent()

        async def client(address: Any) -> None:
            _, writer = await asyncio.open_connection(*address, limit=1024)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await app.gone.wait()
            writer.close()

        await served(app, 0.3, client)
        return app.pieces

    assert asyncio.run(scene()) < 200, "what the kernel's buffers take, and a piece"


@pytest.mark.slow
@pytest.mark.parametrize("size", [4096])
def test_a_client_that_reads_slowly_is_served(size: int) -> None:
    async def scene() -> None:
        app = Sent()

        async def client(address: Any) -> None:
            reader, writer = await asyncio.open_connection(*address, limit=size)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            until = asyncio.get_running_loop().time() + 3
            while asyncio.get_running_loop().time() < until:
                assert await reader.read(1 << 20), "cut off"
                await asyncio.sleep(0.01)
            assert not app.gone.is_set()
            writer.close()
            await app.gone.wait()

        await served(app, 1.0, client)

    asyncio.run(scene())
