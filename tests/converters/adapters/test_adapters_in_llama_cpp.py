"""Adapters at work: the logits of base and adapter together, by the runtimes of then and now."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from helpers.builders import record

TOKENS = [1, 300, 17, 402, 260, 511, 68, 333, 259, 480, 271, 290, 455, 13, 399, 2]  # the oracle's tokens16.txt
WORDS = {
    "attn_q": "attention.wq",
    "attn_k": "attention.wk",
    "attn_v": "attention.wv",
    "attn_output": "attention.wo",
    "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2",
    "ffn_up": "feed_forward.w3",
}

SCRIPT = """
import json, sys
import xllamacpp
for base, adapter, prompt in json.loads(sys.argv[1]):
    params = xllamacpp.CommonParams()
    params.model.path = base
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 128, 1, 0, False, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if adapter:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(adapter, 1.0)]
    answer = xllamacpp.Server(params).handle_completions(
        {"prompt": prompt, "max_tokens": 1, "temperature": 0, "n_probs": 512})
    logprobs = answer["choices"][0]["logprobs"]
    top = logprobs["content"][0]["top_logprobs"] if logprobs else []
    print("ANSWER", json.dumps({item["id"]: item["logprob"] for item in top}))
"""


def llama_cpp(*cases: tuple[Path, Path | None, list[int]]) -> list[dict[int, float]]:
    """Log-probabilities of all next tokens by a current llama.cpp with the adapter applied; none where the
    likeliest is the end of the text or no whole character."""
    asked = json.dumps([(str(base), str(adapter) if adapter else "", prompt) for base, adapter, prompt in cases])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, asked], capture_output=True, text=True, timeout=300, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(lines) == len(cases), done.stderr[-3000:]
    found = [json.loads(line.removeprefix("ANSWER ")) for line in lines]
    return [{int(token): p for token, p in item.items()} for item in found]


def apart(a: dict[int, float], b: dict[int, float]) -> float:
    """The largest difference of log-probabilities over the tokens both name."""
    common = a.keys() & b.keys()
    assert len(common) >= 400
    return max(abs(a[token] - b[token]) for token in common)


def carried(source: Path, out: Path, **more: Any) -> Path:
    convert(Request(str(source), str(out), level="fast", **more))
    return out


# --- ggla: what the runtime of 2023 computed ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ggla(fixtures: Path) -> Path:
    return fixtures / "legacy-llama" / "lora"


WIDE = "bccb594235ccedcbfb21f8e6fc074a0892ae20ef09b1a4213a1873903e56dfaf"
"""Of the file that llama-cpp-python 0.1.25 wrote from the same weights with ftype 0."""


@pytest.fixture(scope="module")
def base(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The F32 file of that runtime, which is its F16 file made wider: bit for bit, the digest says."""
    source = fixtures / "legacy-llama" / "ggjt1-0.1.25" / "f16.bin"
    found, raw = open_checkpoint(str(source)), source.read_bytes()
    data = bytearray(raw[: raw.index(b"tok_embeddings") - 12 - 4 * 2])
    struct.pack_into("<i", data, 32, 0)  # ftype: all F32
    for ref in sorted(found.tensors.values(), key=lambda ref: ref.spans[0].offset):
        values = values_of(found, ref, 0, ref.rows).astype("<f4")
        data += record(ref.name, 0, ref.shape, values.tobytes(), 32, len(data))
    assert hashlib.sha256(data).hexdigest() == WIDE
    path = tmp_path_factory.mktemp("base") / "f32.bin"
    path.write_bytes(data)
    return path


def merged(base: Path, adapter: Path, out: Path) -> Path:
    """A copy of the legacy base with what the GGUF adapter adds: rows as the base has them, since both are Meta's."""
    shutil.copy(base, out)
    model, lora = open_checkpoint(str(base)), open_checkpoint(str(adapter))
    alpha = lora.metadata["adapter.lora.alpha"].data
    changed = 0
    with open(out, "r+b") as file:
        for name, b_ref in lora.tensors.items():
            if not name.endswith(".lora_b"):
                continue
            a_ref = lora.tensors[name.removesuffix("b") + "a"]
            a, b = (values_of(lora, ref, 0, ref.rows).astype(np.float64) for ref in (a_ref, b_ref))
            _, n, weight, *_ = name.split(".")
            ref = model.tensors[f"layers.{n}.{WORDS[weight]}.weight"]
            assert ref.type.name == "F32" and ref.shape == (b.shape[0], a.shape[1])
            value = values_of(model, ref, 0, ref.rows) + alpha / b.shape[1] * (b @ a)
            file.seek(ref.spans[0].offset)
            file.write(value.astype("<f4").tobytes())
            changed += 1
    assert changed == 12
    return out


def logits(path: Path) -> np.ndarray:
    from ggferry.converters.forward.evaluate import forward

    graph = graph_of(str(path))
    return np.asarray(forward(graph, TOKENS), np.float64)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - expected).mean() / np.square(expected).mean()))


def test_ggla_as_the_runtime_of_2023_applied_it(ggla: Path, base: Path, tmp_path: Path) -> None:
    """docs/formats/ggml-era.md: rows as they lie match the runtime within its rounding, 3e-4; permuted ones, 0.155."""
    expected = np.load(ggla / "f32.logits_e09_on_ggjt1-0.1.25_f32.npy").astype(np.float64)
    source = ggla / "f32-ggml-adapter-model.bin"
    plain = carried(source, tmp_path / "plain.gguf")
    rotated = carried(source, tmp_path / "turned.gguf", base=str(base), ggla_permute=True)
    assert relative(logits(merged(base, plain, tmp_path / "plain.bin")), expected) < 1e-3
    assert 0.05 < relative(logits(merged(base, rotated, tmp_path / "turned.bin")), expected) < 0.5
    assert relative(logits(base), expected) > 0.05, "the adapter is no small thing"


@pytest.mark.slow
def test_ggla_permuted_is_the_adapter_as_it_was_trained(ggla: Path, base: Path, tmp_path: Path) -> None:
    """The ggla file laid out as training meant it = its PEFT source, converted for the same base."""
    rotated = carried(ggla / "f32-ggml-adapter-model.bin", tmp_path / "t.gguf", base=str(base), ggla_permute=True)
    folder = tmp_path / "peft"
    folder.mkdir()
    shutil.copy(ggla / "f32-adapter_model.bin", folder / "adapter_model.bin")
    shutil.copy(ggla / "f32-adapter_config.json", folder / "adapter_config.json")
    trained = carried(folder, tmp_path / "p.gguf", base=str(base))
    a, b = open_checkpoint(str(rotated)), open_checkpoint(str(trained))
    assert a.tensors.keys() == b.tensors.keys() and len(a.tensors) == 24
    for name, ref in a.tensors.items():
        other = b.tensors[name]
        assert np.array_equal(values_of(a, ref, 0, ref.rows), values_of(b, other, 0, other.rows)), name
    plain = open_checkpoint(str(carried(ggla / "f32-ggml-adapter-model.bin", tmp_path / "x.gguf")))

    def differs(name: str) -> bool:
        ref = plain.tensors[name]
        return not np.array_equal(values_of(plain, ref, 0, ref.rows), values_of(a, a.tensors[name], 0, ref.rows))

    differing = set(filter(differs, plain.tensors))
    assert differing == {f"blk.{n}.attn_{side}.weight.lora_b" for n in (0, 1) for side in "qk"}


def test_both_generations_of_names(ggla: Path, tmp_path: Path) -> None:
    """From 30 August 2023 the script wrote GGUF's names; the same pairs come out, with a note."""
    from ggferry.formats.readers.ggla import HEADER, RECORD

    source = (ggla / "f32-ggml-adapter-model.bin").read_bytes()
    found = open_checkpoint(str(ggla / "f32-ggml-adapter-model.bin"))
    data = bytearray(source[: HEADER.size])
    for name, ref in found.tensors.items():
        renamed = name.replace("layers.", "blk.")
        for new, old in WORDS.items():
            renamed = renamed.replace(old, new)
        shape = ref.shape if name.endswith("loraA") else ref.shape[::-1]
        data += RECORD.pack({"dims": 2, "length": len(renamed), "type": 0})
        data += b"".join(size.to_bytes(4, "little") for size in shape) + renamed.encode()
        data += bytes(-len(data) % 32) + source[ref.spans[0].offset : ref.spans[0].offset + ref.nbytes]
    (tmp_path / "late.bin").write_bytes(data)
    late = convert(Request(str(tmp_path / "late.bin"), str(tmp_path / "late.gguf"), model_name="m"))[0]
    early = convert(Request(str(ggla / "f32-ggml-adapter-model.bin"), str(tmp_path / "early.gguf"), model_name="m"))[0]
    assert any("--base" in note for note in late.receipt["notes"])
    a, b = open_checkpoint(late.path), open_checkpoint(early.path)
    assert list(a.tensors) == list(b.tensors)
    for name, ref in a.tensors.items():
        assert np.array_equal(values_of(a, ref, 0, ref.rows), values_of(b, b.tensors[name], 0, ref.rows))


@pytest.mark.slow
def test_todays_llama_cpp_applies_the_ggla_adapter_as_that_of_2023(ggla: Path, base: Path, tmp_path: Path) -> None:
    expected = np.load(ggla / "f32.logits_e09_on_ggjt1-0.1.25_f32.npy").astype(np.float64)
    model = carried(base, tmp_path / "base.gguf")
    plain = carried(ggla / "f32-ggml-adapter-model.bin", tmp_path / "plain.gguf")
    rotated = carried(ggla / "f32-ggml-adapter-model.bin", tmp_path / "turned.gguf", base=str(base), ggla_permute=True)
    ends = (4, 7, 11, 16)  # llama.cpp tells nothing where the likeliest token is no whole character, as behind 6
    cases = [(model, adapter, TOKENS[:end]) for adapter in (plain, rotated) for end in ends]
    found = llama_cpp(*cases)

    def of_2023(end: int) -> dict[int, float]:
        row = expected[end - 1]
        return dict(enumerate(row - row.max() - np.log(np.exp(row - row.max()).sum())))

    assert max(apart(found[i], of_2023(end)) for i, end in enumerate(ends)) < 0.02
    others = [(found[len(ends) + i], of_2023(end)) for i, end in enumerate(ends)]
    assert max(apart(*pair) for pair in others if pair[0]) > 0.1


# --- PEFT: today's llama.cpp against the merged model ---------------------------------------------------------------


def merged_checkpoint(checkpoint: Path, adapter: Path, out: Path, scale: Callable[[str], float]) -> Path:
    """The Hugging Face checkpoint with W + scale · B·A, as PEFT's merge_and_unload makes it."""
    shutil.copytree(checkpoint, out)
    weights = load_file(checkpoint / "model.safetensors")
    pairs = load_file(adapter / "adapter_model.safetensors")
    for name, b in pairs.items():
        if ".lora_B." in name:
            module = name.removeprefix("base_model.model.").replace(".lora_B", "")
            a = pairs[name.replace("lora_B", "lora_A")]
            delta = scale(module) * (b.double() @ a.double())
            weights[module] = (weights[module].double() + delta).float().contiguous()
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out


SCALES: dict[str, Callable[[str], float]] = {
    "lora_plain": lambda module: 8 / 4,
    "lora_rslora": lambda module: 8 / 2,
    "lora_alphapattern": lambda module: (32 if "q_proj" in module else 8) / 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALES)
def test_todays_llama_cpp_with_our_adapter_is_the_merged_model(name: str, fixtures: Path, tmp_path: Path) -> None:
    checkpoint, adapter = fixtures / "hf" / "ckpt" / "llama", fixtures / "lora" / name
    vocab = VocabOptions()
    options = Options(outtype="f32")
    whole = merged_checkpoint(checkpoint, adapter, tmp_path / "merged", SCALES[name])
    model = carried(checkpoint, tmp_path / "base.gguf", options=options, vocab=vocab)
    fused = carried(whole, tmp_path / "merged.gguf", options=options, vocab=vocab)
    ours = carried(adapter, tmp_path / "ours.gguf", base=str(checkpoint))
    prompt = [1, 17, 402, 260, 311, 68, 333]
    theirs = fixtures / "lora" / name / f"{name}.f32.gguf"
    alone, together, expected, before = llama_cpp(
        (model, None, prompt), (model, ours, prompt), (fused, None, prompt), (model, theirs, prompt)
    )
    assert apart(together, expected) < 2e-3
    assert apart(alone, expected) > 2e-2, "the adapter changes something"
    if name != "lora_plain":
        assert apart(before, expected) > 1e-2, "convert_lora_to_gguf forgets the scale"
