"""`convert --publish`: converted, proved and published in one run, to a Hub that the test starts."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import AccessError
from ggferry.service.cli.app import _run
from helpers.writable_hub import METADATA, REPO, SOURCE, TO, TOKEN, WritableHub, front

TYPES = ("f16", "keep")


@pytest.fixture
def line(fixtures: Path, tmp_path: Path) -> list[str]:
    stated = tmp_path / "metadata.json"
    stated.write_text(json.dumps(METADATA))
    (tmp_path / "out").mkdir()
    return [
        "convert", str(fixtures / SOURCE), "--ladder", ",".join(TYPES), "--verify", "fast", "--metadata", str(stated),
        "-o", str(tmp_path / "out" / "b-{outtype}.gguf"), "--publish", TO,
    ]  # fmt: skip


@pytest.mark.slow
def test_all_outputs_are_one_commit_and_stay(line: list[str], hub: WritableHub, tmp_path: Path, capsys: Any) -> None:
    assert _run([*line, "--json"]) == 0
    found, sent = json.loads(capsys.readouterr().out), hub.repositories[REPO].files()
    local = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {name: sent[name] for name in local} == local and len(local) == 4
    assert len(found["outputs"]) == 2 and len(found["published"]) == 1 and not found["removed"] and not found["kept"]
    assert len(hub.repositories[REPO].messages) == 2
    card = sent["README.md"].decode()
    assert front(card)["base_model"] == "a/b" and card.count("| [b-") == 2
    assert _run(line) == 0  # again: nothing is made, nothing is sent
    assert "made before, of the same source with the same options" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == local and len(hub.puts) == 2


@pytest.mark.slow
def test_one_output_after_another_is_removed(line: list[str], hub: WritableHub, tmp_path: Path, capsys: Any) -> None:
    """The disk never holds two outputs; a killed run goes on, and makes again only what the Hub does not have."""
    out = tmp_path / "out"
    assert _run([*line[:3], "keep", *line[4:]]) == 0
    held = hashlib.sha256((out / "b-keep.gguf").read_bytes()).hexdigest()
    for path in out.iterdir():
        path.unlink()
    hub.large.clear()
    hub.repositories.clear()
    hub.puts.clear()
    hub.hold = held
    given = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ggferry", *line, "--remove-published"], env=os.environ | given
    )
    try:
        assert hub.held.wait(60)
        there = sorted(path.name for path in out.iterdir())
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    first = ["b-f16.gguf.published.json", "b-f16.gguf.receipt.json"]
    assert there == [*first, "b-keep.gguf", "b-keep.gguf.receipt.json"]
    repository = hub.repositories[REPO]
    assert {"b-f16.gguf", "b-f16.gguf.receipt.json", "README.md"} < {*repository.files()}
    assert "b-keep.gguf" not in repository.files()
    stated = json.loads((out / first[0]).read_text())
    data = repository.files()["b-f16.gguf"]
    assert stated["repository"] == REPO and stated["files"][0]["sha256"] == hashlib.sha256(data).hexdigest()
    capsys.readouterr()
    hub.hold = ""
    assert _run([*line, "--remove-published", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["published_before"] == [str(out / "b-f16.gguf")] and found["kept"] == [str(out / "b-keep.gguf")]
    assert found["removed"] == [str(out / "b-keep.gguf")] and not found["outputs"]
    assert {"b-f16.gguf", "b-keep.gguf"} < {*repository.files()} and repository.files()["README.md"].count(
        b"| [b-"
    ) == 2
    assert sorted(path.suffixes[-2] for path in out.iterdir()) == [".published", ".published", ".receipt", ".receipt"]
    assert _run([*line, "--remove-published"]) == 0 and len(hub.puts) == 3  # f16, the one that was cut, keep
    files = dict(repository.commits[repository.refs["main"]])
    del files["b-f16.gguf"]
    repository.commit("main", files, "by hand")
    assert _run([*line, "--remove-published", "--json"]) == 0  # it is made again
    assert [Path(each["path"]).name for each in json.loads(capsys.readouterr().out.splitlines()[-1])["outputs"]] == [
        "b-f16.gguf"
    ]
    assert repository.files()["b-f16.gguf"] == data


def test_another_conversion_is_not_taken_for_the_same(line: list[str], hub: WritableHub, capsys: Any) -> None:
    assert _run(line) == 0
    assert _run([*line, "--alignment", "64"]) == 7
    assert "b-f16.gguf: exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_branch_and_a_pull_request(line: list[str], hub: WritableHub, capsys: Any) -> None:
    found = hub.add(REPO, {"README.md": b"Mine.\n"})
    first = found.refs["main"]
    assert _run([*line[:-1], f"{TO}@v2"]) == 0
    assert {"b-f16.gguf", "b-keep.gguf", "README.md"} < {*found.files("v2")} and found.refs["main"] == first
    capsys.readouterr()
    assert _run([*line, "--create-pr"]) == 0  # the outputs are there, and are published
    assert f"published {hub.url}/{REPO}/discussions/1" in capsys.readouterr().out
    assert found.files("refs/pr/1")["b-keep.gguf"] == found.files("v2")["b-keep.gguf"] and found.refs["main"] == first
    assert _run([*line, "--create-pr", "--remove-published"]) == 2


def test_a_dry_run_prints_plan_and_card(line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It asks no Hub, and its card has the sizes and types of the files as they will be."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert _run([*line, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "| [b-keep.gguf](b-keep.gguf) | Q4_0 | 329 kB | 4.53 | – | – | after the conversion |" in text
    assert "base_model: a/b\n" in text and "would send  b-f16.gguf  " in text and "bytes written" in text
    assert _run([*line, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["plans"]) == 2 and found["published"]["commit"] is None


def test_what_cannot_be_published_is_said_before_the_work(
    line: list[str], hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for more in (["--verify", "none"], ["--to", "safetensors"], ["--target-size", "1M"], ["-o", "ollama://x:y"]):
        assert _run([*line, *more]) == 2, more
    assert _run([*line[:-1], "me/b"]) == 2
    assert _run([*line[:-2], "--remove-published"]) == 2
    monkeypatch.setenv("HF_TOKEN", "hf_" + "W" * 34)
    assert _run(line) == AccessError.exit_code
    assert "does not accept the token" in capsys.readouterr().err and not [*(tmp_path / "out").iterdir()]
