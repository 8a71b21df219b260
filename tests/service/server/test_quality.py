"""Outputs compared with their source on a text, over HTTP: the figures are those of the library and of the command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

import ggferry
from ggferry.service.server.store.database import Store
from helpers.server import Server, ended, made_token, serving, submitted
from helpers.third_party_fixtures import ROOT

TEXT = (ROOT / "README.md").read_text()[:6000]


def compared(client: httpx.Client, job: str, seconds: float = 120) -> dict[str, Any]:
    """The newest comparison of a job, once it has ended."""
    until = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = client.get(f"/models/{job}/quality").json()[0]
        if found["state"] != "running":
            return found
        assert time.monotonic() < until, found
        time.sleep(0.1)


@pytest.mark.slow
def test_a_ladder_is_compared_as_the_library_does(client: httpx.Client, root: Path, tmp_path: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="none", outtype="f16,q8_0,q4_0", allow_requantize=True)
    done = ended(client, job)
    asked = {"text": TEXT, "context": 64, "chunks": 3}
    began = client.post(f"/models/{job}/quality", json=asked)
    assert began.status_code == 202, began.text
    found = compared(client, job)
    assert found["state"] == "ready" and [each["outtype"] for each in found["outputs"]] == ["f16", "q8_0", "q4_0"]
    (tmp_path / "text").write_text(TEXT)
    for each, output in zip(found["outputs"], done["outputs"], strict=True):
        wanted = ggferry.compare(root / "old.bin", output, tmp_path / "text", context=64, chunks=3)
        last = wanted.chunks[-1]
        assert each["name"] == Path(output).name
        assert each["perplexity"] == pytest.approx(last.perplexity_b.value, rel=1e-5)
        assert found["perplexity"] == pytest.approx(last.perplexity_a.value, rel=1e-5)
        assert each["kl_divergence"] == pytest.approx(last.kl_divergence.value, rel=1e-3, abs=1e-7)
        assert each["same_top"] == last.same_top.value and found["count"] == wanted.count
    again = client.post(f"/models/{job}/quality", json=asked).json()
    assert again["created"] == found["created"] and len(client.get(f"/models/{job}/quality").json()) == 1
    assert client.delete(f"/jobs/{job}").status_code == 204
    assert client.get(f"/models/{job}/quality").status_code == 404


def test_what_cannot_be_compared(server: Server, client: httpx.Client, root: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="none", outtype="bf16", allow_requantize=True)
    ended(client, job)
    reader = server.client(made_token(server.data, "quality reader", "read"))
    assert reader.post(f"/models/{job}/quality", json={"text": "x"}).status_code == 403
    for body in ({"text": ""}, {"text": "x" * 200_001}, {"text": "x", "chunks": 65}, {"text": "x", "context": 63}):
        assert client.post(f"/models/{job}/quality", json=body).status_code == 422, body
    assert client.post(f"/models/{'0' * 32}/quality", json={"text": "x"}).status_code == 404
    assert client.post(f"/models/{job}/quality", json={"text": "too short"}).status_code == 202
    found = compared(reader, job)
    assert found["state"] == "failed" and "shorter than one chunk" in found["error"]["message"]
    client.post(f"/models/{job}/quality", json={"text": "too short"})
    assert compared(client, job)["created"] > found["created"], "what failed is tried again"
    assert client.delete(f"/jobs/{job}/files").status_code == 200
    assert client.post(f"/models/{job}/quality", json={"text": TEXT}).status_code == 409


@pytest.mark.slow
def test_a_server_that_ended_meanwhile(tmp_path: Path, fixtures: Path) -> None:
    """What it was at is shown as interrupted, and can be compared again."""
    (tmp_path / "root").mkdir()
    old = tmp_path / "root" / "old.bin"
    old.write_bytes((fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin").read_bytes())
    with serving(tmp_path / "data", "--root", tmp_path / "root") as first:
        client = first.client()
        (job,) = submitted(client, old, verify="none", outtype="f16", allow_requantize=True)
        ended(client, job)
        client.post(f"/models/{job}/quality", json={"text": TEXT, "context": 64, "chunks": 64})
    store = Store(str(tmp_path / "data" / "ledger"))
    store.run(sa.update(store.t.qualities).values(state="running"))  # as a server that was killed leaves it
    store.close()
    with serving(tmp_path / "data", "--root", tmp_path / "root") as second:
        client = second.client()
        (found,) = client.get(f"/models/{job}/quality").json()
        assert found["state"] == "failed" and found["error"]["code"] == "interrupted"
        client.post(f"/models/{job}/quality", json={"text": TEXT, "context": 64, "chunks": 64})
        assert compared(client, job)["state"] == "ready"
