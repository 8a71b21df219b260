"""A whole archive in one plan and one apply: the good converted, the bad quarantined for their reason, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from ggferry.service.records.plan_file import read_plan, to_line
from helpers.archive_tools import GGFERRY, TOKENS, command, plan, rows, spoil, write
from helpers.builders import Llama


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> tuple[Path, dict[str, str]]:
    """Four good models (one in two parts, one a duplicate) among everything bad; and the state each must end with."""
    root = tmp_path_factory.mktemp("archive") / "in"
    states = spoil(root, fixtures, root.parent / "canary")
    legacy = fixtures / "legacy-llama"
    shutil.copytree(legacy / "ggml-20230315-2part", root / "parts", ignore=shutil.ignore_patterns("*.npy"))
    shutil.copy(legacy / "ggjt3-20230821" / "q4_0.bin", root / "a.bin")
    shutil.copy(legacy / "ggjt3-20230821" / "q4_0.bin", root / "b.bin")
    shutil.copy(legacy / "tokenizer.model", root / "tokenizer.model")
    write(root / "new" / "c.bin", Llama(kind="F16", version=1))
    return root, states | {"parts/q4_0.bin": "done", "a.bin": "done", "b.bin": "skipped", "new/c.bin": "done"}


@pytest.fixture(scope="module")
def migrated(archive: tuple[Path, dict[str, str]]) -> tuple[Path, Path]:
    """The archive after plan and apply: the plan, the folder of outputs."""
    root, _ = archive
    path, dest = root.parent / "plan.jsonl", root.parent / "out"
    plan(root, path, "--dest", dest, "-j", "1")
    done = command("apply", path, "-j", "1", code=1, **TOKENS)
    assert "quarantined" in done.stdout
    return path, dest


def test_every_file_ends_as_it_should(archive: tuple[Path, dict[str, str]], migrated: tuple[Path, Path]) -> None:
    root, states = archive
    found = rows(f"{migrated[0]}.ledger")
    ended = {os.path.relpath(source, root): row["state"] for source, row in found.items()}
    assert {name: ended.get(name) for name in states} == states
    assert not (root.parent / "canary").exists(), "the hostile pickle was run"
    reasons = {os.path.relpath(source, root): row["error"] for source, row in found.items() if row["error"]}
    for name, kind in {
        "odd/cut.bin": "TruncatedError",
        "odd/half.bin": "TruncatedError",
        "odd/page.pth": "UnknownFormatError",
        "odd/empty.gguf": "TruncatedError",
        "odd/pointer.safetensors": "UnknownFormatError",
        "odd/hostile.pth": "UnsafePickleError",
        "odd/lost.bin.1": "NotFoundError",
        "missing/big.bin": "NotFoundError",
    }.items():
        assert reasons[name]["class"] == kind, (name, reasons[name])
    for source in found:  # every file of the tree is spoken for
        assert source.startswith(str(root))
    listed = {each.path for entry in read_plan(str(migrated[0]))[1] for each in (*entry.files, *entry.beside)}
    assert listed == {str(path) for path in root.rglob("*") if path.is_file()}


def test_outputs_stand_at_the_same_place_and_are_proved(migrated: tuple[Path, Path]) -> None:
    dest = migrated[1]
    outputs = {str(path.relative_to(dest)) for path in dest.rglob("*.gguf")}
    assert outputs == {"a.gguf", "parts/q4_0.gguf", "new/c.gguf"}
    assert {str(p.relative_to(dest)) for p in dest.rglob("*")} - outputs == {
        "parts",
        "new",
        *(f"{name}.receipt.json" for name in outputs),
    }
    for name in outputs:
        assert json.loads((dest / f"{name}.receipt.json").read_text())["verified"] == "full"
        command("inspect", dest / name)


@pytest.mark.slow
def test_a_second_run_does_nothing_and_a_second_plan_is_the_same(
    archive: tuple[Path, dict[str, str]], migrated: tuple[Path, Path]
) -> None:
    path, dest = migrated
    before = {p: p.stat().st_mtime_ns for p in dest.rglob("*.gguf")}
    attempts = {source: row["attempts"] for source, row in rows(f"{path}.ledger").items()}
    command("apply", path, "-j", "1", code=1)
    assert {p: p.stat().st_mtime_ns for p in dest.rglob("*.gguf")} == before
    assert {source: row["attempts"] for source, row in rows(f"{path}.ledger").items()} == attempts
    again = path.with_name("again.jsonl")
    plan(archive[0], again, "--dest", dest, "-j", "1")
    assert again.read_bytes() == path.read_bytes()
    head, entries = read_plan(str(path))
    assert path.read_text().splitlines() == [to_line(head), *map(to_line, entries)]


def test_the_duplicate_and_the_tokenizer_are_told(
    archive: tuple[Path, dict[str, str]], migrated: tuple[Path, Path]
) -> None:
    entries = {os.path.relpath(e.source, archive[0]): e for e in read_plan(str(migrated[0]))[1]}
    assert entries["b.bin"].proof == "blake3" and entries["b.bin"].same_as == str(archive[0] / "a.bin")
    assert entries["a.bin"].options == {"tokenizer_model": str(archive[0] / "tokenizer.model")}
    assert entries["parts/q4_0.bin"].kind == "parts" and len(entries["parts/q4_0.bin"].files) == 2
    assert entries["odd/old.zip"].verdict == "archive"


@pytest.mark.slow
def test_report_ledger_and_recheck(migrated: tuple[Path, Path], tmp_path: Path) -> None:
    path, dest = migrated
    facts = json.loads(Path(f"{path}.report.json").read_text())
    assert facts["totals"]["done"] == 3 and facts["totals"]["quarantined"] == 8
    assert facts["errors"]["TruncatedError"] == 3
    page = Path(f"{path}.report.html").read_text()
    assert "http" not in page and "<svg" in page and "hostile.pth" in page and "<script" not in page
    ledger = f"{path}.ledger"
    assert json.loads(command("ledger", "status", ledger, "--json").stdout)["done"] == 3
    shown = json.loads(command("ledger", "show", ledger, str(dest / "a.gguf")).stdout)
    assert shown["state"] == "done" and shown["receipt"]["verified"] == "full" and len(shown["tried"]) == 1
    command("ledger", "export", ledger, "-o", tmp_path / "all")
    assert (tmp_path / "all.html").exists() and (tmp_path / "all.json").exists()
    assert command("ledger", "recheck", ledger).stdout.count("=") == 3
    damaged = dest / "new" / "c.gguf"
    data = damaged.read_bytes()
    try:
        damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert f"! {damaged}" in command("ledger", "recheck", ledger, code=1).stdout
    finally:
        damaged.write_bytes(data)


@pytest.mark.slow
def test_too_little_room_and_changed_sources_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.bin", Llama())
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1")
    done = command("apply", path, "-j", "1", "--max-disk", "1K", code=7)
    assert "not enough free disk space" in done.stderr and not (tmp_path / "out").exists()
    write(source, Llama(seed=1))
    done = command("apply", path, "-j", "1", code=7)
    assert "plan again" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "heeded"),  # the background jobs of a shell ignore SIGINT, and must still end by SIGTERM
    [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)],
)
def test_a_stopped_run_says_so_and_continues(number: int, heeded: int, tmp_path: Path) -> None:
    for seed in range(6):
        write(tmp_path / "in" / f"{seed}.bin", Llama(seed=seed))
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1")
    run = subprocess.Popen(
        [*GGFERRY, "apply", path, "-j", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, heeded),
    )
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line).get("state") == "running":
            run.send_signal(number)
            break
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and "Traceback" not in errors, (run.returncode, errors)
    states = {row["state"] for row in rows(f"{path}.ledger").values()}
    assert "queued" in states and states <= {"queued", "done"}
    assert not list((tmp_path / "out").rglob("*.partial"))
    command("apply", path, "-j", "1")
    assert len(list((tmp_path / "out").glob("*.gguf"))) == 6


@pytest.mark.slow
def test_an_edited_plan_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.bin", Llama(kind="F16"))
    write(tmp_path / "in" / "b.bin", Llama(kind="F16", seed=1))
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    head, *lines = map(json.loads, path.read_text().splitlines())
    lines[0]["verdict"] = "skip"
    lines[1] |= {"output": str(tmp_path / "out" / "other.gguf"), "options": {"outtype": "q8_0"}}
    path.write_text("\n".join(map(json.dumps, [head, *lines])))
    command("apply", path, "-j", "1")
    assert [p.name for p in (tmp_path / "out").glob("*.gguf")] == ["other.gguf"]
    receipt = json.loads((tmp_path / "out" / "other.gguf.receipt.json").read_text())
    assert receipt["options"]["outtype"] == "q8_0" and "Q8_0" in receipt["output"]["types"]
    lines[1]["options"] = {"outtyp": "q8_0"}
    path.write_text("\n".join(map(json.dumps, [head, *lines])))
    assert "outtyp" in command("apply", path, "-j", "1", code=2).stderr


@pytest.mark.slow
def test_sources_are_deleted_only_when_asked_and_proved(tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.bin", Llama())
    write(tmp_path / "in" / "bad.bin", Llama()).write_bytes(source.read_bytes()[:-1])
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    refused = command("apply", path, "-j", "1", "--delete-source", code=7)
    assert "--yes" in refused.stderr and source.exists() and not (tmp_path / "out").exists()
    command("apply", path, "-j", "1", "--delete-source", "--yes", code=1)
    assert not source.exists() and (tmp_path / "in" / "bad.bin").exists()
    assert rows(f"{path}.ledger")[str(source)]["deleted"]
    command("apply", path, "-j", "1", "--delete-source", "--yes", code=1)  # what is gone is not missed


@pytest.mark.slow
def test_json_events_and_shards(tmp_path: Path) -> None:
    for seed in range(4):
        write(tmp_path / "in" / f"{seed}.bin", Llama(seed=seed))
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    done = []
    for share in ("1/2", "2/2"):
        events = [
            json.loads(x) for x in command("apply", path, "-j", "1", "--shard", share, "--json").stdout.splitlines()
        ]
        assert events[0]["event"] == "start" and events[-1]["event"] == "end"
        done += [e["source"] for e in events if e["event"] == "job" and e["state"] == "done"]
    assert sorted(done) == sorted(str(p) for p in (tmp_path / "in").iterdir())
    assert len(list((tmp_path / "out").glob("*.gguf"))) == 4
