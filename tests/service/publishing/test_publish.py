"""`publish`, by huggingface_hub's own client, to a Hub that the test starts."""

from __future__ import annotations

import hashlib
import html
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from markdown_it import MarkdownIt

import ggferry
from ggferry.formats.errors import (
    AccessError,
    ChangedError,
    ChecksumError,
    CorruptError,
    InconsistentError,
    NotFoundError,
    RefusedError,
    TransportError,
    UsageError,
)
from ggferry.service.cli.app import _run
from ggferry.support.progress import Phase, Progress
from helpers.writable_hub import METADATA, REPO, SOURCE, TO, TOKEN, Entry, WritableHub, front


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with two outputs of one model."""
    folder = tmp_path_factory.mktemp("made")
    source = request.getfixturevalue("fixtures") / SOURCE
    stated = folder / "metadata.json"
    stated.write_text(json.dumps(METADATA))
    for kind in ("keep", "f16"):
        name = folder / f"b-{kind}.gguf"
        ggferry.convert(source, name, outtype=kind, metadata=str(stated), verify="fast")
    stated.unlink()
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def test_a_new_repository_holds_files_receipts_and_a_card(out: Path, hub: WritableHub) -> None:
    done = ggferry.publish(out, TO)
    found = hub.repositories[REPO]
    assert not found.private and found.refs["main"] == done.commit and len(found.messages) == 2
    local = {path.name: path.read_bytes() for path in out.iterdir()}
    sent = found.files()
    assert {name: data for name, data in sent.items() if name in local} == local and len(local) == 4
    assert {file.name: file.sha256 for file in done.files} == {
        name: hashlib.sha256(data).hexdigest() for name, data in local.items()
    }
    card = sent["README.md"].decode()
    assert card == done.card
    assert front(card) == {
        "base_model": "a/b",
        "base_model_relation": "quantized",
        "quantized_by": "me",
        "library_name": "gguf",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "language": ["no", "en"],
        "tags": ["gguf", "1e3", "ggferry"],
    }
    read = huggingface_hub.ModelCard(card).data
    assert (read.base_model, read.license, read.language) == ("a/b", "apache-2.0", ["no", "en"])
    assert '"no"' in card and '"1e3"' in card  # YAML 1.1 reads false, YAML 1.2 a number
    assert "| [b-keep.gguf](b-keep.gguf) | Q4_0 | 329 kB | 4.53 |" in card
    assert "[fast](b-keep.gguf.receipt.json): 16 repacked, 5 identical; 40 of 40 texts tokenize alike |" in card
    assert "ggferry verify hf://a/b hf://me/b-GGUF/b-f16.gguf" in card


@pytest.mark.slow
def test_what_a_person_wrote_stays(out: Path, hub: WritableHub) -> None:
    """Also a row of a file that is still there; the table is replaced, and a second time nothing is committed."""
    ggferry.publish(out / "b-f16.gguf", TO)
    found = hub.repositories[REPO]
    card = found.files()["README.md"].decode()
    card = card.replace("license: apache-2.0\n", "# chosen with care\nlicense: mit\n").replace("quantized_by: me\n", "")
    card = card.replace("# b-GGUF\n", "# My model\n\nWords.\n") + "\nMore words.\n"
    found.commit("main", {**found.commits[found.refs["main"]], "README.md": Entry(card.encode())}, "by hand")
    ggferry.publish(out / "b-keep.gguf", TO, message="Add  Q4_0")
    updated = found.files()["README.md"].decode()
    assert found.messages[-1] == "Add Q4_0"
    assert front(updated)["license"] == "mit" and front(updated)["quantized_by"] == "me"
    assert "# chosen with care\n" in updated and "# My model\n\nWords.\n" in updated and "\nMore words.\n" in updated
    assert updated.count("| [b-") == 2 and updated.count("begin of files") == 1
    again = ggferry.publish(out / "b-keep.gguf", TO)
    assert found.files()["README.md"].decode() == updated and again.commit == found.refs["main"]
    assert len(found.messages) == 4 and len(hub.puts) == 2


def test_a_pull_request_and_a_branch(out: Path, hub: WritableHub) -> None:
    with pytest.raises(NotFoundError, match="no such repository"):
        ggferry.publish(out / "b-f16.gguf", TO, create_pr=True)
    found = hub.add(REPO, {"README.md": b"Mine.\n"})
    first = found.refs["main"]
    done = ggferry.publish(out / "b-f16.gguf", TO, create_pr=True)
    assert done.pull_request == f"{hub.url}/{REPO}/discussions/1" and found.refs["main"] == first
    assert {"b-f16.gguf", "b-f16.gguf.receipt.json"} < {*found.files("refs/pr/1")}
    card = found.files("refs/pr/1")["README.md"].decode()
    assert front(card)["library_name"] == "gguf" and "\nMine.\n" in card
    ggferry.publish(out / "b-keep.gguf", TO, revision="v2")
    assert "b-keep.gguf" in found.files("v2") and found.refs["main"] == first


@pytest.mark.slow
def test_an_interrupted_upload_is_resumed(out: Path, hub: WritableHub, tmp_path: Path, capsys: Any) -> None:
    """Killed in the second file, it sends the first no second time; nothing was committed before."""
    first, second = (hashlib.sha256((out / name).read_bytes()).hexdigest() for name in ("b-f16.gguf", "b-keep.gguf"))
    hub.hold = second
    given = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    line = [sys.executable, "-P", "-m", "ggferry", "publish", str(out), "--to", TO, "--private"]
    process = subprocess.Popen(line, env=os.environ | given, stderr=subprocess.PIPE)
    try:
        assert hub.held.wait(60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = hub.repositories[REPO]
    assert {*found.files()} == {".gitattributes"} and found.private
    hub.hold = ""
    assert _run(line[4:]) == 0
    assert f"published {hub.url}/{REPO}/commit/{found.refs['main']}" in capsys.readouterr().out
    assert hub.puts == [first, second, second] and len(found.messages) == 2


@pytest.mark.parametrize("refused", [0, 1])
def test_progress_is_reported_within_a_file(refused: int, out: Path, hub: WritableHub) -> None:
    """And a file that is sent again is not counted again."""
    reports: list[int] = []
    totals: dict[Phase, int] = {}

    @contextmanager
    def stage(phase: Phase, total: int) -> Iterator[Progress]:
        totals[phase] = total
        yield reports.append if phase is Phase.UPLOADING else lambda done: None

    hub.refuse = refused
    ggferry.publish(out / "b-f16.gguf", TO, progress=stage)
    assert len(hub.puts) == 1 + refused
    largest = (out / "b-f16.gguf").stat().st_size
    assert sum(reports) == totals[Phase.UPLOADING] and max(reports) < largest / 5


def test_the_hub_says_no(out: Path, hub: WritableHub, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = str(out / "b-f16.gguf")
    hub.full = True
    with pytest.raises(AccessError, match=r"does not allow it.*storage limit reached"):
        ggferry.publish(path, TO)
    with pytest.raises(AccessError, match=r"rights to create"):
        ggferry.publish(path, "hf://other/b-GGUF")
    hub.full = False
    with pytest.raises(RefusedError, match="the repository is public"):
        ggferry.publish(path, TO, private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "W" * 34)
    assert _run(["publish", path, "--to", TO]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(
        "error: hf://me/b-GGUF: the Hub does not accept the token: found HTTP 401 (set HF_TOKEN"
    )
    assert "WWWW" not in "".join(lines)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(out / "none"))
    with pytest.raises(AccessError, match="no token for the Hub"):
        ggferry.publish(path, TO)


def test_other_bytes_on_the_hub_are_found(out: Path, hub: WritableHub) -> None:
    hub.falsify = True
    with pytest.raises(TransportError, match="the Hub does not have the bytes that were sent"):
        ggferry.publish(out / "b-f16.gguf", TO)


def test_a_commit_of_somebody_else_in_between(out: Path, hub: WritableHub) -> None:
    hub.meddle = lambda found: found.commit("main", {**found.commits[found.refs["main"]]}, "somebody else")
    with pytest.raises(ChangedError, match="the repository changed meanwhile"):
        ggferry.publish(out / "b-f16.gguf", TO)


def test_a_file_that_changes_meanwhile(out: Path, hub: WritableHub) -> None:
    path = out / "b-f16.gguf"

    def stage(phase: Phase, total: int) -> AbstractContextManager[Progress]:
        return nullcontext(lambda done: os.utime(path, (1, 1)) if phase is Phase.UPLOADING else None)

    with pytest.raises(ChangedError, match="changed while it was published"):
        ggferry.publish(path, TO, progress=stage)
    assert {*hub.repositories[REPO].files()} == {".gitattributes"}
    other = shutil.copytree(out, out / "again")
    with pytest.raises(UsageError, match="two files of one name"):
        ggferry.publish([path, other], TO)


def test_unproved_files_are_refused(out: Path, hub: WritableHub) -> None:
    whole, other = out / "b-f16.gguf", out / "b-keep.gguf"
    data = bytearray(whole.read_bytes())
    data[-100] ^= 16
    whole.write_bytes(data)
    with pytest.raises(ChecksumError, match="not the bytes that its receipt was written for"):
        ggferry.publish(whole, TO)
    receipt = out / "b-keep.gguf.receipt.json"
    stated = json.loads(receipt.read_text())
    receipt.write_text(json.dumps(stated | {"verified": "none"}))
    with pytest.raises(RefusedError, match="nothing was verified"):
        ggferry.publish(other, TO)
    receipt.write_text(json.dumps({key: value for key, value in stated.items() if key != "tensors"}))
    with pytest.raises(CorruptError, match="lacks what every receipt has"):
        ggferry.publish(other, TO)
    receipt.unlink()
    with pytest.raises(RefusedError, match="no receipt beside the file"):
        ggferry.publish(other, TO)
    assert not hub.requests
    done = ggferry.publish([whole, other], TO, allow_unproved=True)
    assert [file.name for file in done.files] == ["b-f16.gguf", "b-keep.gguf"]  # a receipt of other bytes stays here
    assert done.card.count("| not proved |") == 2 and len(done.notes) == 2


def test_shards_and_mmproj_files_go_along(out: Path, tmp_path: Path) -> None:
    shards = ggferry.split(out / "b-f16.gguf", tmp_path / "cut", split_max_tensors=12)
    receipt = Path(shards.output + ".receipt.json")
    stated = json.loads(receipt.read_text())
    shutil.copy(out / "b-keep.gguf", tmp_path / "mmproj-b.gguf")
    beside = json.loads((out / "b-keep.gguf.receipt.json").read_text())
    (tmp_path / "mmproj-b.gguf.receipt.json").write_text(json.dumps(beside))
    receipt.write_text(json.dumps(stated | {"mmproj": [{**beside["output"]["files"][0], "name": "mmproj-b.gguf"}]}))
    done = ggferry.publish(str(shards.files[-1].path), TO, dry_run=True)
    stem = os.path.basename(shards.output).removesuffix("-00001-of-00002.gguf")
    assert [file.name for file in done.files] == [
        f"{stem}/{stem}-00001-of-00002.gguf",
        f"{stem}/{stem}-00002-of-00002.gguf",
        f"{stem}/{stem}-00001-of-00002.gguf.receipt.json",
        "mmproj-b.gguf",
        "mmproj-b.gguf.receipt.json",
    ]
    assert f"[{stem}.gguf (2 shards)]" in done.card
    (tmp_path / "mmproj-b.gguf").unlink()
    with pytest.raises(NotFoundError):
        ggferry.publish(shards.output, TO, dry_run=True)
    receipt.write_text(json.dumps(stated | {"mmproj": [{"name": "../secret"}]}))
    with pytest.raises(CorruptError, match="no file name"):
        ggferry.publish(shards.output, TO, dry_run=True)


def test_a_dry_run_needs_no_network_and_no_token(out: Path, tmp_path: Path) -> None:
    quality = tmp_path / "compare.json"
    chunk = {"kl_divergence": {"value": 0.0123, "error": 0.0004}, "same_top": {"value": 0.954, "error": 0.01}}
    quality.write_text(json.dumps({"chunks": [{}, chunk]}))
    line = [sys.executable, "-P", "-m", "ggferry", "publish", str(out), "--to", TO, "--dry-run", "--json"]
    given = {key: value for key, value in os.environ.items() if key != "HF_TOKEN"}
    given |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "none")}
    line += ["--quality", f"b-keep.gguf={quality}"]
    ended = subprocess.run(line, env=given, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["commit"] is None and len(found["files"]) == 4
    assert "| 0.01230 ± 0.00040 (text) | 95.40% (text) |" in found["card"]
    several = [
        {"model": f"/x/{name}.gguf", "chunks": [{**chunk, "same_top": {"value": top}}]}
        for name, top in (("a", 0.1), ("b-keep", 0.75))
    ]
    quality.write_text(json.dumps({**several[0], "others": several[1:]}))
    card = ggferry.publish(out, TO, quality=[f"b-keep.gguf={quality}"], dry_run=True).card
    assert "| 0.01230 ± 0.00040 (text) | 75.00% (text) |" in card
    quality.write_text(json.dumps({**several[0], "others": several[:1]}))
    with pytest.raises(UsageError, match="several models were compared"):
        ggferry.publish(out, TO, quality=[f"b-keep.gguf={quality}"], dry_run=True)
    quality.write_text("{}")
    with pytest.raises(CorruptError, match="compare --json"):
        ggferry.publish(out, TO, quality=[f"b-keep.gguf={quality}"], dry_run=True)
    with pytest.raises(UsageError, match="not NAME=FILE"):
        ggferry.publish(out, TO, quality=["none.gguf=x"], dry_run=True)


@pytest.mark.unix("names with control characters, which Windows refuses")
def test_hostile_names_are_only_shown(out: Path, hub: WritableHub, capsys: Any) -> None:
    name = "a|b](http:x)<script>`*!\x1b[31m\u202e<!-- ggferry: end of files -->.gguf"
    (out / "b-f16.gguf").rename(out / name)
    (out / "b-f16.gguf.receipt.json").rename(out / f"{name}.receipt.json")
    done = ggferry.publish(out / name, TO)
    assert name in hub.repositories[REPO].files()
    row = next(line for line in done.card.splitlines() if line.startswith("| [a"))
    assert row.startswith(r"| [a\|b\](http:x)&lt;script&gt;\`\*\!\\x1b\[31m\\u202e&lt;\!--")
    page = MarkdownIt("commonmark").enable("table").render(done.card.split("---\n", 2)[2])
    shown = html.unescape(page.split("<td>")[1].split("</a>")[0].split(">", 1)[1])
    assert shown == name.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e") and "<script" not in page
    assert "](a%7Cb%5D%28http%3Ax%29%3Cscript%3E%60%2A%21%1B%5B31m%E2%80%AE%3C" in row
    assert done.card.count("<!-- ggferry: end of files -->") == 1 and f"hf://{REPO}/FILE" in done.card
    assert _run(["publish", str(out / name), "--to", TO, "--dry-run"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    ggferry.publish(out / "b-keep.gguf", TO)  # its own card can be read again
    assert row in hub.repositories[REPO].files()["README.md"].decode()


def test_places_of_this_machine_stay_here(out: Path, hub: WritableHub) -> None:
    receipt = out / "b-f16.gguf.receipt.json"
    stated = json.loads(receipt.read_text())
    notes = ["/home/me/old models/x.txt", f"see /home/me/x.json and https://u:p@host/x?sig=1 and {TOKEN}"]
    receipt.write_text(json.dumps(stated | {"notes": notes}))
    done = ggferry.publish(out / "b-f16.gguf", TO)
    sent = json.loads(hub.repositories[REPO].files()["b-f16.gguf.receipt.json"])
    assert sent["notes"] == ["x.txt", "see x.json and https://host/x and [token]"]
    assert sent == stated | {"notes": sent["notes"]} and "without local paths" in done.notes[0]
    edited = ggferry.edit(out / "b-keep.gguf", out / "p.gguf", set={"quantize.imatrix.file": "/home/me/i.dat"})
    with pytest.raises(RefusedError, match=r"local path.*quantize\.imatrix\.file"):
        ggferry.publish(edited.output, TO)


@pytest.mark.parametrize(
    ("to", "more"),
    [
        ("me/b", {}),
        ("hf://me", {}),
        ("hf://me/b@", {}),
        ("hf://me/b@v2", {"revision": "v3"}),
        ("hf://me/b@v2", {"create_pr": True}),
        ("hf://me/../b", {}),
        ("hf://me/b--c", {}),
        (TO, {"revision": "a..b"}),
        (TO, {"revision": "v2", "create_pr": True}),
        (TO, {"base_model": ["x"]}),
        (TO, {"message": " "}),
    ],
)
def test_what_cannot_be_meant_is_refused(out: Path, to: str, more: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ggferry.publish(out, to, dry_run=True, **more)


def test_a_broken_card_is_not_guessed_at(out: Path, hub: WritableHub) -> None:
    hub.add(REPO, {"README.md": b"<!-- ggferry: begin of files -->\nx\n"})
    with pytest.raises(InconsistentError, match="do not stand there once each"):
        ggferry.publish(out / "b-f16.gguf", TO)
