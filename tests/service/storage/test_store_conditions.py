"""What a store says of a name decides whether it may be written, and nothing that has a name is ever overwritten."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ggferry.formats.errors import AccessError, GgferryError, RefusedError
from ggferry.service.storage import publish as publishing
from ggferry.service.storage import stores
from ggferry.service.storage.backends import s3 as module
from ggferry.service.storage.publish import (
    Writer,
    partial_name,
    prepare,
    publish,
    publish_all,
    put_receipt,
    sweep,
)
from helpers.archive_tools import command, plan, rows, write
from helpers.builders import Llama
from helpers.store_faults import S3Store

pytestmark = pytest.mark.attack

OURS, THEIRS = os.urandom(11 << 20), b"nine bytes"
URL = "s3://new/deny/a.gguf"
ME = Writer("job", 3)


@pytest.fixture
def store(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setattr(module, "PART", 5 << 20)
    module._conditional.clear()
    publishing._reported.clear()
    return store


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "a.gguf"
    path.write_bytes(OURS)
    return path


def send(local: Path, writer: Writer = ME) -> bool:
    data = local.read_bytes()
    return publish(str(local), URL, blake3(data).hexdigest(), str(local.parent), lambda count: None, writer)


def left(store: S3Store) -> list[str]:
    """Everything in the destination, unfinished uploads too."""
    return [*store.keys("new"), *(f"upload of {key}" for key in store.uploads("new"))]


# --- is it there? ---


def test_a_refusal_is_not_absence(store: S3Store, local: Path) -> None:
    store.put("new/deny/a.gguf", THEIRS)
    store.rules.add("HEAD", r"a\.gguf$", 403)
    with pytest.raises(AccessError, match="access denied"):
        stores.exists(URL)
    with pytest.raises(AccessError):
        send(local)
    assert store.get("new/deny/a.gguf") == THEIRS and left(store) == ["deny/a.gguf"]


@pytest.mark.slow
def test_only_404_is_absence(store: S3Store) -> None:
    assert not stores.exists(URL)
    for status in (500, 503, 429):
        store.rules.clear()
        store.rules.add("HEAD", "a.gguf", status)
        with pytest.raises(GgferryError) as caught:
            stores.exists(URL)
        assert caught.value.fault == "passing", status


# --- creation ---


@pytest.mark.parametrize("moment", ["the upload", "the copy"])
def test_a_file_that_appears_meanwhile_keeps_its_bytes(store: S3Store, local: Path, moment: str) -> None:
    """Between our look and our write: only the store's own condition can tell."""
    foreign = lambda: store.put("new/deny/a.gguf", THEIRS)  # noqa: E731
    if moment == "the upload":
        store.rules.add("POST", r"partial$", foreign, 1, query="uploadId")
    else:
        store.rules.add("POST", r"a\.gguf$", foreign, 1, query="uploadId")
    with pytest.raises(RefusedError, match="exists already"):
        send(local)
    assert store.get("new/deny/a.gguf") == THEIRS and left(store) == ["deny/a.gguf"]


@pytest.mark.parametrize("kind", ["plain", "unknown"])
def test_a_store_without_conditions_is_told_and_looked_at_before_and_after(
    store: S3Store, local: Path, kind: str
) -> None:
    setattr(store.handler, kind, True)
    told: list[str] = []
    prepare(URL, len(OURS), ME, told.append)
    prepare(URL, len(OURS), ME, told.append)
    assert len(told) == 1 and "conditional writes" in told[0]
    assert send(local) and store.get("new/deny/a.gguf") == OURS and left(store) == ["deny/a.gguf"]
    store.system.call_s3("delete_object", Bucket="new", Key="deny/a.gguf")
    store.rules.add("POST", r"partial$", lambda: store.put("new/deny/a.gguf", THEIRS), 1, query="uploadId")
    with pytest.raises(RefusedError, match="exists already"):
        send(local)
    assert store.get("new/deny/a.gguf") == THEIRS


def test_what_comes_under_the_name_right_after_the_copy_is_seen(store: S3Store, local: Path) -> None:
    """HEAD of the final name: the look before, and the one after the copy."""
    store.rules.add("HEAD", r"a\.gguf$", lambda: store.put("new/deny/a.gguf", THEIRS), 2)
    with pytest.raises(RefusedError, match="another file"):
        send(local)


def test_the_store_copies_only_what_was_read_back(store: S3Store, local: Path) -> None:
    """Another writer replaces the temporary object between its proof and the copy."""

    def replace() -> None:
        (partial,) = [key for key in store.keys("new") if key.endswith(".partial")]
        store.put(f"new/{partial}", bytes(len(OURS)))

    store.rules.add("PUT", r"a\.gguf$", replace, 1, copy=True)
    assert send(local)
    assert store.get("new/deny/a.gguf") == OURS and left(store) == ["deny/a.gguf"]


def test_two_writers_of_one_name_have_two_partials_and_one_of_them_wins(store: S3Store, tmp_path: Path) -> None:
    models = [bytes([i]) * (6 << 20) for i in range(2)]
    arrived = threading.Barrier(2, timeout=30)
    store.rules.add("PUT", r"a\.gguf$", arrived.wait, 1, 2, query="partNumber=1", copy=True)
    ends: dict[int, Any] = {}

    def run(i: int) -> None:
        path = tmp_path / f"{i}"
        path.write_bytes(models[i])
        try:
            ends[i] = publish(
                str(path), URL, blake3(models[i]).hexdigest(), str(tmp_path), lambda count: None, Writer(f"job{i}", 1)
            )
        except RefusedError as error:
            ends[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    winner = next(i for i, end in ends.items() if end is True)
    assert isinstance(ends[1 - winner], RefusedError)
    assert store.get("new/deny/a.gguf") == models[winner] and left(store) == ["deny/a.gguf"]


@pytest.mark.parametrize("stage", ["parts", "the upload's end", "the copy's end"])
def test_an_answer_that_is_lost_is_looked_for(store: S3Store, local: Path, stage: str) -> None:
    key = r"a\.gguf$" if stage == "the copy's end" else "partial$"
    store.rules.add("PUT" if stage == "parts" else "POST", key, "lost", 1, query="uploadId")
    send(local)
    assert store.get("new/deny/a.gguf") == OURS and left(store) == ["deny/a.gguf"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "key", "fault"),
    [
        ("PUT", "partial$", 500),
        ("POST", "partial$", 403),
        ("GET", "partial$", "wrong"),
        ("GET", "partial$", 404),
        ("PUT", r"a\.gguf$", 403),
        ("PUT", r"a\.gguf$", 500),
        ("POST", r"a\.gguf$", 500),
    ],
)
def test_a_failure_leaves_nothing_behind(store: S3Store, local: Path, method: str, key: str, fault: Any) -> None:
    assert publishing._creates(URL, ME)  # asked before, with writes of its own
    store.rules.add(method, key, fault, query="" if method == "GET" else "uploadId")
    with pytest.raises(GgferryError):
        send(local)
    assert left(store) == []


# --- what others left ---


def test_a_killed_attempt_is_swept_and_nobody_elses(store: S3Store, local: Path) -> None:
    def begin(key: str) -> str:
        return str(store.system.call_s3("create_multipart_upload", Bucket="new", Key=key)["UploadId"])

    key = "deny/a.gguf"
    copy, other_copy = begin(key), begin(key)
    dead = partial_name(URL, Writer("job", 2), publishing.mark_of_upload(copy)).removeprefix("s3://new/")
    ahead = partial_name(URL, Writer("job", 4), "0" * 12).removeprefix("s3://new/")
    alive = partial_name(URL, Writer("other", 1), publishing.mark_of_upload(other_copy)).removeprefix("s3://new/")
    forgotten = f"{key}.other-1-{int(time.time()) - 8 * 24 * 3600:x}-{'1' * 12}.partial"
    strangers = [f"{key}.partial", f"{key}2.job-2-0-{'1' * 12}.partial", "deny/b.gguf"]
    for name in (dead, ahead, alive, forgotten, *strangers):
        store.put(f"new/{name}", b"part")
    begin(dead)
    begin(alive)
    sweep(URL, ME)
    assert sorted(store.keys("new")) == sorted([ahead, alive, *strangers])
    assert sorted(store.uploads("new")) == sorted([alive, key])
    open_copy = [
        each["UploadId"]
        for each in store.system.call_s3("list_multipart_uploads", Bucket="new")["Uploads"]
        if each["Key"] == key
    ]
    assert open_copy == [other_copy]


# --- receipts ---


def receipt_of(data: bytes) -> dict[str, Any]:
    return {"ggferry": "0", "output": {"files": [{"name": "a.gguf", "blake3": blake3(data).hexdigest()}]}}


def put_all(local: Path) -> bool:
    return publish_all(
        {URL: receipt_of(OURS)}, str(local.parent), str(local.parent), ME, lambda: None, lambda count: None
    )


def test_the_receipt_comes_after_the_output(store: S3Store, local: Path) -> None:
    assert not put_all(local)
    writes = [(each.method, each.key) for each in store.rules.asked if each.method in ("PUT", "POST")]
    assert writes[-1] == ("PUT", "new/deny/a.gguf.receipt.json") and ("POST", "new/deny/a.gguf") in writes[:-1]
    assert json.loads(store.get("new/deny/a.gguf.receipt.json")) == receipt_of(OURS)


def test_an_output_without_its_receipt_is_completed(store: S3Store, local: Path) -> None:
    """Killed between the two: the next run has the same bytes, proves them again and adds the receipt."""
    assert send(local)
    assert put_all(local)
    assert left(store) == ["deny/a.gguf", "deny/a.gguf.receipt.json"]


def test_no_receipt_beside_a_file_of_somebody_else(store: S3Store, local: Path) -> None:
    store.put("new/deny/a.gguf", THEIRS)
    with pytest.raises(RefusedError, match="exists already"):
        put_all(local)
    assert store.get("new/deny/a.gguf") == THEIRS and left(store) == ["deny/a.gguf"]


def test_a_file_that_has_a_receipts_name_is_kept(store: S3Store, local: Path) -> None:
    store.put("new/deny/a.gguf.receipt.json", b"[1]")
    with pytest.raises(RefusedError, match="not a receipt"):
        prepare(URL, len(OURS), ME)
    with pytest.raises(RefusedError, match="not a receipt"):
        put_receipt(b"{}", f"{URL}.receipt.json")
    assert store.get("new/deny/a.gguf.receipt.json") == b"[1]"


def test_an_older_receipt_is_replaced_only_by_who_has_read_it(store: S3Store) -> None:
    url, new = f"{URL}.receipt.json", b'{"ggferry": 2}'
    store.put("new/deny/a.gguf.receipt.json", b'{"ggferry": 0}')
    store.rules.add("PUT", "receipt", lambda: store.put("new/deny/a.gguf.receipt.json", b'{"ggferry": 1}'), 1)
    put_receipt(new, url)
    assert store.get("new/deny/a.gguf.receipt.json") == new
    assert sum(each.method == "PUT" for each in store.rules.asked) == 2


def test_what_is_in_the_way_is_found_before_anything_is_done(store: S3Store) -> None:
    store.put("new/deny/a.gguf", THEIRS)
    with pytest.raises(RefusedError, match="exists already"):
        prepare(URL, len(OURS), ME)
    store.rules.add("PUT", "partial$", 403)
    with pytest.raises(AccessError):
        prepare("s3://new/deny/b.gguf", 1, ME)
    with pytest.raises(GgferryError, match="too long"):
        prepare(f"s3://new/{'x' * 1000}.gguf", 1, ME)


# --- whole runs ---


@pytest.mark.slow
def test_a_migration_onto_a_foreign_object_that_may_not_be_seen(store: S3Store, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))
    store.put("new/deny/a.gguf", THEIRS)
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", "s3://new/deny", "--verify", "fast", "-j", "1")
    store.rules.add("HEAD", r"a\.gguf$", 403)
    command("apply", path, "-j", "1", "--patience", "1", code=1)
    (row,) = rows(f"{path}.ledger").values()
    assert (row["state"], row["error"]["class"]) == ("failed", "AccessError")
    assert store.get("new/deny/a.gguf") == THEIRS and left(store) == ["deny/a.gguf"]
    store.rules.clear()
    store.system.call_s3("delete_object", Bucket="new", Key="deny/a.gguf")
    command("apply", path, "-j", "1", "--retry-failed")
    assert left(store) == ["deny/a.gguf", "deny/a.gguf.receipt.json"]


@pytest.mark.slow
def test_two_plans_with_one_destination(store: S3Store, tmp_path: Path) -> None:
    """Options of equal size: the sizes of the two outputs are the same, the bytes are not."""
    write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))
    plans = []
    for i in range(2):
        path = tmp_path / f"{i}.jsonl"
        plan(tmp_path / "in", path, "--dest", "s3://new/deny", "--verify", "fast", "-j", "1")
        head, line = path.read_text().splitlines()
        entry = json.loads(line)
        entry["options"] = {**entry.get("options", {}), "model_name": f"Model {i}"}
        path.write_text(f"{head}\n{json.dumps(entry)}\n")
        plans.append(path)
    arrived = threading.Barrier(2, timeout=60)
    store.rules.add("PUT", r"a\.gguf$", arrived.wait, 1, 2, query="partNumber=1", copy=True)
    threads = [
        threading.Thread(target=command, args=("apply", path, "-j", "1"), kwargs={"code": None}) for path in plans
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    states = {path.name: next(iter(rows(f"{path}.ledger").values()))["state"] for path in plans}
    assert sorted(states.values()) == ["done", "failed"]
    winner = next(path for path in plans if states[path.name] == "done")
    command("ledger", "recheck", f"{winner}.ledger")
    assert left(store) == ["deny/a.gguf", "deny/a.gguf.receipt.json"]


@pytest.mark.slow
def test_a_run_killed_in_the_copy_leaves_nothing_to_the_next(store: S3Store, tmp_path: Path) -> None:
    import subprocess

    from helpers.archive_tools import GGFERRY

    write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", "s3://new/deny", "--verify", "fast", "-j", "1")
    process: list[subprocess.Popen[bytes]] = []
    store.rules.add("POST", r"a\.gguf$", lambda: process[0].kill(), 1, query="uploadId")
    process.append(subprocess.Popen([*GGFERRY, "apply", str(path), "-j", "1"]))
    assert process[0].wait(60) == -9
    assert any(".partial" in key for key in left(store))
    command("apply", path, "-j", "1")
    assert left(store) == ["deny/a.gguf", "deny/a.gguf.receipt.json"]
    (row,) = rows(f"{path}.ledger").values()
    assert row["state"] == "done"
