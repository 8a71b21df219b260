"""The commands as a user types them: output, exit codes, and that nobody ever sees a traceback."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from ggferry.converters.metadata.file_names import parse_filename
from ggferry.service.cli.app import COMMANDS
from helpers.builders import Llama

BIN = Path(sys.executable).parent


def run(*arguments: str | Path, name: str = "ggferry", **options) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([BIN / name, *map(str, arguments)], capture_output=True, text=True, check=False, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Llama(kind="F16", version=1).write(tmp_path_factory.mktemp("cli") / "tiny-llama.ggmlv3.f16.bin")


@pytest.mark.slow
def test_the_cards_command_as_typed(tmp_path: Path) -> None:
    source = Llama().write(tmp_path / "old.bin")
    done = run("old.bin", "--to", "gguf", name="convert", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (output,) = tmp_path.glob("*.gguf")
    assert parse_filename(output.name) is not None, output.name
    assert (tmp_path / f"{output.name}.receipt.json").exists()
    read, wrote, proved = done.stdout.splitlines()
    assert read.startswith("read") and "GGJT v3" in read and str(source.name) in read
    assert wrote.startswith("wrote") and output.name in wrote and proved.startswith("proved")
    assert "assumed" in done.stderr, "what the file does not state is said on screen"
    again = run("old.bin", "--to", "gguf", name="convert", cwd=tmp_path)
    assert again.returncode == 7 and "--force" in again.stderr
    assert run("old.bin", "--force", name="convert", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_json_is_one_object_and_the_receipt_is_the_files(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    done = run("convert", model, "-o", target, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["path"] == str(target)
    assert answer["receipt"] == json.loads((tmp_path / "out.gguf.receipt.json").read_text())


def test_dry_run_writes_nothing(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    done = run("convert", model, "-o", target, "--dry-run", "--json", "--outtype", "q8_0")
    plan = json.loads(done.stdout)
    assert not list(tmp_path.iterdir())
    assert {t["type"] for t in plan["tensors"]} == {"Q8_0", "F32"}
    run("convert", model, "-o", target, "--outtype", "q8_0", "--verify", "fast")
    assert plan["bytes_written"] == target.stat().st_size


@pytest.mark.slow
def test_inspect_and_verify_and_forward(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    assert run("convert", model, "-o", target).returncode == 0
    for path, container in ((model, "ggjt"), (target, "gguf")):
        facts = json.loads(run("inspect", path, "--json").stdout)
        assert facts["model"] == {"architecture": "llama", "runtimes": ["llama.cpp"], "reservations": []}
        assert facts["container"] == container and len(facts["tensors"]) == 30
        assert all(t["bytes"] and t["spans"] and t["type"] and t["shape"] for t in facts["tensors"])
        assert container.upper() in run("inspect", path).stdout
    done = run("verify", model, target, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["verified"] is True
    arrays = []
    for path in (model, target):
        out = tmp_path / f"{path.stem}.npy"
        assert run("forward", path, "--tokens", "1,299,17", "--out", out).returncode == 0
        arrays.append(np.load(out))
    assert arrays[0].shape == (3, 300) and arrays[0].dtype == np.float32
    assert np.array_equal(arrays[0], arrays[1])


def test_only_outputs_are_verified(model: Path, fixtures: Path) -> None:
    """What is no GGUF file is named, with the way round that is a proof."""
    done = run("verify", model, fixtures / "hf" / "ckpt" / "llama")
    assert done.returncode == 2
    assert "only GGUF files" in done.stderr and "ggferry verify FOLDER FILE.gguf" in done.stderr


@pytest.mark.slow
def test_verify_sees_a_changed_output_with_and_without_its_receipt(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    run("convert", model, "-o", target, "--verify", "fast")
    data = bytearray(target.read_bytes())
    data[-200] ^= 1
    target.write_bytes(data)
    assert run("verify", model, target).returncode == 6
    (tmp_path / "out.gguf.receipt.json").unlink()
    done = run("verify", model, target)
    assert done.returncode == 6 and "row" in done.stderr


@pytest.mark.slow
def test_verify_remembers_what_the_user_stated(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    run("convert", model, "-o", target, "--hparam", "attention.layer_norm_rms_epsilon=3e-6")
    assert run("verify", model, target).returncode == 0
    (tmp_path / "out.gguf.receipt.json").unlink()
    done = run("verify", model, target)
    assert done.returncode == 6 and "--hparam" in done.stderr
    assert run("verify", model, target, "--hparam", "attention.layer_norm_rms_epsilon=3e-6").returncode == 0


def test_tokenize(fixtures: Path, tmp_path: Path) -> None:
    root = fixtures / "legacy-llama"
    manifest = json.loads((root / "MANIFEST.json").read_text())
    entry = next(e for e in manifest["files"] if e["file"] == "ggjt3-20230821/q4_0.bin")
    done = run("tokenize", root / entry["file"], "--file", root / "sentences.txt")
    ids = [json.loads(line) for line in done.stdout.splitlines()]
    assert ids == entry["tokens_with_leading_space"]
    bare = run("tokenize", root / entry["file"], "--file", root / "sentences.txt", "--no-bos")
    assert [json.loads(line) for line in bare.stdout.splitlines()] == [line[1:] for line in ids]
    one = run("tokenize", root / entry["file"], "--text", "x", "--text", "naïve café — déjà vu")
    assert [json.loads(line) for line in one.stdout.splitlines()] == [ids[8], ids[4]]


REFUSALS = {
    "usage: unknown type": (["convert", "{model}", "--outtype", "q9_9"], 2),
    "usage: unknown target": (["convert", "{model}", "--to", "onnx"], 2),
    "usage: bad hparam": (["convert", "{model}", "--hparam", "x"], 2),
    "usage: tokens": (["forward", "{model}", "--tokens", "a", "--out", "{tmp}/x.npy"], 2),
    "usage: token outside": (["forward", "{model}", "--tokens", "300", "--out", "{tmp}/x.npy"], 2),
    "usage: no such command": (["konvert"], 2),
    "not found": (["inspect", "{tmp}/absent.bin"], 3),
    "unsupported: nothing known": (["inspect", "{tmp}/noise"], 4),
    "corrupt: adapter": (["convert", "{tmp}/ggla.bin"], 5),
    "corrupt: cut": (["convert", "{tmp}/cut.bin"], 5),
    "corrupt: empty": (["convert", "{tmp}/empty"], 5),
    "refused: lossy": (["convert", "{tmp}/q4.bin", "--outtype", "q8_0"], 7),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_exit_codes(case: str, model: Path, tmp_path: Path) -> None:
    arguments, code = REFUSALS[case]
    (tmp_path / "noise").write_bytes(b"\x01\x02\x03\x04" * 100)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "ggla.bin").write_bytes(b"algg" + bytes(64))
    (tmp_path / "cut.bin").write_bytes(model.read_bytes()[:-100])
    Llama(kind="Q4_0").write(tmp_path / "q4.bin")
    before = sorted(os.listdir(tmp_path))
    done = run(*[a.format(model=model, tmp=tmp_path) for a in arguments])
    assert done.returncode == code, done.stderr
    assert sorted(os.listdir(tmp_path)) == before, "a refusal writes nothing"
    if code > 2:
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        answer = json.loads(run(*[a.format(model=model, tmp=tmp_path) for a in arguments], "--json").stdout)
        assert answer["error"]["exit_code"] == code and answer["error"]["code"]
        assert line


def test_a_full_disk_is_one_line(model: Path) -> None:
    done = run("convert", model, "-o", "/dev/full/x.gguf")
    assert done.returncode in (1, 3) and done.stderr.count("error:") == 1


def test_names_from_files_cannot_reach_the_terminal(tmp_path: Path) -> None:
    data = Llama().bytes().replace(b"layers.2.ffn_norm.weight", b"layers.2.\x1b[31mnorm.weig!")
    path = tmp_path / "evil.bin"
    path.write_bytes(data)
    done = run("inspect", path)
    assert "\x1b" not in done.stdout + done.stderr
    done = run("convert", path)
    assert done.returncode == 5 and "\x1b" not in done.stderr


def test_quick_answers_are_quick(model: Path) -> None:
    """< 0.3 s of CPU on an idle machine. Asserted against the interpreter's own start, measured beside it."""

    def cpu(*command: str | Path) -> float:
        best = 9.0
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(list(map(str, command)), capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return best

    base = cpu(sys.executable, "-c", "import json, dataclasses, typing, inspect, email.message")
    assert cpu(BIN / "ggferry", "--help") < 8 * base
    assert cpu(BIN / "ggferry", "inspect", model) < 8 * base


def test_version() -> None:
    assert run("--version").stdout.startswith("ggferry ")
    assert run("--version", name="convert").stdout == run("--version").stdout


@pytest.mark.slow
def test_compiling_is_said_where_it_happens(tmp_path: Path) -> None:
    """Not on a second run, whose kernels are in numba's cache: then nothing of numba's compiler is even set up."""
    model = Llama(n_embd=256, n_head=8, n_head_kv=4, n_ff=512, kind="F16", version=1).write(tmp_path / "m.bin")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first, second = (
        run("convert", model, "-o", tmp_path / f"{n}.gguf", "--outtype", "q8_0", "--verify", "fast", env=environment)
        for n in (1, 2)
    )
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stderr.count("compiling the kernels") == 1
    assert "compiling the kernels" not in second.stderr
    program = (
        "import sys, numpy as np; from ggferry.quant.codec import codec;"
        "codec('Q8_0').encode(np.ones((2, 256), np.float32), None); print('numba.np.linalg' in sys.modules)"
    )
    warm = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert warm.stdout.split() == ["False"]


def test_the_overview_names_every_command_with_a_sentence_that_is_not_cut() -> None:
    for module, words in COMMANDS.items():
        made = get_command(import_module(f"ggferry.service.cli.{module}").commands)
        assert list(words) == list(getattr(made, "commands", {made.name: made})), module
    overview = run("--help").stdout
    for name, sentence in ((name, each) for words in COMMANDS.values() for name, each in words.items()):
        assert re.search(rf"^  {name} +{re.escape(sentence)}$", overview, re.MULTILINE), name


def test_a_command_behind_two_dashes_is_that_command(model: Path) -> None:
    assert run("--", "inspect", model).stdout == run("inspect", model).stdout


def test_without_torch_a_forward_pass_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    """An installation without dependencies, where PyPI has no torch for a system."""
    program = "import sys; sys.modules['torch'] = None; from ggferry.service.cli.start import main; sys.exit(main())"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, "convert", str(model), "-o", str(tmp_path / "a.gguf"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = run()
    assert refused.returncode == 2 and "--verify fast" in refused.stderr and "internal" not in refused.stderr
    assert [*tmp_path.glob("a.gguf*")] == []
    assert run("--verify", "fast").returncode == 0
