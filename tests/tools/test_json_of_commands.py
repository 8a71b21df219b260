"""docs/schemas/commands: every command with `--json` has a schema, and prints what it says."""

from __future__ import annotations

import json
from pathlib import Path

import json_schemas
import man_pages
import pytest

from ggferry.service.cli.app import _run
from helpers.archive_tools import command
from helpers.schemas import faults
from helpers.server import serving
from helpers.vision_encoders import VISION_ENCODERS
from helpers.whisper_models import save_whisper

LEGACY = "legacy-llama/ggjt1-20230428/q4_0.bin"
ALWAYS = {"tokenize", "ledger show"}
"""Commands that print JSON without being asked for it."""


def test_every_command_that_prints_json_has_a_schema() -> None:
    said = {name for name, each in man_pages.commands().items() if any("--json" in one.opts for one in each.params)}
    assert {*said, *ALWAYS, "error"} == {name.replace("-", " ") for name in json_schemas.COMMANDS}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Path:
    """A folder with what the commands read: `{f}` of their arguments are the fixtures, `{t}` this folder."""
    folder = tmp_path_factory.mktemp("json")
    for line in (
        f"convert {fixtures / LEGACY} -o {folder}/a.gguf --verify fast",
        f"convert {fixtures}/hf/ckpt/llama -o {folder}/f.gguf --verify fast --outtype f32",
        f"split {folder}/a.gguf -o {folder}/s.gguf --split-max-tensors 8",
    ):
        assert _run(line.split()) == 0
    (folder / "text.txt").write_text("The cat sat on the mat, and the dog ate all of it. " * 40)
    VISION_ENCODERS["pixtral"].saved(folder / "eye", VISION_ENCODERS["pixtral"].tiny())
    save_whisper(folder / "whisper")
    (folder / "in").mkdir()
    (folder / "in" / "old.bin").write_bytes((fixtures / LEGACY).read_bytes())
    return folder


LINES = {
    "convert": "{f}/hf/ckpt/llama -o {t}/c1.gguf --verify fast",
    "convert, two types": "{f}/hf/ckpt/llama -o {t}/c2-{{outtype}}.gguf --outtype q8_0,f16 --verify fast",
    "convert, a plan": "{f}/hf/ckpt/llama --outtype q8_0 --dry-run",
    "convert, two plans": "{f}/hf/ckpt/llama --outtype q8_0,f16 --dry-run",
    "convert, a folder": "{t}/a.gguf --to safetensors -o {t}/folder --verify fast",
    "convert, a folder planned": "{t}/a.gguf --to safetensors -o {t}/folder2 --dry-run",
    "convert, for MLX": "{t}/a.gguf --to mlx -o {t}/mlx --verify fast",
    "convert, for whisper.cpp": "{t}/whisper --to whisper.cpp -o {t}/w.bin --verify fast",
    "convert, for whisper.cpp planned": "{t}/whisper --to whisper.cpp -o {t}/w2.bin --dry-run",
    "convert, two halves": "{t}/eye -o {t}/half.gguf --verify fast --no-vocab",
    "convert, two halves planned": "{t}/eye --no-vocab --dry-run",
    "quantize": "{t}/f.gguf {t}/q1.gguf q8_0 --verify fast",
    "quantize, a plan": "{t}/f.gguf {t}/q2.gguf q8_0 --dry-run",
    "verify": "{f}/" + LEGACY + " {t}/a.gguf",
    "verify, a folder": "{t}/a.gguf {t}/folder",
    "verify, a file alone": "{t}/a.gguf",
    "verify, a sample": "{t}/a.gguf --sample 50%",
    "inspect": "{t}/a.gguf",
    "inspect, legacy": "{f}/" + LEGACY,
    "inspect, a folder": "{f}/hf/ckpt/llama",
    "inspect, tokens": "{t}/a.gguf --tokens 0:4",
    "inspect, a dump": "{t}/a.gguf --hex",
    "inspect, a template": "{f}/hf/ckpt/llama --template",
    "inspect, sizes": "{t}/a.gguf --sizes --context 512",
    "forward": "{t}/f.gguf --tokens 1,2,3 --out {t}/rows.npy",
    "imatrix": "{t}/f.gguf --text {t}/text.txt -o {t}/m.gguf --chunk-size 32 --chunks 2",
    "imatrix, statistics": "{t}/m.gguf --show-statistics",
    "tokenize": "{t}/a.gguf --text hello",
    "architectures": "",
    "architectures, coverage": "--coverage benchmarks/convert_hf_to_gguf_classes.json",
    "types": "",
    "edit, a plan": "{t}/a.gguf --set general.name=x --dry-run",
    "edit": "{t}/a.gguf --set general.name=x -o {t}/e.gguf",
    "edit, recovered": "{t}/a.gguf --recover",
    "doctor": "{t}/a.gguf {f}/" + LEGACY,
    "hash": "{t}/a.gguf",
    "diff": "{t}/a.gguf {t}/e.gguf",
    "diff, values": "{t}/f.gguf {t}/q1.gguf",
    "compare": "{t}/f.gguf {t}/q1.gguf --text {t}/text.txt --ctx 32 --chunks 2",
    "split": "{t}/a.gguf -o {t}/s2.gguf --split-max-tensors 8",
    "split, a plan": "{t}/a.gguf -o {t}/s3.gguf --split-max-tensors 8 --dry-run",
    "merge": "{t}/s-00001-of-00003.gguf -o {t}/merged.gguf",
    "merge, checked": "{t}/s-00001-of-00003.gguf --check {t}/a.gguf",
    "publish": "{t}/c1.gguf --to hf://me/x --dry-run",
    "plan": "{t}/in -o {t}/plan.jsonl --dest {t}/out",
    "apply, a survey": "{t}/plan.jsonl --dry-run",
    "apply": "{t}/plan.jsonl --yes",
    "ledger status": "{t}/plan.jsonl.ledger",
    "ledger list": "{t}/plan.jsonl.ledger",
    "ledger recheck": "{t}/plan.jsonl.ledger",
}
"""What is run, in this order: later ones read what earlier ones wrote."""
FAILS = {"diff": 1, "diff, values": 1}


def faults_of(command: str, text: str) -> list[str]:
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    assert lines
    return [fault for line in lines for fault in faults(f"commands/{command.replace(' ', '-')}", line)]


@pytest.mark.slow
def test_what_commands_print(place: Path, fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, list[str]] = {}
    capsys.readouterr()
    for title, line in LINES.items():
        name = title.partition(",")[0]
        given = line.format(f=fixtures, t=place).split()
        form = [] if name in ALWAYS else ["--json"]
        code = _run([*name.split(), *given, *form])
        out = capsys.readouterr()
        if code != FAILS.get(title, 0):
            found[title] = [f"exit code {code}: {out.err}"]
        elif wrong := faults_of(name, out.out):
            found[title] = wrong
    assert not found, "\n".join(f"{title}: {fault[-700:]}" for title, wrong in found.items() for fault in wrong)


def test_an_error(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["inspect", str(place / "absent.gguf"), "--json"]) == 3
    assert faults_of("error", capsys.readouterr().out) == []


def test_what_is_undeclared_is_found(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["hash", str(place / "a.gguf"), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert faults_of("hash", json.dumps(value)) == []
    assert faults_of("hash", json.dumps({**value, "more": 1}))
    assert faults_of("hash", json.dumps({**value, "path": 1}))


@pytest.mark.slow
def test_what_the_server_and_its_client_print(tmp_path: Path, fixtures: Path) -> None:
    """In this order; {job} is the id that the first line printed."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "old.bin").write_bytes((fixtures / LEGACY).read_bytes())
    serve, job = ("serve", "--data", str(tmp_path / "data")), ""
    found: dict[str, list[str]] = {}
    with serving(tmp_path / "data", "--root", tmp_path / "root", "--drain", "1") as server:
        env = {"GGFERRY_SERVER": server.url, "GGFERRY_TOKEN": server.token}
        for name, line in {
            "remote submit": f"server:{tmp_path}/root/old.bin -O verify=fast",
            "remote wait": "{job}",
            "remote submit, and wait": f"{fixtures / LEGACY} --wait -O verify=fast -O model_name=x",
            "remote status": "{job}",
            "remote status, of all": "",
            "remote list": "old",
            "remote fetch": f"{{job}} -o {tmp_path}/new",
            "remote uploads": "",
            "remote delete": "{job}",
            "serve token add": "ci --scope read",
            "serve token list": "",
            "serve webhook add": "https://example.org/hook",
            "serve webhook list": "",
            "serve audit": "",
            "serve backup": f"{tmp_path}/kept.tar",
        }.items():
            words = name.partition(",")[0].split()
            start = [*serve, *words[1:]] if words[0] == "serve" else words
            out = command(*start, *line.format(job=job).split(), "--json", **env).stdout
            job = job or json.loads(out)["jobs"][0]
            found[name] = faults_of(" ".join(words), out)
    out = command("serve", "--data", tmp_path / "again", "restore", tmp_path / "kept.tar", "--json").stdout
    found["serve restore"] = faults_of("serve restore", out)
    wrong = {name: faults for name, faults in found.items() if faults}
    assert not wrong, "\n".join(f"{name}: {fault[-900:]}" for name, faults in wrong.items() for fault in faults)


@pytest.mark.slow
def test_a_job_of_an_archive(place: Path, tmp_path: Path) -> None:
    command("plan", place / "in", "-o", tmp_path / "plan.jsonl", "--dest", tmp_path / "out")
    command("apply", tmp_path / "plan.jsonl")
    ledger = f"{tmp_path}/plan.jsonl.ledger"
    job = json.loads(command("ledger", "list", ledger, "--json").stdout)["id"]
    shown = json.dumps(json.loads(command("ledger", "show", ledger, job).stdout))
    assert faults_of("ledger show", shown) == []
