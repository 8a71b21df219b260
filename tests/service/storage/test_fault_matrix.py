"""Every stage of a migration against every fault, as `fault_matrix.txt` has it: how the job ends, with which exit code
and words, what is left in the destination, and that a rerun, the fault being gone, ends right."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ggferry.service.records.ledger import Ledger
from helpers.archive_tools import GGFERRY, planned
from helpers.fault_cells import STORES, Cell, read_cells
from helpers.faulty_runs import Workers, ggferry, hurried
from helpers.hf_llama import hf_llama
from helpers.store_faults import Rule, Rules, S3Store, Web, s3_store, web_server

FAULTS = ("cut", "slow", "403", "404", "429", "500", "wrong", "vanished", "changed", "killed")
TABLE = Path(__file__).with_name("fault_matrix.txt")
NAME = "Old-95K-v1.0-F32.gguf"
FOREIGN, UPLOAD = b"somebody else's", "an upload of "


def cells() -> list[Cell]:
    return read_cells(TABLE, STORES)


# --- where it happens ----------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where a migration goes from and to. `source`, `sidecar`: of the model; `plan`: made once, of a world without
    faults; `model`: the bytes that the output has there."""

    rules: Rules
    plan: Path
    files: dict[str, bytes]
    put: Callable[[str, bytes], object]
    vanish: Callable[[str], object]
    list: Callable[[], dict[str, bytes]]
    clear: Callable[[], None]
    abort: Callable[[str], None] = lambda end: None
    model: bytes = b""
    kill: list[subprocess.Popen[bytes]] = field(default_factory=list)


def s3_place(store: S3Store, folder: Path, model: Path) -> Place:
    files = {f"old/m/{each.name}": each.read_bytes() for each in model.iterdir()}

    def vanish(key: str) -> None:
        bucket, _, name = key.partition("/")
        store.system.call_s3("delete_object", Bucket=bucket, Key=name)

    def found() -> dict[str, bytes]:
        there = {key: store.get(f"new/{key}") for key in store.keys("new")}
        return {**there, **{f"{UPLOAD}{key}": b"" for key in store.uploads("new")}}

    def clear() -> None:
        store.clear()
        for key, data in files.items():
            store.put(key, data)

    def abort(end: str) -> None:
        for each in store.system.call_s3("list_multipart_uploads", Bucket="new").get("Uploads", ()):
            if each["Key"].endswith(end):
                store.system.call_s3("abort_multipart_upload", Bucket="new", Key=each["Key"], UploadId=each["UploadId"])

    clear()
    path = planned("s3://old/m", "s3://new/to", folder / "s3.jsonl")
    return Place(store.rules, path, files, store.put, vanish, found, clear, abort)


def web_place(web: Web, folder: Path, model: Path) -> Place:
    shutil.copytree(model, web.root / "old" / "m")
    files = {f"old/m/{each.name}": each.read_bytes() for each in model.iterdir()}
    dest = folder / "to"

    def put(key: str, data: bytes) -> None:
        (web.root / key).write_bytes(data)

    def found() -> dict[str, bytes]:
        return {f"to/{each.name}": each.read_bytes() for each in dest.iterdir()} if dest.exists() else {}

    def clear() -> None:
        web.rules.clear()
        shutil.rmtree(dest, ignore_errors=True)
        for key, data in files.items():
            put(key, data)

    web.checksum = {f"/{key}": {"x-checksum-sha256": sha256(data).hexdigest()} for key, data in files.items()}
    path = planned(f"{web.url}/old/m", dest, folder / "https.jsonl")
    return Place(web.rules, path, files, put, lambda key: (web.root / key).unlink(), found, clear)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers()
    yield found
    found.end()


@pytest.fixture(autouse=True)
def hurry(workers: Workers) -> Iterator[pytest.MonkeyPatch]:
    with hurried(workers) as patch:
        yield patch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_llama(tmp_path_factory.mktemp("matrix") / "m")


@pytest.fixture(scope="module")
def s3(model: Path, tmp_path_factory: pytest.TempPathFactory, workers: Workers) -> Iterator[Place]:
    with s3_store() as store:
        yield whole(s3_place(store, tmp_path_factory.mktemp("s3"), model), workers)


@pytest.fixture(scope="module")
def https(model: Path, tmp_path_factory: pytest.TempPathFactory, workers: Workers) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("https")
    (folder / "site").mkdir()
    with web_server(folder / "site") as web:
        yield whole(web_place(web, folder, model), workers)


def whole(place: Place, workers: Workers) -> Place:
    """The place with the output that a run without faults gives."""
    with hurried(workers):
        assert apply(place, place.plan.with_suffix(".first")) == 0
    found = place.list()
    place.model = found[next(key for key in found if key.endswith(".gguf"))]
    place.clear()
    return place


def apply(place: Place, ledger: Path, *more: object) -> int:
    return ggferry(*command(place, ledger), *more)


def command(place: Place, ledger: Path) -> list[str]:
    options = ("-j", 1, "--threads", 1, "--attempts", 1, "--patience", 0.2, "--report", f"{ledger}.report")
    return [str(word) for word in ("apply", place.plan, "--ledger", ledger, *options)]


def apply_to_be_killed(place: Place, ledger: Path) -> int:
    """In a process of its own, which a request kills."""
    with subprocess.Popen([*GGFERRY, *command(place, ledger)], stdout=subprocess.DEVNULL) as process:
        place.kill[:] = [process]
        return process.wait(60)


# --- what happens --------------------------------------------------------------------------------------------------

TURNS = {"": "", "passing": "the same command tries them again", "person": "1 wait for you"}
OUTPUT = r"to/[^/]*\.gguf$"
REQUESTS: dict[str, dict[str, Any]] = {
    "source read": {"method": "GET", "key": r"model\.safetensors$", "span": r"^bytes=\d+-\d\d"},
    "sidecar read": {"method": "GET", "key": r"config\.json$", "span": "^$"},
    "key": {"method": "HEAD", "key": OUTPUT},
    "upload": {"method": "PUT", "key": "partial$", "query": "partNumber"},
    "upload's end": {"method": "POST", "key": "partial$", "query": "uploadId"},
    "read-back": {"method": "GET", "key": "partial$"},
    "copy": {"method": "PUT", "key": OUTPUT, "copy": True},
    "copy's end": {"method": "POST", "key": OUTPUT, "query": "uploadId"},
    "delete": {"method": "DELETE", "key": "partial$"},
    "receipt": {"method": "PUT", "key": r"receipt\.json$"},
}
SOURCES = {"source read": "old/m/model.safetensors", "sidecar read": "old/m/config.json"}


def arrange(place: Place, cell: Cell) -> None:
    """Have the fault happen."""
    probed = cell.fault == "killed" and cell.stage == "delete"  # by a process that does not know the store yet
    nth = () if cell.often == "lasting" else (2,) if probed else (1,)
    rule = Rule(fault=fault_of(place, cell), nth=nth, **REQUESTS[cell.stage])
    place.rules.rules.append(rule)


def fault_of(place: Place, cell: Cell) -> Any:
    """What the store is to do for the fault of that name, in the stage."""
    reads = cell.stage in (*SOURCES, "read-back")
    match cell.fault:
        case "cut":
            return "cut" if reads else "away" if cell.stage == "key" else "lost"
        case "slow":
            return lambda: time.sleep(0.3)
        case "wrong":
            # of a receipt S3 is sent the checksum, and refuses what does not have it; parts are read back besides
            return 400 if cell.stage == "receipt" else "damaged" if cell.stage == "upload" else "wrong"
        case "killed":
            return lambda: place.kill[0].kill()
        case "vanished":
            return lambda: vanish(place, cell.stage)
        case "changed":
            return lambda: change(place, cell.stage)
        case _:
            return int(cell.fault)


def vanish(place: Place, stage: str) -> None:
    """What the request is about is gone."""
    if stage in SOURCES:
        place.vanish(SOURCES[stage])
    elif stage in ("upload", "upload's end"):
        place.abort(".partial")
    elif stage == "copy's end":
        place.abort(".gguf")
    else:
        for key in partials(place):
            place.vanish(f"new/{key}")


def change(place: Place, stage: str) -> None:
    """It is another one; where nothing is there yet, something of somebody else's is."""
    if stage in SOURCES:
        place.put(SOURCES[stage], bytes(len(place.files[SOURCES[stage]])))
        return
    foreign = f"to/{NAME}.receipt.json" if stage == "receipt" else f"to/{NAME}"
    for key in partials(place) if stage in ("read-back", "copy", "delete") else [foreign]:
        place.put(f"new/{key}", FOREIGN)


def partials(place: Place) -> list[str]:
    return [key for key in place.list() if key.endswith(".partial") and not key.startswith(UPLOAD)]


# --- how it ends ---------------------------------------------------------------------------------------------------


def left(place: Place) -> str:
    """What is in the destination, in words."""
    names = []
    for key, data in sorted(place.list().items()):
        if key.startswith(UPLOAD):
            names.append("upload")
        elif data == FOREIGN:
            names.append("theirs")
        elif key.endswith(".gguf"):
            assert data == place.model
            names.append("output")
        elif key.endswith(".receipt.json"):
            names.append("receipt")
        else:
            assert ".partial" in key, key
            names.append("partial")
    return ", ".join(names) or "nothing"


def state(ledger: Path) -> str:
    book = Ledger(str(ledger))
    rows = book.rows(full=False)
    book.close()
    return ", ".join(f"{row['state']}" for row in rows) or "none"


def proved(place: Place, ledger: Path) -> None:
    """The end that every cell has to reach: done, with the whole output and the receipt of these very bytes."""
    assert state(ledger) == "done" and left(place) == "output, receipt"
    receipt = next(data for key, data in place.list().items() if key.endswith(".receipt.json"))
    assert json.loads(receipt)["output"]["files"][0]["blake3"] == blake3(place.model).hexdigest()


STORE_CELLS = [cell for cell in cells() if cell.store in ("s3", "https")]


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in STORE_CELLS if not cell.absent], ids=str)
def test_a_fault_of_a_store(
    cell: Cell, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place: Place = request.getfixturevalue(cell.store)
    ledger = tmp_path / "ledger"
    place.clear()
    arrange(place, cell)
    code = apply_to_be_killed(place, ledger) if cell.fault == "killed" else apply(place, ledger)
    said = "".join(capfd.readouterr())
    assert place.rules.rules[0].seen, "the stage was not reached"
    assert (state(ledger), str(code), left(place)) == (cell.state, cell.code, cell.left), said
    turn, _, words = cell.words.rpartition(": ")
    assert TURNS[turn] in said and words in said and "internal" not in said, said
    end_the_fault(place)
    assert apply(place, ledger, *(["--retry-failed"] if cell.rerun == "retry-failed" else [])) == 0
    proved(place, ledger)


def end_the_fault(place: Place) -> None:
    """The rules are gone, the sources are as they were planned, and what is somebody else's is moved away."""
    place.rules.clear()
    for key, data in place.files.items():
        place.put(key, data)
    for key, data in place.list().items():
        if data == FOREIGN:
            place.vanish(f"new/{key}")


def test_no_combination_is_left_out() -> None:
    """Every stage has a line for every fault, one with its reason where that makes no sense."""
    found = {(cell.store, cell.stage, cell.fault) for cell in cells()}
    wanted = {("s3", stage, fault) for stage in REQUESTS for fault in FAULTS}
    wanted |= {("https", stage, fault) for stage in SOURCES for fault in FAULTS}
    assert wanted <= found and all(cell.words for cell in cells() if cell.absent)
