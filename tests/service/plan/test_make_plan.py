"""The plan of an archive does not depend on what its workers read before."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ggferry.service.plan import make_plan as planning
from ggferry.service.plan.group_files import FILE, Group
from ggferry.service.plan.make_plan import PlanRequest, plan
from ggferry.service.storage.mirror import Mirror
from ggferry.service.workers.supervisor import OUT_OF_MEMORY, Answer, WorkerDied, WorkerFailed
from helpers.builders import Llama
from helpers.third_party_fixtures import FIXTURES


def _archive(root: Path) -> None:
    """Every container twice, with vocabularies of two sizes and one with a broken score; checkpoints twice."""
    for number in range(4):
        for container, version in (("ggml", None), ("ggmf", 1), ("ggjt", 1), ("ggjt", 3)):
            folder = root / f"{number}"
            folder.mkdir(parents=True, exist_ok=True)
            model = Llama(container=container, version=version, n_vocab=300 + number // 2, kind="F16", seed=number)
            data = bytearray(model.bytes())
            if number == 3:
                data[data.index(b"w17") - 4] = 255  # inside a vocabulary that the file before it has whole
            (folder / f"{container}{version}.bin").write_bytes(data)
    for name in ("qwen2", "gpt2", "mistral"):
        for number in range(2):
            shutil.copytree(FIXTURES / "hf" / "ckpt" / name, root / f"{name}-{number}")


@pytest.mark.slow
def test_workers_that_read_all_say_what_fresh_ones_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _archive(tmp_path / "in")
    wanted = PlanRequest((str(tmp_path / "in"),))
    _, together = plan(wanted)
    monkeypatch.setattr(planning, "HEADERS_A_WORKER", 1)
    _, alone = plan(wanted)
    assert together == alone
    verdicts = [entry.verdict for entry in together]
    assert verdicts.count("corrupt") == 4 and verdicts.count("convert") >= 8


class Worker:
    """A supervisor whose workers fail with `errors`, one after the other."""

    def __init__(self, *errors: str) -> None:
        self.errors, self.runs = list(errors), 0

    def run(self, command: Mapping[str, Any], timeout: float) -> Answer:
        self.runs += 1
        if self.errors and (death := getattr(signal, self.errors[0], None)):
            raise WorkerDied(f"ended by {self.errors.pop(0)}", death)
        if self.errors:
            raise WorkerFailed({"class": self.errors.pop(0)}, 0)
        return Answer({"options": {}, "container": "ggjt"}, 0)


@pytest.mark.parametrize(
    ("errors", "runs", "failed"),
    [
        ((), 1, False),
        ((OUT_OF_MEMORY,), 2, False),
        ((OUT_OF_MEMORY,) * 2, 2, True),
        (("CorruptError",), 1, True),
        (("UnreachableError",), 2, False),
        (("TransportError",) * 3, 3, True),
        (("SIGKILL",) * 2, 3, False),
        (("SIGKILL",) * 3, 3, True),
        (("SIGSEGV",), 1, True),
    ],
)
def test_want_of_memory_and_what_passes_are_tried_again(
    errors: tuple[str, ...], runs: int, failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "DELAYS", (0.0, 0.0))
    worker = Worker(*errors)
    group = Group(FILE, "a.bin", ("a.bin",))
    facts = planning._facts(group, PlanRequest(("/",)), worker, Mirror(""), {})  # type: ignore[arg-type]
    assert worker.runs == runs and ("error" in facts) == failed
    if failed:  # a worker that somebody killed says nothing of the file
        is_of_file = errors[-1] in ("CorruptError", "SIGSEGV")
        assert (planning._verdict(facts["error"]) == "corrupt") == is_of_file or errors[-1] == OUT_OF_MEMORY


def test_what_ends_a_thread_ends_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that nobody came to were lines of other files, and the exit code was 0."""

    def fail(*_: object) -> None:
        raise FileNotFoundError("the folder of a worker")

    Llama().write(tmp_path / "a.bin")
    monkeypatch.setattr(planning, "_facts", fail)
    with pytest.raises(FileNotFoundError, match="of a worker"):
        plan(PlanRequest((str(tmp_path),)))
