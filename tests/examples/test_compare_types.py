"""The script of examples/ converts, compares and draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.third_party_fixtures import ROOT

TYPES = ("q8_0", "q4_0")


@pytest.mark.slow
def test_it_draws_what_it_measured(tmp_path: Path) -> None:
    picture = tmp_path / "types.svg"
    command = [
        sys.executable,
        str(ROOT / "examples" / "compare_types.py"),
        "--types",
        ",".join(TYPES),
        "--svg",
        str(picture),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    rows = [re.split(r"\s+", line) for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == list(TYPES)
    sizes, errors = [int(row[1].replace(",", "")) for row in rows], [float(row[3]) for row in rows]
    assert sizes[0] > sizes[1] and errors[0] < errors[1] < 0.2
    words = ["".join(text.itertext()) for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {*TYPES, *(f"{size:,} bytes" for size in sizes)} <= {*words}
