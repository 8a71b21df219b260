"""A written folder: its tokenizer, shards, types and receipt, what is refused, and what a killed run leaves."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors import safe_open
from safetensors.torch import load_file
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as Library

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.run import convert as export
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.hf_export.known_classes import known_class
from ggferry.converters.metadata.beside import FOLDER_RECEIPT
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import RefusedError, UsageError
from ggferry.quant.codec import codec
from ggferry.service.cli.app import _run
from helpers.builders import Llama
from helpers.tiny_models import make

TEXTS = ("Hello, world!", "  two spaces, 12345 and\n\na new line", "naïve café 你好 🙂", "def f(x):\n\treturn x**2")


def fixture(name: str) -> Path:
    return Path(__file__).parents[3] / "fixtures" / name


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Llama(kind="Q4_0", version=3).write(tmp_path_factory.mktemp("legacy") / "old.bin")


def test_a_legacy_file_becomes_a_folder(legacy: Path, tmp_path: Path) -> None:
    done = export(Request(str(legacy), str(tmp_path / "out"), to="safetensors"))[0]
    graph, receipt = graph_of(str(legacy)), json.loads((tmp_path / "out" / FOLDER_RECEIPT).read_text())
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        found = file.get_tensor("model.layers.0.mlp.up_proj.weight")
    node = graph.by_name["blk.0.ffn_up.weight"]
    ref = node.inputs[0]
    raw = np.frombuffer(graph.checkpoint.files[0].read(ref.spans[0].offset, ref.nbytes), np.uint8)
    assert np.array_equal(found, codec(ref.type.name).decode(raw.reshape(ref.rows, -1), ref.columns))
    made = {one["name"]: one for one in receipt["tensors"]}
    assert made["model.layers.0.self_attn.q_proj.weight"]["of"] == [{"name": "blk.0.attn_q.weight", "types": ["Q4_0"]}]
    assert made["model.layers.0.self_attn.q_proj.weight"]["undone"] == ["Rearrange"]
    assert done.receipt["output"]["class"] == "LlamaForCausalLM" and all(one["exact"] for one in made.values())


@pytest.mark.parametrize(("dtype", "kind"), [("f16", "F16"), ("bf16", "BF16"), (None, "F32")])
def test_types_and_shards(legacy: Path, tmp_path: Path, dtype: str | None, kind: str) -> None:
    asked = Request(
        str(legacy), str(tmp_path / "out"), to="safetensors", dtype=dtype, max_shard_size=20_000, level="fast"
    )
    export(asked)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    names = set(index["weight_map"].values())
    assert len(names) > 2 and names == {path.name for path in (tmp_path / "out").glob("*.safetensors")}
    total = 0
    for name in names:
        with safe_open(tmp_path / "out" / name, "np") as file:
            for tensor in file.keys():  # noqa: SIM118
                assert index["weight_map"][tensor] == name and file.get_slice(tensor).get_dtype() == kind
                total += int(np.prod(file.get_slice(tensor).get_shape())) * (4 if kind == "F32" else 2)
    assert total == index["metadata"]["total_size"]
    receipt = json.loads((tmp_path / "out" / FOLDER_RECEIPT).read_text())
    assert any(one["max_error"] for one in receipt["tensors"]) == (dtype is not None)


@pytest.mark.parametrize("more", [(), ("--dtype", "f16", "--max-shard-size", "20000")])
def test_a_dry_run_tells_what_is_then_written(
    legacy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    asked = ["convert", str(legacy), "--to", "safetensors", "-o", str(tmp_path / "out"), *more]
    assert _run([*asked, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "out").exists() and told["folder"] == str(tmp_path / "out")
    assert _run([*asked, "--dry-run"]) == 0
    lines = capsys.readouterr().out
    assert _run([*asked, "--verify", "none"]) == 0
    written = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name != FOLDER_RECEIPT}
    assert {file["name"]: file["bytes"] for file in told["files"]} == written
    assert all(f"{size:,} bytes" in lines for size in (*written.values(), sum(written.values())))
    found = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, "np") as file:
            found |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    assert {one["name"]: (one["type"], one["shape"]) for one in told["tensors"]} == {
        name: (each.get_dtype(), each.get_shape()) for name, each in found.items()
    }


def test_a_checkpoint_becomes_one_of_another_type(tmp_path: Path) -> None:
    source, out = fixture("hf/ckpt/llama"), tmp_path / "out"
    done = export(Request(str(source), str(out), to="safetensors", dtype="f16"))[0]
    assert done.receipt["logits"] is not None and done.receipt["logits"]["structure"] < 2e-6
    assert any(one["max_error"] for one in done.receipt["tensors"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", ["falcon-h1", "falcon-h1 normed, tied", "bamba", "mamba2"])
def test_what_gguf_multiplies_is_as_the_checkpoint_has_it(name: str, dtype: str, tmp_path: Path) -> None:
    """Factors are not divided out again, which would round; rounding is judged before a decay's exponential."""
    make(name, tmp_path / "hf")
    export(
        Request(
            str(tmp_path / "hf"), str(tmp_path / "out"), to="safetensors", dtype=dtype, vocab=VocabOptions(none=True)
        )
    )
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "out"))
    assert all(torch.equal(after[key], data.to(after[key].dtype)) for key, data in before.items())
    receipt = json.loads((tmp_path / "out" / FOLDER_RECEIPT).read_text())
    assert dtype != "f32" or all(one["exact"] for one in receipt["tensors"])


def test_a_written_folder_is_proved_again(legacy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for dtype in ("f16", "f32"):
        export(Request(str(legacy), str(out), to="safetensors", dtype=dtype, level="fast", force=True))
        assert _run(["verify", str(legacy), str(out)]) == 0
        assert "proved" in capsys.readouterr().out
    (out / "config.json").write_text("{}")
    assert _run(["verify", str(legacy), str(out)]) != 0


def test_a_dry_run_refuses_what_is_for_gguf(legacy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for outtype in ("q8_0", "q8_0,f16"):
        assert _run(["convert", str(legacy), "--to", "safetensors", "--dry-run", "--outtype", outtype]) == 2
        shown = capsys.readouterr()
        assert not shown.out and "--to gguf" in shown.err


def test_nothing_is_replaced_that_is_not_ours(legacy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = Request(str(legacy), str(out), to="safetensors", level="none", force=True)
    export(asked)
    export(asked)
    with pytest.raises(RefusedError, match="exists already"):
        export(Request(str(legacy), str(out), to="safetensors", level="none"))
    (out / "config.json").write_text("{}")
    with pytest.raises(RefusedError, match="not an unchanged folder"):
        export(asked)
    assert (out / "config.json").read_text() == "{}" and len(list(tmp_path.iterdir())) == 1


def test_options_of_gguf_are_refused(legacy: Path) -> None:
    with pytest.raises(UsageError, match="--outtype is for --to gguf"):
        export(Request(str(legacy), options=Options(outtype="q4_0"), to="safetensors"))


@pytest.mark.parametrize("name", ["bpe_llama3", "bpe_qwen2"])
def test_a_rebuilt_tokenizer_encodes_as_the_original(name: str, tmp_path: Path) -> None:
    original = fixture("tokenizers") / name / "tokenizer.json"
    rows = Library.from_file(str(original)).get_vocab_size()
    make("llama", tmp_path / "hf", vocab_size=rows)
    for path in original.parent.iterdir():
        shutil.copy(path, tmp_path / "hf")
    gguf = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), level="none"))[0].path
    export(Request(gguf, str(tmp_path / "out"), to="safetensors", level="none"))
    before, after = (Library.from_file(str(path)) for path in (original, tmp_path / "out" / "tokenizer.json"))
    for text in TEXTS:
        assert before.encode(text).ids == after.encode(text).ids


def test_an_unknown_token_of_another_type_is_found_by_its_id(tmp_path: Path) -> None:
    """convert_hf_to_gguf.py makes a control token of it where tokenizer_config.json lists it: of every Gemma."""

    def written(name: str) -> bytes:
        export(Request(str(tmp_path / "x.gguf"), str(tmp_path / name), to="safetensors", level="fast"))
        return (tmp_path / name / "tokenizer.model").read_bytes()

    convert(Request(str(fixture("hf/ckpt/gemma2")), str(tmp_path / "x.gguf"), level="fast"))
    expected = written("unknown")
    types = GGUFReader(tmp_path / "x.gguf", "r+").fields["tokenizer.ggml.token_type"]
    assert types.parts[types.data[0]][0] == 2
    types.parts[types.data[0]][0] = 3
    types.parts[types.data[0]].base.flush()
    assert written("control") == expected and SentencePieceProcessor(model_proto=expected).unk_id() == 0


@pytest.mark.slow
def test_a_killed_run_leaves_no_folder(tmp_path: Path) -> None:
    model = Llama(n_vocab=4000, n_embd=512, n_head=8, n_head_kv=4, n_layer=6, n_ff=1536, kind="F16", version=1)
    source, out = model.write(tmp_path / "model.bin"), tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "ggferry",
        "convert",
        str(source),
        "--to",
        "safetensors",
        "-o",
        str(out),
        "--verify",
        "fast",
    ]
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - started
    reference = {path.name: path.read_bytes() for path in out.iterdir()}
    rng = random.Random(0)
    for _ in range(6):
        shutil.rmtree(out, ignore_errors=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.0) * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if out.exists():
            assert {path.name: path.read_bytes() for path in out.iterdir()} == reference
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run(command, check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {"model.bin", "out"}


def test_what_is_known_of_classes() -> None:
    gemma, llama = known_class("Gemma2ForCausalLM"), known_class("LlamaForCausalLM")
    assert gemma and llama
    assert gemma.places("hidden_activation|hidden_act") == ("hidden_activation",)
    assert llama.places("num_local_experts|num_experts") == ()
    bases = "rope_parameters.full_attention.rope_theta|rope_parameters.rope_theta|rope_theta"
    assert llama.places(bases) == ("rope_theta",)
