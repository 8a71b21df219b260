"""Measure the service: requests a second on the list, uploads against cp, memory at many uploads. Prints JSON.

    python benchmarks/service.py [--models 10000] [--uploads 200] [--bytes 1073741824]

Server and clients share this machine's cores, so the figures are lower bounds; the load before the run is printed with
them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ggferry.service.records.plan_file import digest_of
from ggferry.service.server.store import models, tokens
from ggferry.service.server.store.database import Store

SECONDS = 8.0  # of requests to the list
CLIENTS = 4


def started(data: Path) -> tuple[subprocess.Popen[bytes], int]:
    log = data / "log"
    command = [sys.executable, "-m", "ggferry", "serve", "--data", str(data), "--port", "0", "--rate", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stderr=out)
    while not (found := re.search(r"open +http://127.0.0.1:(\d+)/", log.read_text())):
        time.sleep(0.05)
        assert process.poll() is None, log.read_text()
    return process, int(found[1])


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


def listed(port: int, token: str, path: str) -> float:
    """Requests a second of CLIENTS clients that keep their connections."""
    until, counts = time.monotonic() + SECONDS, []

    def run() -> None:
        connection, count = http.client.HTTPConnection("127.0.0.1", port), 0
        while time.monotonic() < until:
            ask(connection, token, "GET", path)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=run) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def uploaded(port: int, token: str, path: Path) -> float:
    """Bytes a second of one upload in one request, to the acknowledgment."""
    connection, size = http.client.HTTPConnection("127.0.0.1", port, timeout=600), path.stat().st_size
    made = json.loads(ask(connection, token, "POST", "/uploads", {"files": [{"name": "m.bin", "bytes": size}]}))
    began = time.monotonic()
    with path.open("rb") as file:
        ask(connection, token, "PUT", f"/uploads/{made['id']}/files/0", file, **{"Content-Length": str(size)})
    return size / (time.monotonic() - began)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--uploads", type=int, default=200)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    asked = parser.parse_args()
    found: dict[str, Any] = {"load_before": os.getloadavg()[0], "cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        store = Store(str(data / "ledger"))
        fill(store, asked.models)
        token = tokens.add(store, "bench", "admin")
        process, port = started(data)
        try:
            found["list_first_page"] = round(listed(port, token, "/models?limit=100"), 1)
            found["list_search"] = round(listed(port, token, "/models?limit=100&q=model-77&sort=bytes_in"), 1)
            big = Path(folder) / "big.bin"
            with big.open("wb") as out:
                for _ in range(asked.bytes >> 20):
                    out.write(os.urandom(1 << 20))
            found["cp_bytes_a_second"] = round(copied(big, Path(folder) / "copy.bin"))
            found["upload_bytes_a_second"] = round(uploaded(port, token, big))
            found["at_once"] = at_once(process.pid, port, token, asked.uploads, 4 << 20)
        finally:
            process.terminate()
            process.wait()
        store.close()
    found["load_after"] = os.getloadavg()[0]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
