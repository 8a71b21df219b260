"""Models out of a store of Ollama's: found by structure, read with their texts; hostile manifests are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ggferry
from ggferry.formats.errors import GgferryError
from ggferry.formats.ollama.names import ModelName, parse_name
from helpers.ollama_store import LAYER, blob, everything, make_model, write_manifest

TEXTS = {"template": "{{ .Prompt }}", "params": '{"stop":["</s>"],"temperature":0.7}\n', "license": "MIT"}


@pytest.fixture(scope="module")
def model(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "m.gguf"
    ggferry.convert(fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin", out, verify="fast")
    return out


@pytest.fixture
def store(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "store"
    make_model(place, "library/tiny/latest", {"model": model}, TEXTS)
    monkeypatch.setenv("OLLAMA_MODELS", str(place))
    return place


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama3.2", ModelName("llama3.2")),
        ("ollama://llama3.2:3b", ModelName("llama3.2", "3b")),
        ("me/model:tag", ModelName("model", "tag", "me")),
        ("localhost:5000/me/model", ModelName("model", "latest", "me", "localhost:5000")),
        ("hf.co/bartowski/Llama-3.2-1B:Q4_K_M", ModelName("Llama-3.2-1B", "Q4_K_M", "bartowski", "hf.co")),
    ],
)
def test_names_are_read_as_ollama_reads_them(text: str, name: ModelName) -> None:
    assert parse_name(text) == name and parse_name(str(name)) == name


@pytest.mark.parametrize("text", ["", "ollama://", "a b", "../x", "a/../b", "x:", "/x", "a/b/c/d e", "x:y/z:", "-x"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(GgferryError, match="not the name of a model"):
        parse_name(text)


def test_a_model_is_found_by_name_manifest_and_store(store: Path, model: Path, tmp_path: Path) -> None:
    manifest = store / "manifests/registry.ollama.ai/library/tiny/latest"
    before = everything(store)
    for number, source in enumerate(("ollama://tiny", str(manifest), str(store))):
        done = ggferry.convert(source, tmp_path / f"{number}.gguf", verify="fast")
        found, plain = ggferry.inspect(done.output), ggferry.inspect(model)
        assert found.metadata["ollama.template"] == TEXTS["template"]
        assert json.loads(str(found.metadata["ollama.params"]))["temperature"] == 0.7
        assert found.metadata["ollama.name"] == "tiny:latest"
        assert {key: found.metadata[key] for key in plain.metadata} == dict(plain.metadata)
        assert done.grades == {"identical": len(plain.tensors)}
    assert everything(store) == before


def test_an_output_without_a_name_goes_where_one_stands(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = everything(store)
    manifest = store / "manifests/registry.ollama.ai/library/tiny/latest"
    assert Path(ggferry.convert(str(manifest), verify="fast").output).parent == here
    assert everything(store) == before


def test_an_unknown_name_is_answered_by_the_nearest(store: Path) -> None:
    with pytest.raises(GgferryError, match="found tny:latest, expected tiny:latest"):
        ggferry.inspect("ollama://tny")


def test_a_store_of_several_models_names_them(store: Path, model: Path) -> None:
    make_model(store, "me/other/7b", {"model": model})
    with pytest.raises(GgferryError, match="me/other:7b"):
        ggferry.inspect(str(store))


def bad(store: Path, case: str) -> str:
    record = json.loads((store / "manifests/registry.ollama.ai/library/tiny/latest").read_text())
    layer = record["layers"][0]
    if case == "digest":
        layer["digest"] = "sha256:../../../../etc/passwd"
    elif case == "absent":
        layer["digest"] = "sha256:" + "0" * 64
    elif case == "size":
        layer["size"] += 1
    elif case == "negative":
        layer["size"] = -1
    elif case == "layers":
        record["layers"] = {"mediaType": LAYER}
    elif case == "none":
        record["layers"] = record["layers"][1:]
    elif case == "twice":
        record["layers"].append(layer)
    elif case == "text":
        record["layers"].append({**blob(store, b"x", LAYER + "system"), "size": 1 << 40})
    elif case == "not gguf":
        record["layers"][0] = blob(store, b"PK\x03\x04" * 10, LAYER + "model")
    elif case == "link":
        outside = store.parent / "secret"
        outside.write_bytes((store / "blobs" / layer["digest"].replace(":", "-")).read_bytes())
        blob_path = store / "blobs" / ("sha256-" + "1" * 64)
        blob_path.symlink_to(outside)
        layer["digest"] = "sha256:" + "1" * 64
    return str(write_manifest(store, f"library/bad/{case.replace(' ', '-')}", record))


@pytest.mark.attack
@pytest.mark.parametrize(
    "case", ["digest", "absent", "size", "negative", "layers", "none", "twice", "text", "not gguf", "link"]
)
def test_a_manifest_that_is_wrong_is_refused_with_the_place(case: str, store: Path) -> None:
    path = bad(store, case)
    with pytest.raises(GgferryError) as caught:
        ggferry.inspect(path)
    assert caught.value.path and str(caught.value)


@pytest.mark.slow
def test_an_archive_may_be_a_store(store: Path, fixtures: Path, tmp_path: Path) -> None:
    plain = tmp_path / "f16.gguf"
    ggferry.convert(fixtures / "hf/ckpt/llama", plain, outtype="f16", verify="fast")
    make_model(store, "me/other/7b", {"model": plain}, TEXTS)
    before = everything(store)
    plan = tmp_path / "plan.jsonl"
    words = [str(store), "-o", str(plan), "--dest", str(tmp_path / "out"), "--outtype", "q8_0", "--allow-requantize"]
    for command in (["plan", *words], ["apply", str(plan)]):
        ran = subprocess.run([sys.executable, "-m", "ggferry", *command], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    made = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.gguf"))
    home = "manifests/registry.ollama.ai"
    assert made == [f"{home}/library/tiny/latest-Q8_0.gguf", f"{home}/me/other/7b-Q8_0.gguf"]
    assert everything(store) == before
    lines = [json.loads(line) for line in plan.read_text().splitlines()[1:]]
    assert [line["verdict"] for line in lines] == ["convert", "convert"]
