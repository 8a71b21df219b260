"""Sources behind a web server: single files and a listed folder, read by ranges."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from helpers.archive_tools import command, plan, rows, write
from helpers.builders import Llama


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, the URL it is served at, and the Range headers that were asked for."""
    root, ranges, ready = tmp_path / "served", [], threading.Event()
    root.mkdir()
    loop, port = asyncio.new_event_loop(), []

    @web.middleware
    async def note(request, handler):
        if request.method == "GET":
            ranges.append(request.headers.get("Range", ""))
        return await handler(request)

    async def answer(request):
        path = root / request.match_info["path"].strip("/")
        if path.is_file():
            return web.FileResponse(path)
        names = sorted(each.name + "/" * each.is_dir() for each in path.iterdir())
        here = f"/{request.match_info['path'].strip('/')}"
        links = "".join(f'<a href="{here}/{name}">{name}</a>' for name in names)
        return web.Response(text=links, content_type="text/html")

    async def start() -> None:
        app = web.Application(middlewares=[note])
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.append(site._server.sockets[0].getsockname()[1])
        ready.set()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ready.wait(10)
    yield root, f"http://127.0.0.1:{port[0]}", ranges
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.mark.slow
def test_a_file_behind_a_url(served: tuple[Path, str, list[str]], tmp_path: Path) -> None:
    root, url, ranges = served
    model = write(root / "old" / "a.bin", Llama(kind="F16", version=1))
    path = tmp_path / "plan.jsonl"
    refused = command("plan", f"{url}/old/a.bin", "-o", path, code=2)
    assert "--dest" in refused.stderr
    (entry,) = plan(f"{url}/old/a.bin", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    assert entry["verdict"] == "convert" and entry["source"] == f"{url}/old/a.bin"
    command("apply", path, "-j", "1")
    local = tmp_path / "local.jsonl"
    plan(model, local, "--dest", tmp_path / "same", "--verify", "fast", "-j", "1")
    command("apply", local, "-j", "1")
    assert (tmp_path / "out" / "a.gguf").read_bytes() == (tmp_path / "same" / "a.gguf").read_bytes()
    assert all(ranges) and ranges, "the model was fetched whole"
    write(model, Llama(kind="F16", version=1, seed=1))
    plan(f"{url}/old/a.bin", path, "--dest", tmp_path / "more", "-j", "1", "--force")
    write(model, Llama(kind="F16", version=1, seed=2, n_ff=192))
    assert "plan again" in command("apply", path, "-j", "1", code=7).stderr


@pytest.mark.slow
def test_a_listed_folder(served: tuple[Path, str, list[str]], tmp_path: Path) -> None:
    root, url, _ = served
    write(root / "old" / "a.bin", Llama())
    write(root / "old" / "deeper" / "b.bin", Llama(seed=1))
    (root / "old" / "cut.bin").write_bytes((root / "old" / "a.bin").read_bytes()[:-1])
    path = tmp_path / "plan.jsonl"
    plan(f"{url}/old", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    command("apply", path, "-j", "1", code=1)
    found = {source.rpartition("/")[2]: row["state"] for source, row in rows(f"{path}.ledger").items()}
    assert found == {"a.bin": "done", "b.bin": "done", "cut.bin": "quarantined"}
    assert (tmp_path / "out" / "deeper" / "b.gguf").exists()
