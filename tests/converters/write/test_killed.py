"""Kill it at any instant: no file that looks finished but is not, and a rerun picks up cleanly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.write.recovery import recover
from helpers.builders import Llama


def convert(source: Path, target: Path) -> list[str]:
    return [sys.executable, "-m", "ggferry", "convert", str(source), "-o", str(target), "--verify", "fast"]


@pytest.mark.parametrize("rounds", [pytest.param(6), pytest.param(60, marks=pytest.mark.slow)])
def test_sigkill_leaves_no_finished_file(tmp_path: Path, rounds: int) -> None:
    model = Llama(n_vocab=4000, n_embd=512, n_head=8, n_head_kv=4, n_layer=6, n_ff=1536, kind="F16", version=1)
    source = model.write(tmp_path / "model.bin")
    target = tmp_path / "out.gguf"
    started = time.monotonic()
    subprocess.run(convert(source, target), check=True, capture_output=True)
    whole = time.monotonic() - started
    reference = target.read_bytes()
    rng = random.Random(0)
    killed = 0
    for _ in range(rounds):
        target.unlink(missing_ok=True)
        process = subprocess.Popen(convert(source, target), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.0) * whole)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if target.exists():  # then it was published, and is whole
            assert target.read_bytes() == reference
            recover(str(target))
            assert (tmp_path / "out.gguf.receipt.json").exists()
    assert killed, "every run was over before it was killed"
    target.unlink(missing_ok=True)
    subprocess.run(convert(source, target), check=True, capture_output=True)
    assert target.read_bytes() == reference
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.slow
def test_interrupt_cleans_up(tmp_path: Path) -> None:
    model = Llama(n_vocab=20000, n_embd=512, n_head=8, n_head_kv=4, n_layer=8, n_ff=1536, kind="F16", version=1)
    source = model.write(tmp_path / "model.bin")
    target = tmp_path / "out.gguf"
    process = subprocess.Popen(
        convert(source, target),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    while not list(tmp_path.glob(".out.gguf.ggferry-*")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130, complaint
    assert complaint.endswith("interrupted; nothing unfinished was left behind\n")
    assert sorted(os.listdir(tmp_path)) == ["model.bin"]


def test_a_stale_partial_is_replaced_and_never_read_as_a_model(tmp_path: Path) -> None:
    source = Llama().write(tmp_path / "model.bin")
    target = tmp_path / "out.gguf"
    stale = tmp_path / ".out.gguf.ggferry-0123456789abcdef.partial"
    stale.write_bytes(b"GGUF" + bytes(1000))
    subprocess.run(convert(source, target), check=True, capture_output=True)
    assert len(open_checkpoint(str(target)).tensors) == len(Llama().tensors())
    assert not stale.exists()
