"""Models into a store of Ollama's: blobs under their digests, a manifest as Ollama's own, nothing else touched."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ggferry
from ggferry.formats.errors import GgferryError, RefusedError, UsageError
from ggferry.service.destinations import ollama
from ggferry.service.destinations.ollama import OllamaDestination, human_number
from helpers.multimodal import save
from helpers.ollama_store import everything, make_model

LAYER = "application/vnd.ollama.image."


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "store"
    monkeypatch.setenv("OLLAMA_MODELS", str(place))
    return place


@pytest.fixture
def old(fixtures: Path) -> Path:
    return fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin"


def layers(store: Path, name: str) -> dict[str, Any]:
    """The layers of a model by their media types, after everything that Ollama checks of them."""
    record = json.loads((store / "manifests/registry.ollama.ai" / name).read_text())
    assert record["schemaVersion"] == 2
    assert record["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    for layer in (*record["layers"], record["config"]):
        data = (store / "blobs" / layer["digest"].replace(":", "-")).read_bytes()
        assert layer["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}" and layer["size"] == len(data)
    config = json.loads((store / "blobs" / record["config"]["digest"].replace(":", "-")).read_text())
    return {"config": config} | {layer["mediaType"]: layer for layer in record["layers"]}


def test_a_conversion_becomes_a_model_and_comes_back_the_same(store: Path, old: Path, tmp_path: Path) -> None:
    plain = ggferry.convert(old, tmp_path / "plain.gguf", verify="fast")
    done = ggferry.convert(old, "ollama://me/tiny:q4", verify="fast")
    assert done.output == "ollama://me/tiny:q4"
    found = layers(store, "me/tiny/q4")
    blob = store / "blobs" / found[LAYER + "model"]["digest"].replace(":", "-")
    assert ggferry.hashes(plain.output) == ggferry.hashes(str(blob))
    assert found["config"]["model_family"] == "llama" and found["config"]["file_type"] == "Q4_0"
    assert found["config"]["model_type"] == "558K" and found["config"]["model_format"] == "gguf"
    receipt = json.loads((store / "blobs" / found[ollama.RECEIPT_TYPE]["digest"].replace(":", "-")).read_text())
    assert receipt["verified"] and receipt["output"]["files"][0]["bytes"] == blob.stat().st_size
    assert not [name for name in os.listdir(store) if name not in ("blobs", "manifests")]
    back = ggferry.convert("ollama://me/tiny:q4", tmp_path / "back.gguf", verify="fast")
    assert set(back.grades) == {"identical"}


def test_texts_of_a_model_go_back_to_where_they_came_from(store: Path, old: Path, tmp_path: Path) -> None:
    made = ggferry.convert(old, tmp_path / "m.gguf", verify="fast")
    texts = {"template": "{{ .Prompt }}", "system": "Be brief.", "params": '{"stop":["</s>"]}', "license": "MIT"}
    make_model(store, "library/first/latest", {"model": Path(made.output)}, texts)
    ggferry.convert("ollama://first", "ollama://second", verify="fast")
    found = layers(store, "library/second/latest")
    for kind, text in texts.items():
        assert (store / "blobs" / found[LAYER + kind]["digest"].replace(":", "-")).read_text() == text


def test_a_name_that_is_taken_is_replaced_by_force_alone(store: Path, old: Path) -> None:
    ggferry.convert(old, "ollama://tiny", verify="fast")
    before = everything(store)
    with pytest.raises(RefusedError, match="exists already"):
        ggferry.convert(old, "ollama://tiny", verify="fast", outtype="f16")
    assert everything(store) == before
    ggferry.convert(old, "ollama://tiny", verify="fast", outtype="f16", force=True)
    assert layers(store, "library/tiny/latest")["config"]["file_type"] == "F16"
    assert before.keys() <= everything(store).keys()


def test_a_projector_goes_in_and_comes_out_as_an_mmproj_file(store: Path, tmp_path: Path) -> None:
    import transformers

    from helpers.vision_encoders import VISION_ENCODERS

    eye = VISION_ENCODERS["idefics3"]
    text = {
        "vocab_size": 300,
        "hidden_size": 48,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "max_position_embeddings": 64,
        **eye.text,
    }
    config = getattr(transformers, eye.config)(text_config=text, vision_config=eye.vision, **eye.top)
    folder = save(tmp_path / "hf", getattr(transformers, eye.model)(config), eye.preprocessor)
    ggferry.convert(folder, "ollama://seer", outtype="f16", no_vocab=True, verify="fast")
    found = layers(store, "library/seer/latest")
    assert {LAYER + "model", LAYER + "projector"} <= found.keys()
    done = ggferry.convert("ollama://seer", tmp_path / "seer.gguf", verify="fast", no_vocab=True)
    assert done.mmproj is not None and Path(done.mmproj.output).name == "mmproj-seer.gguf"
    assert set(done.mmproj.grades) == {"identical"}
    blob = store / "blobs" / found[LAYER + "projector"]["digest"].replace(":", "-")
    assert ggferry.inspect(done.mmproj.output).tensors.keys() == ggferry.inspect(blob).tensors.keys()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("ollama://a b", "not the name of a model"),
        ("s3://x/y", "not a place"),
        ("lmstudio://alone", "LM Studio"),
        ("jan://a/../b", "of Jan's"),
    ],
)
def test_an_address_that_is_none_is_refused(out: str, words: str, store: Path, old: Path) -> None:
    with pytest.raises(GgferryError, match=words):
        ggferry.convert(old, out, verify="fast")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", range(6))
def test_a_failure_at_any_step_leaves_no_model_and_the_next_run_cleans_up(
    step: int, store: Path, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the `step`-th name is given: no manifest, and no blob under a digest that is not its own."""
    program = f"""
import os, sys
import ggferry
from ggferry.service.destinations import ollama
calls = []
def counted(call):
    def run(*given):
        if len(calls) == {step}:
            os._exit(9)
        calls.append(given)
        return call(*given)
    return run
ollama.os.replace = counted(os.replace)
ollama.name_new = counted(ollama.name_new)
ggferry.convert({str(old)!r}, "ollama://tiny", verify="fast")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        pytest.fail("the step was not reached") if step < 4 else None
    assert ran.returncode in (0, 9), ran.stderr
    manifest = store / "manifests/registry.ollama.ai/library/tiny/latest"
    assert manifest.exists() == (ran.returncode == 0)
    for path in (store / "blobs").iterdir():
        assert path.name == f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"
    ggferry.convert(old, "ollama://tiny", verify="fast", force=True)
    layers(store, "library/tiny/latest")
    assert sorted(os.listdir(store)) == ["blobs", "manifests"]


def test_nothing_is_taken_where_another_was_quicker(store: Path, old: Path) -> None:
    with OllamaDestination("ollama://tiny") as place:
        assert place.out is not None
        manifest = Path(place.manifest)
        manifest.write_text("another's")
        made = ggferry.convert(old, place.out, verify="fast")
        from ggferry.converters.conversion.run import Result

        result = Result("gguf", made.output, made.receipt, made.receipt_path, ("", "", ""), (made.output,), None, {})  # type: ignore[arg-type]
        with pytest.raises(RefusedError):
            place.publish([result])
        assert manifest.read_text() == "another's"


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (12_345, "12K"), (135_160_000, "135.16M"), (2_000_000, "2M"), (3_212_749_888, "3.2B")],
)
def test_sizes_are_written_as_ollama_writes_them(count: int, text: str) -> None:
    assert human_number(count) == text


def test_lm_studios_folder_is_found_and_filled(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    done = ggferry.convert(old, "lmstudio://me/tiny", verify="fast")
    assert Path(done.output).parent == tmp_path / ".lmstudio/models/me/tiny"
    (tmp_path / ".lmstudio-home-pointer").write_text(str(tmp_path / "moved"))
    done = ggferry.convert(old, "lmstudio://me/tiny", verify="fast")
    assert Path(done.output).parent == tmp_path / "moved/models/me/tiny"


@pytest.mark.linux("Jan's folder by XDG; those of Windows and macOS are elsewhere")
def test_jans_folder_is_found_and_its_record_written_last(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert ggferry.convert(old, "jan://me/tiny", verify="fast").output == "jan://me/tiny"
    data = tmp_path / "Jan/data"
    (output,) = (data / "llamacpp/models/me/tiny").glob("*.gguf")
    record = yaml.safe_load((output.parent / "model.yml").read_text())
    assert data / record.pop("model_path") == output
    assert record == {"name": "me/tiny", "size_bytes": output.stat().st_size}
    with pytest.raises(GgferryError, match="exists"):
        ggferry.convert(old, "jan://me/tiny", verify="fast")
    (tmp_path / "jan.ai.app").mkdir()
    (tmp_path / "jan.ai.app/settings.json").write_text(json.dumps({"data_folder": str(tmp_path / "moved")}))
    ggferry.convert(old, "jan://me/tiny", verify="fast")
    assert (tmp_path / "moved/llamacpp/models/me/tiny/model.yml").is_file()


@pytest.mark.parametrize("out", ["ollama://tiny", "lmstudio://me/tiny", "jan://tiny"])
@pytest.mark.parametrize("to", ["safetensors", "whisper.cpp"])
def test_programs_that_read_gguf_get_nothing_else(out: str, to: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"only GGUF files are written to such a place: found --to {to} -o {out}"):
        ggferry.convert(tmp_path, out, to=to)
