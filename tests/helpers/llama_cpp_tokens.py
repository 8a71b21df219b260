"""The ids that llama.cpp gives a text, by its server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xllamacpp


@contextmanager
def serving(path: Path) -> Iterator[str]:
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.port = str(path), 64, 1, False, 0
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


def ids_of(address: str, text: str, special: bool) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": special}).encode()
    request = urllib.request.Request(address + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: list[int] = json.loads(answer.read())["tokens"]
    return found
