"""The list of standard keys is what the installed gguf-py says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.third_party_fixtures import ROOT


@pytest.mark.slow
def test_the_list_is_what_the_script_makes_of_the_installed_gguf() -> None:
    made = subprocess.run(
        [sys.executable, "tools/gguf_py_keys.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = (ROOT / "converters" / "rewrite" / "keys" / "standard_keys.txt").read_text()
    assert made.splitlines()[1:] == listed.splitlines()[1:] and len(made.splitlines()) > 200
