"""BitNet whose weights are made ternary while the model runs: transformers' own layer is the witness of what they are
then, its model of the logits, and llama.cpp of what it continues with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.bitnet import WeightQuant

from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import BadValueError, UnsupportedError
from helpers.llama_cpp import continuations
from helpers.quantized_llama import Quantize, Tensors, check_file, gguf_name, model, request
from helpers.quantized_llama import write as write_llama
from helpers.tiny import TOKENS
from helpers.tiny_models import TINY, make, relative, write
from helpers.values import decoded

ONLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
SILU = {"hidden_act": "silu", "num_attention_heads": 6, "num_key_value_heads": 3}
"""What llama.cpp's graph has; heads as wide as the model."""
PROMPT = TOKENS[:11]
"""Of others the greedy token is half a character, which the server does not report."""


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """transformers compiles its rounding, which takes seconds and changes nothing."""
    with torch.compiler.set_stance("force_eager"):
        yield


def rounded(weight: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = WeightQuant.apply(weight)
    return found


def online(kind: torch.dtype) -> Quantize:
    def made(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        stored = torch.from_numpy(weight).to(kind)
        return {name: stored}, rounded(stored).float().numpy()

    return made


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_values_are_those_that_transformers_computes_with(kind: torch.dtype, tmp_path: Path) -> None:
    """Bit for bit, and the second reading finds them a second way."""
    tensors, meaning = model(online(kind))
    result = convert(request(write_llama(tmp_path / "in", tensors, ONLINE), tmp_path / "out.gguf"))[0]
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert result.receipt["logits"]["relative_rms"] < 2e-6
    assert "rows of 21 quantized matrices computed alike" in result.proof.second_reader.line


def test_float32_differs_by_no_more_than_the_order_of_a_sum(tmp_path: Path) -> None:
    """torch adds up in float32, in an order of its own."""
    tensors, meaning = model(online(torch.float32))
    convert(request(write_llama(tmp_path / "in", tensors, ONLINE, "float32"), tmp_path / "out.gguf"))
    found = decoded(tmp_path / "out.gguf")
    for name, expected in meaning.items():
        values = found[gguf_name(name)][1]
        ours, theirs = np.sort(values.reshape(-1)), np.sort(expected.reshape(-1))
        assert np.array_equal(np.sign(ours), np.sign(theirs)) and np.allclose(ours, theirs, rtol=5e-7, atol=0)


def test_bfloat16_fits_ternary_blocks(tmp_path: Path) -> None:
    tensors, meaning = model(online(torch.bfloat16), 256)
    source = write_llama(tmp_path / "in", tensors, ONLINE, intermediate_size=256)
    for outtype, kind in (("keep", "TQ2_0"), ("tq1_0", "TQ1_0")):
        options = Options(outtype=outtype, allow_requantize=True)
        convert(replace(request(source, tmp_path / f"{kind}.gguf", level="fast"), options=options))
        name, found = decoded(tmp_path / f"{kind}.gguf")["blk.0.ffn_down.weight"]
        assert name == kind and np.array_equal(found, meaning["model.layers.0.mlp.down_proj.weight"])


def reference(folder: Path, **changes: Any) -> np.ndarray:
    """Save the tiny model, and return transformers' logits over rounded weights and activations as they are."""
    make("bitnet", folder, **changes)
    config = transformers.BitNetConfig(**{**TINY["bitnet"].config, **changes})
    config._attn_implementation = "eager"
    network = transformers.BitNetForCausalLM(config).float().eval()
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            weights[name] = rounded(weight)
    network.load_state_dict(weights, strict=False)
    with torch.no_grad():
        found: np.ndarray = network(torch.tensor([TOKENS])).logits[0].numpy()
    return found


def declared(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_logits_of_microsofts_class(tmp_path: Path) -> None:
    expected = reference(tmp_path / "hf")
    source = graph_of(str(declared(tmp_path / "hf", lambda config: config.update(quantization_config=ONLINE))))
    assert relative(expected, forward(source, TOKENS)) < 1e-5
    written = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert relative(expected, forward(written, TOKENS)) < 1e-5


def of_2024(folder: Path) -> Path:
    """Give a folder the names and the configuration of 1bitLLM/bitnet_b1_58-3B."""
    names = {"self_attn.attn_sub_norm": "self_attn.inner_attn_ln", "mlp.ffn_sub_norm": "mlp.ffn_layernorm"}
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for now, then in names.items():
            name = name.replace(now, then)
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    more = {"architectures": ["BitnetForCausalLM"], "model_type": "llama", "weight_bits": 1, "input_bits": 8}
    return declared(folder, lambda config: config.update(more))


def test_logits_of_the_class_of_2024(tmp_path: Path) -> None:
    """It differs from today's in names, and in that nothing says that weights are rounded."""
    expected = reference(tmp_path / "hf", **SILU)
    source = graph_of(str(of_2024(tmp_path / "hf")))
    assert relative(expected, forward(source, TOKENS)) < 1e-5
    path = write(source, tmp_path / "x.gguf")
    assert relative(expected, forward(graph_of(str(path)), TOKENS)) < 1e-5
    (((token, probability), *_),) = continuations(PROMPT, 1, path)
    scores = expected[len(PROMPT) - 1].astype(np.float64)
    scores -= np.log(np.exp(scores - scores.max()).sum()) + scores.max()
    assert token == int(scores.argmax()) and probability == pytest.approx(scores.max(), abs=1e-4)


def test_more_bits_than_one_are_refused(tmp_path: Path) -> None:
    make("bitnet", tmp_path)
    with pytest.raises(UnsupportedError, match="weight_bits"):
        graph_of(str(declared(of_2024(tmp_path), lambda config: config.update(weight_bits=2))))


@pytest.mark.parametrize(
    ("listed", "match"),
    [(["mlp.up_proj"], "lm_head"), (["lm_head", "layers.*"], "names of modules"), ("lm_head", "names of modules")],
)
def test_what_cannot_be_decided_is_refused(listed: Any, match: str, tmp_path: Path) -> None:
    tensors, _ = model(online(torch.bfloat16))
    source = write_llama(tmp_path / "in", tensors, {**ONLINE, "modules_to_not_convert": listed})
    with pytest.raises(UnsupportedError, match=match):
        graph_of(str(source))


def test_another_matrix_is_refused_by_name(tmp_path: Path) -> None:
    tensors, _ = model(online(torch.bfloat16))
    tensors["model.layers.0.mlp.router.weight"] = torch.ones(3, 64, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match=r"mlp\.router\.weight"):
        graph_of(str(write_llama(tmp_path / "in", tensors, ONLINE)))


def test_modules_that_are_listed_stay_as_they_are(tmp_path: Path) -> None:
    tensors, meaning = model(online(torch.bfloat16))
    kept = {name for name in meaning if name.endswith("up_proj.weight") or ".layers.1." in name}
    meaning |= {name: tensors[name].float().numpy() for name in kept}
    settings = {**ONLINE, "modules_to_not_convert": ["lm_head", "up_proj", "model.layers.1"]}
    convert(request(write_llama(tmp_path / "in", tensors, settings), tmp_path / "out.gguf"))
    check_file(tmp_path / "out.gguf", meaning, "F32")


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    tensors, _ = model(online(torch.bfloat16))
    tensors["model.layers.2.mlp.up_proj.weight"][5, 3] = torch.nan
    with pytest.raises(BadValueError, match=r"layers\.2\.mlp\.up_proj"):
        convert(request(write_llama(tmp_path / "in", tensors, ONLINE), tmp_path / "out.gguf"))
