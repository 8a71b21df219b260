"""Names that no file system would allow: every object is in a line, none stands for another, none is a pattern."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ggferry.service.plan import make_plan as planning
from ggferry.service.plan.make_plan import PlanRequest
from ggferry.service.records.plan_file import Entry
from ggferry.service.storage import stores
from ggferry.service.storage.mirror import Mirror
from ggferry.service.storage.publish import publish
from ggferry.service.storage.safe_names import NAME_MAX, safe_name
from helpers.archive_tools import command, plan, rows
from helpers.builders import Llama
from helpers.store_faults import S3Store

pytestmark = pytest.mark.attack

LONG = "z" * 300 + ".bin"
ODD = ("x/../evil.bin", "./b.bin", "a", "a/b.bin", "a//b.bin", "/lead.bin", LONG, f"{'d' * 300}/m.bin", "../up.bin")
GLOBS = ("a[1].bin", "q?.bin", "star*.bin", "{x,y}.bin", "ü %2f+#.bin")


def model(tmp_path: Path, seed: int = 0) -> bytes:
    return Llama(seed=seed).write(tmp_path / "model.bin").read_bytes()


def planned(tmp_path: Path, root: str = "s3://old") -> dict[str, Entry]:
    _, entries = planning.plan(PlanRequest((root,), str(tmp_path / "out")))
    return {entry.source.removeprefix("s3://old/"): entry for entry in entries}


# --- paths here ---


def test_every_object_has_a_path_of_its_own(tmp_path: Path) -> None:
    mirror = Mirror(str(tmp_path / "mirror"))
    names = [f"s3://old/{name}" for name in (*ODD, *GLOBS, "a/", "nul\0.bin", "..", "x/.", "a/b.bin/c")]
    mirror.name(names)
    paths = [mirror.path_of(name) for name in names]
    assert len(set(paths)) == len(names) and [mirror.url_of(path) for path in paths] == names
    for path in paths:
        assert os.path.realpath(path).startswith(f"{tmp_path}/mirror/s3/old/")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x"):
            pass
    again = Mirror(str(tmp_path / "mirror"))
    assert again.path_of("s3://old/x/../evil.bin") == paths[0]  # a job alone names it as its plan did


def test_siblings_stay_siblings(tmp_path: Path) -> None:
    mirror = Mirror(str(tmp_path))
    mirror.name(f"s3://old/x//model/{name}" for name in ("config.json", "model.safetensors", "deeper/a"))
    names = ("config.json", "model.safetensors")
    folders = {os.path.dirname(mirror.path_of(f"s3://old/x//model/{name}")) for name in names}
    assert len(folders) == 1 and os.path.basename(folders.pop()) == "model"
    assert mirror.url_of(os.path.dirname(mirror.path_of("s3://old/x//model/deeper/a"))) == "s3://old/x//model/deeper"
    assert mirror.path_of("s3://old/x//model") == os.path.dirname(mirror.path_of("s3://old/x//model/config.json"))


def test_names_that_can_be_are_kept() -> None:
    for name in ("a", "model [v2] *.bin", "…", " ", "~", "a" * NAME_MAX):
        assert safe_name(name) == name
    for name in ("", ".", "..", "a\0b", "é" * 200 + ".safetensors", "." * 256):
        safe = safe_name(name)
        assert safe not in ("", ".", "..") and "\0" not in safe and len(os.fsencode(safe)) <= NAME_MAX
    assert safe_name("é" * 200 + ".safetensors").endswith(".safetensors")


# --- a plan ---


@pytest.mark.slow
def test_odd_keys_end_no_plan(store: S3Store, tmp_path: Path) -> None:
    for i, name in enumerate(ODD):
        store.put(f"old/{name}", model(tmp_path, seed=i))
    store.put("old/folder/", b"")
    store.put("old/bytes/", b"not empty")
    entries = planned(tmp_path)
    assert {name: entry.verdict for name, entry in entries.items()} == {
        **dict.fromkeys(ODD, "convert"),
        "bytes/": "unsupported",
    }
    outputs = [str(entry.output) for entry in entries.values() if entry.output]
    assert len(set(map(os.path.realpath, outputs))) == len(ODD)
    for output in outputs:
        assert os.path.realpath(output) == output and output.startswith(f"{tmp_path}/out/")
        assert all(len(os.fsencode(part)) < 240 for part in output.split("/"))


def test_two_slashes_are_another_name(store: S3Store, tmp_path: Path) -> None:
    """One of them was in no line, and the other judged by its bytes."""
    store.put("old/a/b.bin", model(tmp_path))
    store.put("old/a//b.bin", b"no model at all")
    entries = planned(tmp_path)
    assert {name: entry.verdict for name, entry in entries.items()} == {
        "a/b.bin": "convert",
        "a//b.bin": "unsupported",
    }


def test_an_object_that_cannot_be_read_is_a_line(store: S3Store, tmp_path: Path) -> None:
    store.put("old/closed.bin", model(tmp_path))
    store.put("old/open.bin", model(tmp_path, 1))
    store.rules.add("GET", "closed", 403)
    entries = planned(tmp_path)
    assert {name: (entry.verdict, (entry.error or {}).get("class")) for name, entry in entries.items()} == {
        "closed.bin": ("incomplete", "AccessError"),
        "open.bin": ("convert", None),
    }


def test_a_model_is_not_converted_without_what_cannot_be_read_beside_it(store: S3Store, tmp_path: Path) -> None:
    store.put("old/m/model.safetensors", b"x" * 100)
    store.put("old/m/config.json", b"{}")
    store.put("old/m/tokenizer.json", b"{}")
    store.rules.add("GET", "tokenizer.json", 403)
    entries = planned(tmp_path)
    assert entries["m"].verdict == "incomplete" and "tokenizer.json beside it cannot be read" in entries["m"].reason


# --- no patterns ---


def test_names_are_no_patterns_where_objects_are_copied(store: S3Store, tmp_path: Path) -> None:
    from blake3 import blake3

    (tmp_path / "local").write_bytes(b"the model")
    for name in GLOBS:
        url = f"s3://new/odd/{name}.gguf"
        publish(str(tmp_path / "local"), url, blake3(b"the model").hexdigest(), str(tmp_path), lambda count: None)
        assert stores.exists(url)
    assert sorted(store.keys("new")) == sorted(f"odd/{name}.gguf" for name in GLOBS)


def test_names_are_no_patterns_in_other_stores(tmp_path: Path) -> None:
    from blake3 import blake3

    (tmp_path / "local").write_bytes(b"the model")
    data = blake3(b"the model").hexdigest()
    for name in GLOBS[:3]:
        publish(str(tmp_path / "local"), f"memory://globs/{name}", data, str(tmp_path), lambda count: None)
    listed = sorted(each.path for each in stores.listing("memory://globs"))
    assert listed == [f"memory://globs/{name}" for name in sorted(GLOBS[:3])]


# --- a whole run ---


@pytest.mark.slow
def test_odd_names_from_bucket_to_bucket(store: S3Store, tmp_path: Path) -> None:
    names = ("x/../evil.bin", "a", "a/b.bin", "a//b.bin", *GLOBS)
    for i, name in enumerate(names):
        store.put(f"old/{name}", model(tmp_path, seed=i))
    path = tmp_path / "plan.jsonl"
    entries = plan("s3://old", path, "--dest", "s3://new/to", "--verify", "fast", "-j", "1")
    assert len(entries) == len(names)
    command("apply", path, "-j", "2")
    assert {row["state"] for row in rows(f"{path}.ledger").values()} == {"done"}
    outputs = {entry["output"].removeprefix("s3://new/") for entry in entries}
    assert set(store.keys("new")) == outputs | {f"{output}.receipt.json" for output in outputs}
    command("ledger", "recheck", f"{path}.ledger")
