"""A few cases of every fuzz target: that it runs, goes on from its seeds, and finds nothing.

The same cases each time: what `make fuzz` finds today must not end a run that has nothing to do with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.run import found, fuzz
from fuzz.targets import READER, TARGETS, TOOL


def test_every_kind_is_there() -> None:
    kinds = [target.kind for target in TARGETS.values()]
    assert kinds.count(READER) == 22 and kinds.count(TOOL) == 9
    assert all(name == target.name for name, target in TARGETS.items())


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_runs(name: str, tmp_path: Path) -> None:
    """Without a fuzzer: what the targets do with sound files must not end in anything but our errors."""
    from ggferry.formats.errors import GgferryError

    seeds = [seed for seed in TARGETS[name].seeds() if len(seed) <= TARGETS[name].most][:4]
    assert seeds
    for number, seed in enumerate(seeds):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            TARGETS[name].run(seed, folder)
        except GgferryError as error:
            assert str(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_few_cases(name: str, tmp_path: Path) -> None:
    cases, coverage, _ = fuzz(name, tmp_path, 10, 200, seed=1)
    assert cases > 0 and coverage > 50
    assert found(tmp_path, name) == []
