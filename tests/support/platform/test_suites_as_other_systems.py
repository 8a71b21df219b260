"""Whole suites, seeing what Windows or macOS would show them (helpers/as_system.py): the list grows."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from helpers import as_system
from helpers.third_party_fixtures import ROOT

pytestmark = pytest.mark.slow
SUITES = ("formats/files", "formats/gguf", "service/storage", "service/workers", "converters/write")
LEAST = 500
"""Tests of these suites, at least: a run that finds none would show nothing."""


@pytest.mark.parametrize("system", as_system.PLATFORMS)
def test_suites_pass_as(system: str) -> None:
    which = "not slow and not kills and not faults and not postgres and not browser"
    folders = [str(ROOT / "tests" / each) for each in SUITES]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "-m", which, *folders]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, as_system.VARIABLE: system}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= LEAST
