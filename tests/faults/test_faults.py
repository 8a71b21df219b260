"""Every command is interfered with at each of its system calls: `make faults` tries all, CI a sample of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from faults import archives, interference, material, uploads
from faults.interference import FAULTS
from faults.launcher import Launcher
from faults.scenarios import SCENARIOS

SWEEP = Path(__file__).with_name("sweep.py")
VISION_ENCODERS = ("mmproj", "mmproj-force")
SAMPLE = {
    "shards-force": ("kill", "eio"),
    "edit-in-place-anew": ("kill", "eio"),
    "safetensors-without-links": ("kill", "short"),
}
"""What CI tries at every seventh call: a set of shards replaced, a receipt that must not be lost, a folder."""
RAY = 25
"""A cluster takes fifteen seconds to start and to end."""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interference.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    material.make(folder)
    return folder


@pytest.fixture(scope="session")
def eyes(models: Path, fixtures: Path) -> Path:
    material.make_eyes(models, fixtures / "tokenizers" / "bpe_llama3")
    return models


def sweep(scenario: str, library: Path, models: Path, work: Path, *more: str) -> list[dict[str, Any]]:
    """Run sweep.py; return what it says of each fault."""
    orders = work / "orders"
    interference.create(orders)
    environment = {**os.environ, "LD_PRELOAD": str(library), interference.VARIABLE: str(orders)}
    command = [sys.executable, str(SWEEP), scenario, str(models), str(work / "w"), *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: list[dict[str, Any]]) -> None:
    for each in found:
        print(f"{each['scenario']:32} {each['fault']:10} {each['points']:4} points, {each['seconds']} s")
    wrong = [problem for each in found for problem in each["wrong"]]
    assert not wrong, "\n".join(wrong[:20])


def test_the_shim_interferes_with_the_call_it_is_told(library: Path, tmp_path: Path) -> None:
    """The N-th call fails, is cut short, or ends the process; calls elsewhere do not count."""
    orders = tmp_path / "orders"
    folder = tmp_path / "d"
    folder.mkdir()
    script = """
import os, sys
from faults.interference import *
orders, folder = shared(), sys.argv[1]
orders.folder, orders.at, orders.action, orders.error = os.fsencode(folder + "/"), int(sys.argv[2]), int(sys.argv[3]), 5
orders.armed = 1
done = []
def tell(call, *arguments):
    try:
        done.append(call(*arguments))
    except OSError as error:
        done.append(f"errno {error.errno}")
open(os.path.dirname(folder) + "/elsewhere", "w").close()
fd = os.open(folder + "/a", os.O_CREAT | os.O_WRONLY)
tell(os.write, fd, b"12345678")
tell(os.rename, folder + "/a", folder + "/b")
tell(os.unlink, folder + "/b")
orders.armed = 0
print(orders.count, *done)
"""
    environment = {**os.environ, "LD_PRELOAD": str(library), interference.VARIABLE: str(orders)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    said = {}
    fail, shorten, kill = interference.FAIL, interference.SHORTEN, interference.KILL_BEFORE
    for at, action in ((0, 0), (2, fail), (2, shorten), (4, fail), (3, kill)):
        for path in folder.iterdir():
            path.unlink()
        interference.create(orders)
        command = [sys.executable, "-c", script, str(folder), str(at), str(action)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said[at, action] = (done.returncode, done.stdout.strip(), sorted(os.listdir(folder)))
    assert said[0, 0] == (0, "4 8 None None", [])
    assert said[2, fail] == (0, "4 errno 5 None None", [])
    assert said[2, shorten] == (0, "4 4 None None", [])
    assert said[4, fail] == (0, "4 8 None errno 5", ["b"])
    assert said[3, kill] == (-9, "", ["a"])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SAMPLE)
def test_a_sample_of_all_points(scenario: str, library: Path, models: Path, tmp_path: Path) -> None:
    found = sweep(scenario, library, models, tmp_path, *SAMPLE[scenario], "--every", "7")
    assert all(each["points"] >= 5 for each in found)
    check(found)


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_point(
    scenario: str, fault: str, library: Path, models: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if scenario in VISION_ENCODERS:
        request.getfixturevalue("eyes")
    check(sweep(scenario, library, models, tmp_path, fault))


@pytest.fixture(scope="session")
def launcher(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(library, tmp_path_factory.mktemp("launcher"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def lanes(
    library: Path, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], archives.Lanes]:
    """Those of a command; every fault takes the same."""
    work = tmp_path_factory.mktemp("lanes")

    @cache
    def of(name: str) -> archives.Lanes:
        if name == "upload":
            return uploads.lanes(library, work / name, launcher.popen)
        return archives.lanes_of(name, library, work / name, launcher.popen)

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "fault", "points"),
    [("apply-delete-source", "kill", (4, 23)), ("apply", "eio", (4, 23)), ("recheck", "eio", (1, 5))],
)
def test_a_sample_of_all_points_of_an_archive(
    command: str, fault: str, points: tuple[int, int], library: Path, tmp_path: Path
) -> None:
    begin, every = points
    found = archives.lanes_of(command, library, tmp_path / "w").sweep(FAULTS[fault], slice(begin, None, every))
    assert found["points"] >= 1
    check([found])


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", archives.COMMANDS)
def test_every_point_of_an_archive(command: str, fault: str, lanes: Callable[[str], archives.Lanes]) -> None:
    found = lanes(command).sweep(FAULTS[fault], slice(4, None, RAY) if command == "apply-ray" else slice(None))
    assert found["points"] or found["calls"] < 5
    check([found])


@pytest.mark.slow
def test_a_sample_of_all_points_of_an_upload(library: Path, tmp_path: Path) -> None:
    check([uploads.lanes(library, tmp_path / "w").sweep(FAULTS["kill"], slice(3, None, 90))])


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
def test_every_point_of_an_upload(fault: str, lanes: Callable[[str], archives.Lanes]) -> None:
    check([lanes("upload").sweep(FAULTS[fault])])
