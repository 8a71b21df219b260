"""Measure the service: requests, listeners, uploads, memory. Prints JSON.

    python benchmarks/service.py [--only list,listeners,uploads,downloads] [--models 10000] [--queued 2000]
        [--uploads 200] [--bytes 1073741824] [--listeners 1,50,500] [--stalled 200] [--seconds 8]

list: requests a second on the list of models. listeners: requests a second and their p99 with 1, 50 and 500 listeners
of Server-Sent Events and so many queued jobs, of which ten a second change their state. uploads: one upload by curl,
against the same file by curl to nginx (WebDAV), and by cp; memory at many uploads. downloads: memory at 200 downloads
whose clients read nothing, of a file on this disk, and of one in S3 (moto, in this process).

Server and clients share this machine's cores, so the figures are lower bounds; the load before and after each part is
printed with it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from ggferry.service.records.plan_file import digest_of
from ggferry.service.server.store import models, tokens
from ggferry.service.server.store.database import Store
from helpers.builders import Llama
from helpers.store_faults import s3_store

SECONDS = 8.0  # of requests
CLIENTS = 4
LISTENERS = (1, 50, 500)
STALLED = 200
CHANGES = 0.1  # seconds between changes of a job's state while there are listeners
NGINX = """
daemon off; pid {home}/pid; error_log {home}/error.log; worker_processes auto;
events {{}}
http {{
    access_log off; client_body_temp_path {home}/body; client_max_body_size 0;
    proxy_temp_path {home}/a; fastcgi_temp_path {home}/b; uwsgi_temp_path {home}/c; scgi_temp_path {home}/d;
    server {{ listen 127.0.0.1:{port}; root {home}/files; location / {{ dav_methods PUT; }} }}
}}
"""


@contextlib.contextmanager
def serving(data: Path, *options: str | Path, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server without a limit of requests, and its port."""
    log = data / "log"
    command = [sys.executable, "-m", "ggferry", "serve", "--data", data, "--port", "0", "--rate", "0", *options]
    with log.open("wb") as out:
        process = subprocess.Popen([*map(str, command)], stderr=out, env={**os.environ, **env})
    try:
        while not (found := re.search(r'"event": "open", "url": "http://127.0.0.1:(\d+)/', log.read_text())):
            time.sleep(0.05)
            assert process.poll() is None, log.read_text()
        yield process, int(found[1])
    finally:
        process.terminate()
        process.wait()


def fill(store: Store, count: int) -> None:
    """Enter so many models, as a plan of an archive would."""
    names = ("llama", "gptneox", "falcon", "mpt", "bloom")
    for first in range(0, count, 1000):
        rows = [
            (
                digest_of(number)[:32],
                {
                    "source": f"/archive/{number % 97}/model-{number}.bin",
                    "container": "ggjt",
                    "version": 3,
                    "architecture": names[number % 5],
                    "types": "Q4_0 ×225",
                    "bytes_in": number,
                    "verdict": "convert",
                },
            )
            for number in range(first, min(first + 1000, count))
        ]
        models.index(store, "0" * 16, rows)


def ask(connection: Any, token: str, method: str, path: str, body: Any = None, **more: str) -> bytes:
    headers = {"Authorization": f"Bearer {token}", **more}
    if isinstance(body, dict):
        body, headers = json.dumps(body).encode(), {**headers, "Content-Type": "application/json"}
    connection.request(method, f"/api/v1{path}", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status < 300, text
    return text


def listed(port: int, token: str, path: str) -> dict[str, float]:
    """Requests a second of CLIENTS clients that keep their connections, and how long they take, in milliseconds."""
    until, times = time.monotonic() + SECONDS, []

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while (began := time.monotonic()) < until:
            ask(connection, token, "GET", path)
            times.append(time.monotonic() - began)

    threads = [threading.Thread(target=run) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    found = {"requests_a_second": len(times) / SECONDS}
    found |= {f"p{part}_ms": 1000 * times[min(len(times) - 1, len(times) * part // 100)] for part in (50, 99)}
    return {name: round(value, 1) for name, value in found.items()}


def queue(store: Store, count: int) -> list[str]:
    """Enter so many queued jobs, and return their ids."""
    jobs = [digest_of(["queued", number])[:32] for number in range(count)]
    rows: Any = [
        {
            "id": job,
            "source": f"/archive/queued/{number}.bin",
            "state": "queued",
            "entry": {"source": f"/archive/queued/{number}.bin", "verdict": "convert", "bytes_in": 1, "bytes_out": 1},
        }
        for number, job in enumerate(jobs)
    ]
    store.register("1" * 16, rows)
    models.index(store, "1" * 16, [(row["id"], row["entry"]) for row in rows])
    return jobs


class Listeners:
    """Connections to /events, read by one thread; `events` counts what has come over all of them."""

    def __init__(self, port: int, token: str, count: int) -> None:
        self.events, self._over, self._selector = 0, threading.Event(), selectors.DefaultSelector()
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            request = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
            connection.sendall(request.encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            self._selector.register(connection, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.1):
                self.events += key.fileobj.recv(1 << 16).count(b"event: job")  # type: ignore[union-attr]

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]


def changing(store: Store, jobs: list[str], over: threading.Event) -> None:
    """Cancel and queue one job after the other."""
    number = 0
    while not over.wait(CHANGES):
        (store.requeue if number % 2 else store.cancel)(jobs[number // 2 % len(jobs)])
        number += 1


def listened(port: int, token: str, store: Store, jobs: list[str]) -> dict[str, Any]:
    """Requests for a job and for the list while so many listen."""
    found: dict[str, Any] = {"queued": len(jobs)}
    for count in LISTENERS:
        listeners, over = Listeners(port, token, count), threading.Event()
        changer = threading.Thread(target=changing, args=(store, jobs, over))
        changer.start()
        began = time.monotonic()
        paths = {"job": f"/jobs/{jobs[-1]}", "list": "/models?limit=100"}
        found[f"{count}"] = {name: listed(port, token, path) for name, path in paths.items()}
        over.set()
        changer.join()
        found[f"{count}"]["events_a_second"] = round(listeners.events / (time.monotonic() - began), 1)
        listeners.close()
    return found


def curled(path: Path, url: str, *options: str) -> float:
    """Bytes a second of curl, which sends a file in one request."""
    began = time.monotonic()
    command = ["curl", "-sS", "--fail", "-T", str(path), *options, "-o", os.devnull, url]
    subprocess.run(command, check=True)
    return path.stat().st_size / (time.monotonic() - began)


def uploaded(port: int, token: str, path: Path) -> float:
    """Bytes a second of one upload by curl, to the acknowledgment: fsync, SHA-256, the ledger."""
    connection, size = http.client.HTTPConnection("127.0.0.1", port, timeout=600), path.stat().st_size
    made = json.loads(ask(connection, token, "POST", "/uploads", {"files": [{"name": "m.bin", "bytes": size}]}))
    url = f"http://127.0.0.1:{port}/api/v1/uploads/{made['id']}/files/0"
    rate = curled(path, url, "-H", f"Authorization: Bearer {token}", "-H", "Expect:")
    ask(connection, token, "DELETE", f"/uploads/{made['id']}") if inspected(connection, token, made["id"]) else None
    return rate


def inspected(connection: Any, token: str, upload: str) -> bool:
    """Wait until an upload was inspected; random bytes are refused."""
    while json.loads(ask(connection, token, "GET", f"/uploads/{upload}"))["state"] in ("receiving", "inspecting"):
        time.sleep(0.1)
    return True


def by_nginx(home: Path, path: Path) -> dict[str, float]:
    """Bytes a second of curl to nginx's WebDAV; it does not sync, so also with a sync of the file after it."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    for name in ("files", "body"):
        (home / name).mkdir(parents=True)
    home.chmod(0o755)
    for each in (home, home / "files", home / "body", home.parent):
        each.chmod(0o777)  # its workers run as another user where this is root
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "conf").write_text(NGINX.format(home=home, port=port))
    process = subprocess.Popen([program, "-c", str(home / "conf"), "-e", str(home / "error.log")])
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}"
        found = {"nginx_bytes_a_second": curled(path, f"{url}/a", "-H", "Expect:")}
        began = time.monotonic()
        curled(path, f"{url}/b", "-H", "Expect:")
        subprocess.run(["sync", str(home / "files" / "b")], check=True)
        found["nginx_and_sync_bytes_a_second"] = path.stat().st_size / (time.monotonic() - began)
    finally:
        process.terminate()
        process.wait()
    return {name: round(rate) for name, rate in found.items()}


def copied(path: Path, to: Path) -> float:
    """Bytes a second of cp and fsync."""
    began = time.monotonic()
    subprocess.run(["cp", path, to], check=True)
    fd = os.open(to, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return path.stat().st_size / (time.monotonic() - began)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def at_once(pid: int, port: int, token: str, count: int, size: int) -> dict[str, Any]:
    """Memory of the server before and at most while so many uploads of `size` bytes run."""
    before, peaks, over = resident(pid), [0], threading.Event()
    piece = bytes(1 << 20)

    def watch() -> None:
        while not over.wait(0.02):
            peaks.append(resident(pid))

    def send(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        made = json.loads(ask(connection, token, "POST", "/uploads", {"files": [{"name": "m.bin", "bytes": size}]}))
        body = (piece for _ in range(size >> 20))
        ask(connection, token, "PUT", f"/uploads/{made['id']}/files/0", body, **{"Content-Length": str(size)})

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(send, range(count)))
    took = time.monotonic() - began
    over.set()
    watcher.join()
    return {
        "uploads": count,
        "bytes_each": size,
        "memory_before": before,
        "memory_most": max(peaks),
        "bytes_a_second": round(count * size / took),
    }


def stalled(process: Any, port: int, token: str, root: Path) -> dict[str, Any]:
    """Memory of the server before and at most while STALLED clients ask for a file and read nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    plan = json.loads(ask(connection, token, "POST", "/plans", {"source": str(root), "options": {"verify": "fast"}}))
    (job,) = json.loads(ask(connection, token, "POST", "/jobs", {"plan": plan["id"]}))["jobs"]
    while (shown := json.loads(ask(connection, token, "GET", f"/jobs/{job}")))["state"] != "done":
        assert shown["state"] in ("queued", "running", "verifying"), shown
        time.sleep(0.2)
    (file,) = json.loads(ask(connection, token, "GET", f"/jobs/{job}/files"))
    time.sleep(2)
    before, clients, most = resident(process.pid), [], 0
    for _ in range(STALLED):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        request = f"GET {file['url']} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        client.sendall(request.encode())
        clients.append(client)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        most = max(most, resident(process.pid))
        time.sleep(0.05)
    took = time.monotonic()
    ask(http.client.HTTPConnection("127.0.0.1", port, timeout=600), token, "GET", "/models?limit=10")
    took = time.monotonic() - took
    for client in clients:
        client.close()
    found = {"downloads": STALLED, "file_bytes": file["bytes"], "memory_before": before, "memory_most": most}
    return {**found, "another_request_ms": round(1000 * took, 1)}


def downloads(folder: Path) -> dict[str, Any]:
    """The same of a file on this disk and of one in S3."""
    root = folder / "root"
    root.mkdir()
    Llama(n_embd=1024, n_head=8, n_head_kv=8, n_ff=4096, n_layer=4, kind="F16", container="ggjt", version=1).write(
        root / "m.bin"
    )
    found = {}
    with s3_store() as stored:
        for name, options in (("local", ()), ("stored", ("--dest", "s3://new/bench"))):
            data = folder / name
            token = prepared(data, lambda store: None)
            with serving(data, "--root", root, "--silence", "120", *options, **stored.env) as (process, port):
                found[name] = stalled(process, port, token, root)
    return found


def prepared(data: Path, enter: Callable[[Store], object]) -> str:
    """Make a data folder, and return a token for it."""
    data.mkdir()
    store = Store(str(data / "ledger"))
    enter(store)
    token = tokens.add(store, "bench", "admin")
    store.close()
    return token


def lists(folder: Path, count: int) -> dict[str, Any]:
    """Requests a second on the list."""
    token = prepared(folder / "list", lambda store: fill(store, count))
    with serving(folder / "list") as (_, port):
        return {
            "models": count,
            "first_page": listed(port, token, "/models?limit=100"),
            "search": listed(port, token, "/models?limit=100&q=model-77&sort=bytes_in"),
        }


def listening(folder: Path, count: int) -> dict[str, Any]:
    """Requests a second with listeners."""
    data = folder / "listening"
    token = prepared(data, lambda store: queue(store, count))
    store = Store(str(data / "ledger"))
    jobs = queue(store, count)
    with serving(data, "--jobs", "0") as (_, port):
        try:
            return listened(port, token, store, jobs)
        finally:
            store.close()


def uploads(folder: Path, count: int, size: int) -> dict[str, Any]:
    """One large upload, and many at once."""
    token, big = prepared(folder / "uploads", lambda store: None), folder / "big.bin"
    with big.open("wb") as out:
        for _ in range(size >> 20):
            out.write(os.urandom(1 << 20))
    found: dict[str, Any] = {"bytes": size, "cp_and_fsync_bytes_a_second": round(copied(big, folder / "copy.bin"))}
    (folder / "copy.bin").unlink()
    found |= by_nginx(folder / "nginx", big)
    shutil.rmtree(folder / "nginx")
    with serving(folder / "uploads") as (process, port):
        found["bytes_a_second"] = round(uploaded(port, token, big))
        found["at_once"] = at_once(process.pid, port, token, count, 4 << 20)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="list,listeners,uploads,downloads")
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--queued", type=int, default=2000)
    parser.add_argument("--uploads", type=int, default=200)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--listeners", default="1,50,500")
    parser.add_argument("--stalled", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0, help="of requests, each time")
    asked = parser.parse_args()
    global SECONDS, LISTENERS, STALLED
    SECONDS, STALLED = asked.seconds, asked.stalled
    LISTENERS = tuple(map(int, asked.listeners.split(",")))
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "list": lambda folder: lists(folder, asked.models),
        "listeners": lambda folder: listening(folder, asked.queued),
        "uploads": lambda folder: uploads(folder, asked.uploads, asked.bytes),
        "downloads": downloads,
    }
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    for name in asked.only.split(","):
        before = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            found[name] = {**parts[name](Path(folder)), "load": [round(before, 1), round(os.getloadavg()[0], 1)]}
        print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
