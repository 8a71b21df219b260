"""Training checkpoints from end to end: transformers' logits, the reigning tool's tensors, llama.cpp's continuation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.understand import graph_of
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.peers import Peers, metadata_of
from helpers.third_party_fixtures import cases, has, hf_models, hf_tokens, record, witness

MODELS = hf_models()


def checkpoints() -> list[str]:
    """The checkpoints whose class has a table; what reads with one half and writes with another: test_t5."""
    known = {name for spec in architectures().values() for name in spec.hf_classes}
    return [
        name
        for name, entry in MODELS.items()
        if set(entry["architectures"]) & known and entry["output_kind"] != "encdec"
    ]


NAMES = checkpoints()
LIMITS = {"gemma2": 1e-3}
"""The oracle's Gemma 2 logits were made by an attention (SDPA) that leaves the cap on scores out; llama.cpp applies it,
and transformers' eager attention agrees with ours to 1e-5 (test_arch_transformers)."""
WRONG_KEYS = {"phi2.feed_forward_length", "bloom.context_length"}
"""Today's tool writes 4 · n_embd there whatever the checkpoint's width is (todays-converter.md), and n_embd."""


OURS_ALONE = ("gpt2", "mpt", "falcon7b")
"""Today's tool fails on them (no n_ctx; MptForCausalLM; 71 groups): llama.cpp runs what we write."""


def relative_rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The F32 conversion of every checkpoint, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("hf")

    class Made(dict):
        def __missing__(self, name: str) -> str:
            request = Request(str(witness(f"hf/ckpt/{name}")), str(folder / f"{name}.gguf"), Options(outtype="f32"))
            self[name] = convert(request)[0].path
            return self[name]

    return Made()


def test_checkpoints_are_covered() -> None:
    assert {"llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "phi2", "phi3", "deepseek2"} <= set(NAMES)


def logits_of(name: str) -> Path | None:
    """transformers' logits, or llama.cpp's where transformers has no such model (RWKV-6); the encoders' have tests of
    their own."""
    made = (f"hf/out/{name}/{maker}_logits_f32.npy" for maker in ("hf", "llamacpp"))
    return next((witness(file) for file in made if has(file)), None)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", cases(filter(logits_of, NAMES), "hf/ckpt/{}"))
def test_transformers_logits_from_both_sides(name: str, outputs: dict[str, str]) -> None:
    expected = np.load(logits_of(name))
    for side in (graph_of(str(witness(f"hf/ckpt/{name}"))), graph_of(outputs[name])):
        assert relative_rms(forward(side, hf_tokens()), expected) <= LIMITS.get(name, 1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", cases(NAMES, "hf/out/{0}/{0}.f32.gguf"))
def test_tensors_are_the_reigning_tools(name: str, outputs: dict[str, str], peer: Peers) -> None:
    """Names, shapes, types and bytes. (Order and further keys may differ.)"""
    ours, theirs = open_gguf(outputs[name]), open_gguf(str(peer(f"hf/out/{name}/{name}.f32.gguf")))
    assert {n: (r.shape, r.type.name) for n, r in ours.tensors.items()} == {
        n: (r.shape, r.type.name) for n, r in theirs.tensors.items()
    }
    for key, ref in ours.tensors.items():
        other = theirs.tensors[key]
        a = ours.files[0].read(ref.spans[0].offset, ref.nbytes)
        b = theirs.files[0].read(other.spans[0].offset, other.nbytes)
        if key == "rope_freqs.weight":  # computed: the last bit is the order of operations'
            assert np.allclose(np.frombuffer(a, "<f4"), np.frombuffer(b, "<f4"), rtol=1e-6)
        else:
            assert a == b, key


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gpt2_nctx", "gptneox", "mpt_MPTarch", "bloom", "falcon40b", "starcoder"])
def test_rearranged_rows_are_quantized_as_the_reigning_tool_does(
    name: str, fixtures: Path, peer: Peers, tmp_path: Path
) -> None:
    """Transposed, or regrouped: Q8_0 by the byte."""
    source = str(fixtures / "hf" / "ckpt" / name)
    made = convert(Request(source, str(tmp_path / "x.gguf"), Options(outtype="q8_0"), level="fast"))[0]
    ours, theirs = open_gguf(made.path), open_gguf(str(peer(f"hf/out/{name}/{name}.q8_0.gguf")))
    for key, ref in ours.tensors.items():
        other = theirs.tensors[key]
        assert ref.type == other.type, key
        a = ours.files[0].read(ref.spans[0].offset, ref.nbytes)
        assert a == theirs.files[0].read(other.spans[0].offset, other.nbytes), key


@pytest.mark.parametrize("name", cases(NAMES, "hf/out/{0}/{0}.f32.gguf"))
def test_every_key_the_reigning_tool_writes_for_the_architecture(name: str, outputs: dict[str, str]) -> None:
    ours, theirs = open_gguf(outputs[name]).metadata, metadata_of(record(f"hf/out/{name}/{name}.f32.gguf"))
    architecture = theirs["general.architecture"].data
    for key, value in theirs.items():
        if key.startswith(f"{architecture}.") and key not in WRONG_KEYS:
            assert key in ours, key
            number = isinstance(value.data, float)
            assert ours[key].data == (pytest.approx(value.data, rel=1e-6) if number else value.data), key


@pytest.mark.slow
def test_llama_cpp_continues_as_we_do(outputs: dict[str, str]) -> None:
    causal = [name for name in NAMES if MODELS[name]["output_kind"] == "logits"]
    theirs = [name for name in causal if has(f"hf/out/{name}/llamacpp_logits_f32.npy")]
    loadable = [*theirs, *OURS_ALONE]
    assert len(loadable) > 20
    prompt, count = hf_tokens()[:6], 5
    for name, answer in zip(loadable, continuations(prompt, count, *(Path(outputs[n]) for n in loadable)), strict=True):
        history = list(prompt)
        for token, _ in answer:
            scores = forward(graph_of(outputs[name]), history)[-1]
            assert scores.max() - scores[token] < 1e-3, name
            history.append(token)


def test_meta_shards_and_one_file_give_the_same_bytes(fixtures: Path, tmp_path: Path) -> None:
    root = fixtures / "legacy-llama" / "pth"
    made = [
        convert(Request(str(root / name), str(tmp_path / f"{name}.gguf"), model_name="tiny"))[0]
        for name in ("S128-1sh", "S128-2sh")
    ]
    assert Path(made[0].path).read_bytes() == Path(made[1].path).read_bytes()
    assert all(result.receipt["verified"] == "full" for result in made)


@pytest.mark.slow
def test_four_containers_give_the_same_bytes(fixtures: Path, tmp_path: Path) -> None:
    """safetensors, sharded safetensors, .bin and sharded .bin of one model."""
    import torch
    from safetensors.torch import load_file, save_file

    source = fixtures / "hf" / "ckpt" / "qwen2"
    weights = load_file(source / "model.safetensors")
    names = sorted(weights)
    halves = [{n: weights[n] for n in names[: len(names) // 2]}, {n: weights[n] for n in names[len(names) // 2 :]}]
    digests = set()
    for kind in ("safetensors", "safetensors-shards", "bin", "bin-shards"):
        folder = tmp_path / kind
        folder.mkdir()
        for path in source.iterdir():
            if path.suffix != ".safetensors":
                shutil.copy(path, folder)
        stem, suffix = ("model", "safetensors") if "safe" in kind else ("pytorch_model", "bin")
        save = save_file if "safe" in kind else torch.save
        if kind.endswith("shards"):
            table = {}
            for number, half in enumerate(halves, 1):
                file = f"{stem}-{number:05}-of-00002.{suffix}"
                save(half, folder / file)
                table |= dict.fromkeys(half, file)
            (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
        else:
            save(weights, folder / f"{stem}.{suffix}")
        request = Request(str(folder), str(tmp_path / f"{kind}.gguf"), model_name="tiny", level="fast")
        digests.add(Path(convert(request)[0].path).read_bytes())
    assert len(digests) == 1


def test_torch_is_not_imported_without_a_forward_pass(fixtures: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    source = str(fixtures / "hf" / "ckpt" / "qwen2")
    script = (
        "import sys\nfrom ggferry.service.cli.app import _run\n"
        f"arguments = {[source, '-o', str(tmp_path / 'o.gguf'), '--verify', 'fast']!r}\n"
        "code = _run(['convert', *arguments])\n"
        "assert code == 0 and 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
