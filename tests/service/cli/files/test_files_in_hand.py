"""Files with flipped bytes, cut anywhere: every command on files in hand ends in a result or in one of our errors."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from helpers.attack_tools import typed

pytestmark = pytest.mark.attack

OURS = (0, 1, 2, 4, 5, 6, 7)


@pytest.mark.parametrize("rounds", [6, pytest.param(150, marks=pytest.mark.slow)])
def test_damaged_headers(tmp_path: Path, fixtures: Path, rounds: int) -> None:
    source = fixtures / "hf" / "out" / "llama" / "llama.q8_0.gguf"
    whole, rng, file, done = source.read_bytes(), random.Random(rounds), tmp_path / "a.gguf", set()
    for _ in range(rounds):
        raw = bytearray(whole)
        for _ in range(rng.choice((1, 2, 4))):
            raw[rng.randrange(13_000)] = rng.randrange(256)
        if rng.random() < 0.15:
            del raw[rng.randrange(len(raw)) :]
        file.write_bytes(raw)
        for command in (
            [
                "edit",
                file,
                "--set",
                "tokenizer.ggml.tokens[5]=x",
                "--special-token",
                "eos=3",
                "-o",
                tmp_path / "o",
                "--force",
            ],
            ["split", file, "--split-max-tensors", "6", "-o", tmp_path / "c", "--force"],
            ["hash", file],
            ["verify", file],
            ["diff", file, source],
            ["edit", file, "--set", "general.name=y", "--in-place", "--allow-broken"],
        ):
            found = typed(*command)
            assert found.code in OURS, found.err
            done.add(found.code)
        assert found.code == 0 or file.read_bytes() == bytes(raw)
    assert {0, 5} <= done
    assert not [name for name in os.listdir(tmp_path) if "partial" in name or "journal" in name]


@pytest.mark.parametrize("verb", ["edit", "split", "merge", "hash", "verify", "diff"])
def test_what_is_no_file(tmp_path: Path, fixtures: Path, verb: str) -> None:
    os.mkfifo(tmp_path / "fifo.gguf.part1of2")
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html>")
    (tmp_path / "empty.gguf").write_bytes(b"")
    more = {"edit": ["--set", "a.b=c", "--in-place"], "diff": [fixtures / "hf" / "out" / "llama" / "llama.q8_0.gguf"]}
    for name, codes in (
        ("fifo.gguf.part1of2", (3,)),
        ("page.gguf", (4,)),
        ("empty.gguf", (5,)),
        ("none.gguf", (3,)),
        ("", (2, 3, 4)),
    ):
        done = typed(verb, tmp_path / name, *more.get(verb, []))
        assert done.code in codes and done.err.startswith("error: "), (name, done)
