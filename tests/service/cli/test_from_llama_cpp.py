"""docs/from-llama-cpp.md: every command of it is one, its options exist, and gguf-dump's own list is whole."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from safetensors.numpy import load_file, save_file

import ggferry
from ggferry.service.cli.app import COMMANDS

PAGE = Path(ggferry.__file__).parent / "docs/from-llama-cpp.md"
TEXT = PAGE.read_text()
OURS = re.findall(r"`(ggferry [^`]+)`", TEXT)


def command(name: str) -> Any:
    module = next(module for module, names in COMMANDS.items() if name in names)
    app = typer.Typer()
    app.add_typer(import_module(f"ggferry.service.cli.{module}").commands)
    app.command("other")(lambda: None)
    group = typer.main.get_command(app)
    return group.commands[name]  # type: ignore[attr-defined]


def test_the_page_has_every_tool() -> None:
    assert len(OURS) > 30 and TEXT.count("\n## ") == 7


@pytest.mark.parametrize("line", OURS)
def test_what_the_page_says_can_be_typed(line: str) -> None:
    words = shlex.split(line.replace("\\|", "|"))[1:]
    found = command(words[0])
    options = {flag: each for each in found.params for flag in (*each.opts, *each.secondary_opts)}
    given = [word for word in words[1:] if word.startswith("--")]
    assert [word for word in given if word not in options] == []
    values = sum(not options[word].is_flag for word in given)
    places = sum(each.param_type_name == "argument" for each in found.params)
    several = any(each.nargs == -1 for each in found.params if each.param_type_name == "argument")
    plain = len(words) - 1 - len(given) - values
    assert plain >= 0 and (plain <= places or several)


@pytest.mark.slow
def test_no_option_of_gguf_dump_is_missing() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "gguf.scripts.gguf_dump", "--help"], capture_output=True, text=True, check=True
    )
    flags = {flag for flag in re.findall(r"(?<![\w-])--[a-z-]+", run.stdout) if flag != "--help"}
    assert {"--json", "--markdown", "--no-tensors"} <= flags
    assert [flag for flag in sorted(flags) if flag not in TEXT] == []


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ggferry", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def model(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "m.gguf"
    old = fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin"
    assert run("convert", str(old), "-o", str(out), "--verify", "fast").returncode == 0
    return out


def test_split_and_merge_take_names_in_llama_gguf_splits_order(model: Path, tmp_path: Path) -> None:
    assert run("split", str(model), str(tmp_path / "out"), "--split-max-tensors", "8").returncode == 0
    first = tmp_path / "out-00001-of-00003.gguf"
    assert run("merge", str(first), str(tmp_path / "whole.gguf")).returncode == 0
    assert (tmp_path / "whole.gguf").read_bytes() == model.read_bytes()
    twice = run("split", str(model), str(tmp_path / "a"), "-o", str(tmp_path / "b"))
    assert twice.returncode == 2 and "two names to write to" in twice.stderr


@pytest.mark.parametrize(("dtype", "outtype"), [("float16", "F16"), ("bfloat16", "BF16"), ("float32", "F16")])
def test_auto_is_the_half_precision_that_the_first_matrix_is_nearest_to(
    dtype: str, outtype: str, fixtures: Path, tmp_path: Path
) -> None:
    import ml_dtypes

    source = tmp_path / "llama"
    shutil.copytree(fixtures / "hf/ckpt/llama", source)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    tensors = {name: values.astype(kind) for name, values in load_file(source / "model.safetensors").items()}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    done = ggferry.convert(source, tmp_path / "m-{outtype}.gguf", outtype="auto", verify="fast")
    assert Path(done.output).name == f"m-{outtype.lower()}.gguf"
    found = ggferry.inspect(done.output)
    assert found.tensors["blk.0.attn_q.weight"].type == outtype
    ggferry.verify(source, done.output, level="fast")


@pytest.mark.slow
def test_a_plan_takes_auto_and_names_outputs_without_it(fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "hf/ckpt/llama", tmp_path / "models/llama")
    plan = tmp_path / "plan.jsonl"
    told = run("plan", str(tmp_path / "models"), "-o", str(plan), "--dest", str(tmp_path / "out"), "--outtype", "auto")
    assert told.returncode == 0, told.stderr
    assert run("apply", str(plan)).returncode == 0
    (made,) = (tmp_path / "out").rglob("*.gguf")
    assert "auto" not in made.name.lower()
    assert ggferry.inspect(made).tensors["blk.0.attn_q.weight"].type == "F16"


def dumped(*words: str) -> str:
    command = [sys.executable, "-m", "gguf.scripts.gguf_dump", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_views_of_gguf_dump(model: Path, fixtures: Path) -> None:
    """Its numbers, keys and arrays, by its own program."""
    for view in ("--data-offset", "--data-alignment"):
        assert run("inspect", str(model), view).stdout == dumped(view, str(model))
    ours = json.loads(run("inspect", str(model), "--json-array").stdout)["metadata"]
    theirs = json.loads(dumped("--json", "--json-array", str(model)))["metadata"]
    named = {key: each["value"] for key, each in theirs.items() if not key.startswith("GGUF.")}
    name, tokens = "tokenizer.ggml.tokens", ours["tokenizer.ggml.tokens"]["value"]
    assert {*ours} == {*named} and tokens == named[name] and len(tokens) == 512
    lines = run("inspect", str(model), "--no-tensors").stdout
    assert all(key in lines for key in named) and "blk.0.attn_q.weight" not in lines
    refused = run("inspect", str(fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin"), "--data-offset")
    assert refused.returncode == 2 and "are for GGUF files" in refused.stderr


def test_markdown_has_every_key_and_tensor_in_a_table(model: Path) -> None:
    told = run("inspect", str(model), "--markdown")
    rows = [line for line in told.stdout.splitlines() if line.startswith("| ")]
    found = ggferry.inspect(model)
    assert len(rows) == len(found.metadata) + len(found.tensors) + 2
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (4, 5) for line in rows)


@pytest.mark.unix("names with control characters, which Windows refuses")
def test_ggferry_alone_says_what_can_be_done_with_the_folder(model: Path, fixtures: Path, tmp_path: Path) -> None:
    nothing = run(cwd=tmp_path)
    assert nothing.returncode == 2 and "In this folder" not in nothing.stderr
    shutil.copy(model, tmp_path / "a b.gguf")
    shutil.copy(fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin", tmp_path / "x\x1b[2J.bin")
    told = run(cwd=tmp_path).stderr
    assert "ggferry quantize 'a b.gguf' 'a b-Q4_K_M.gguf' q4_k_m" in told
    assert "ggferry plan . -o plan.jsonl" in told and "\x1b" not in told
    folder = run(cwd=fixtures / "hf/ckpt/llama").stderr
    assert "ggferry convert . --outtype q4_k_m" in folder
