"""`split` and `merge`, killed at any instant: no file that looks finished but is not, and a rerun picks up cleanly."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ggferry.formats.gguf.values import string
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import codec
from helpers.attack_tools import typed


def large(path: Path, tensors: int = 12) -> Path:
    """A file of 24 MB, so that a run takes a while."""
    kind, data = codec("F32").type, np.arange(1 << 19, dtype="<f4").tobytes()
    write_gguf(
        path, {"general.architecture": string("llama")}, [(f"t{n}", kind, (1 << 19,), data) for n in range(tensors)]
    )
    return path


@pytest.mark.slow
def test_sigkill_leaves_no_finished_file(tmp_path: Path) -> None:
    whole = large(tmp_path / "whole.gguf")
    raw = whole.read_bytes()
    commands = (
        ["split", str(whole), "--split-max-tensors", "2", "-o", str(tmp_path / "cut"), "--force"],
        ["merge", str(tmp_path / "cut-00001-of-00006.gguf"), "-o", str(tmp_path / "out.gguf"), "--force"],
    )
    rng = random.Random(0)
    for arguments in commands:
        command = [sys.executable, "-m", "ggferry", *arguments]
        started = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        took, killed = time.monotonic() - started, 0
        for _ in range(30):
            for path in (tmp_path / "out.gguf", *(tmp_path.glob("cut-*") if arguments[0] == "split" else ())):
                path.unlink(missing_ok=True)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.2, 1.0) * took)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            first = tmp_path / "cut-00001-of-00006.gguf"
            if arguments[0] == "split" and first.exists():  # the last to get its name
                assert typed("split", whole, "--check", first).code == 0
            if (tmp_path / "out.gguf").exists():
                assert (tmp_path / "out.gguf").read_bytes() == raw
        assert killed, "every run was over before it was killed"
        subprocess.run(command, check=True, capture_output=True)
        assert not list(tmp_path.glob(".*.partial"))
    assert (tmp_path / "out.gguf").read_bytes() == raw
