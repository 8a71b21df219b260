"""Granite Switch against transformers' Granite 4 with merged weights, and what is refused.

A text that begins with a token of an adapter passes through that adapter from its first token on, with another token
in its place: it is a Granite 4 whose matrices are W + B·A. A text without one is a Granite 4 of the base weights.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ggferry.converters import understand
from ggferry.converters.architectures import graniteswitch
from ggferry.converters.conversion.request import request_of
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.layouts.parts import BehindZeros
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.tiny_models import TOKENS, relative, write
from helpers.unclassed import FF, HEAD, SUBSTITUTES, SWITCHES, make_unclassed

PLAIN = [token for token in TOKENS if token not in SWITCHES]
pytestmark = pytest.mark.filterwarnings("ignore")


def granite(folder: Path, adapter: int) -> Any:
    """transformers' Granite 4 with the weights that an adapter, or none (0), leaves."""
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text())
    known = {key: config[key] for key in ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads",
                                          "rms_norm_eps", "attention_multiplier", "embedding_multiplier", "rope_theta",
                                          "residual_multiplier", "logits_scaling", "shared_intermediate_size")}
    layers = config["num_hidden_layers"] - 1
    model = transformers.GraniteMoeHybridForCausalLM(
        transformers.GraniteMoeHybridConfig(
            **known, num_hidden_layers=layers, layer_types=["attention"] * layers, num_local_experts=0, head_dim=HEAD,
            mamba_n_heads=2,
            tie_word_embeddings=True, position_embedding_type="rope", attn_implementation="eager",
        )
    )
    found, merged = load_file(folder / "model.safetensors"), {}
    for name, x in found.items():
        if ".base_layer." in name:
            at = name.removesuffix("base_layer.weight")
            if adapter:
                parts = sorted(key for key in found if key.startswith(f"{at}lora_A"))
                x = x + np.concatenate(
                    [found[key.replace("_A", "_B")][adapter - 1, 0] @ found[key][adapter - 1, 0] for key in parts]
                )
            name = f"{at}weight"
        if "lora" in name:
            continue
        if "qkv_proj" in name:
            sizes = np.cumsum([config["num_attention_heads"] * HEAD, config["num_key_value_heads"] * HEAD])
            cut = zip("qkv", np.split(x, sizes), strict=True)
            merged |= {name.replace("qkv_proj", f"{part}_proj"): rows for part, rows in cut}
        else:
            merged[name] = x
    told = model.load_state_dict({name: torch.tensor(x) for name, x in merged.items()}, strict=False)
    assert told.missing_keys == ["lm_head.weight"] and not told.unexpected_keys
    model.tie_weights()
    return model.double().eval()


def test_merged_weights(tmp_path: Path) -> None:
    import torch

    folder = make_unclassed("granite switch", tmp_path / "hf")
    source = graph_of(str(folder))
    written = graph_of(str(write(source, tmp_path / "x.gguf")))
    for adapter in range(len(SWITCHES) + 1):
        given = [SWITCHES[adapter - 1], *PLAIN] if adapter else PLAIN
        read = [SUBSTITUTES[adapter - 1], *PLAIN] if adapter else PLAIN
        with torch.no_grad():
            expected = granite(folder, adapter)(torch.tensor([read])).logits[0].numpy()
        for graph in (source, written):
            assert relative(expected, forward(graph, given)) <= 1e-5
        assert adapter == 0 or relative(expected, forward(source, read)) > 0.1


def test_tokens_before_an_adapter_pass_through_none(tmp_path: Path) -> None:
    graph = graph_of(str(make_unclassed("granite switch", tmp_path)))
    late = forward(graph, [*PLAIN[:6], SWITCHES[1], *PLAIN[6:]])
    plain = forward(graph, PLAIN)
    assert relative(plain[:6], late[:6]) <= 1e-6
    assert relative(plain[6:], late[7:]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [1, 3])
def test_llama_cpp_continues_with_an_adapter_as_we_do(adapter: int, tmp_path: Path) -> None:
    graph = graph_of(str(make_unclassed("granite switch", tmp_path / "hf")))
    path = write(graph, tmp_path / "x.gguf")
    prompt = [SWITCHES[adapter - 1], *PLAIN[:8]]
    (found,) = continuations(prompt, 2, path)
    assert found
    for token, probability in found:
        logits = forward(graph, prompt)[-1].astype(np.float64)
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert token == int(scores.argmax()) and probability == pytest.approx(scores.max(), abs=1e-4)
        prompt.append(token)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"control_dims": 2}, "control_dims"),
        ({"adapter_substitute_token_ids": [40, 9, 100000]}, "adapter_tokens_known"),
        ({"adapter_token_ids": [7, 7, 31]}, "adapter_tokens_known"),
        ({"adapter_token_ids": [7, 31]}, "adapter_tokens"),
        ({"qk_norm": True}, "qk_norm"),
        ({"num_local_experts": 4}, "num_local_experts"),
        ({"max_lora_rank": 5}, "lora_a"),
        ({"shared_intermediate_size": FF - 1}, "shared_mlp|n_ff"),
    ],
)
def test_what_llama_cpp_has_no_place_for_is_refused(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match=word):
        graph_of(str(make_unclassed("granite switch", tmp_path, **change)))


def converted(folder: Path, out: Path, **options: Any) -> Any:
    asked = {"out": str(out), "outtype": "f32", "no_vocab": True, **options}
    return convert(request_of(str(folder), asked))[0]


def test_every_adapter_has_a_prompt_in_the_proof(tmp_path: Path) -> None:
    receipt = converted(make_unclassed("granite switch", tmp_path / "hf"), tmp_path / "x.gguf").receipt
    names = [prompt["name"] for prompt in receipt["logits"]["prompts"]]
    assert names[-3:] == ["adapter 1", "adapter 2", "adapter 3"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("role", "source", "layout"),
    [
        ("attn_q.lora_b", "", BehindZeros()),
        ("attn_k.lora_b", "", BehindZeros(heads_halves_to_pairs("2*n_head_kv"))),
        ("attn_k.lora_a", "self_attn.qkv_proj.lora_A_slices.2", None),
        ("ffn_gate.lora_b", "shared_mlp.input_linear.lora_B_slices.1", None),
    ],
)
def test_adapters_bound_wrongly_are_noticed_by_the_proof(
    role: str, source: str, layout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's side of a forward pass uses no layout; a mix of two slices is what both sides would read."""
    spec = graniteswitch.SPEC

    def wrong(one: Role) -> Role:
        if one.name != f"blk.{{n}}.{role}":
            return one
        at = one.sources["hf"]
        patterns = (f"model.layers.{{n}}.{source}",) if source else at.patterns
        return replace(one, sources={"hf": replace(at, patterns=patterns, layout=layout or at.layout)})

    folder = make_unclassed("granite switch", tmp_path / "hf")
    read = replace(spec, roles=tuple(map(wrong, spec.roles)))
    monkeypatch.setattr(understand, "architectures_of_classes", lambda names: {"graniteswitch": read})
    with pytest.raises(GgferryError):
        converted(folder, tmp_path / "x.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8_0", "f16"])
def test_llama_cpp_reads_other_types(kind: str, tmp_path: Path) -> None:
    path = Path(converted(make_unclassed("granite switch", tmp_path / "hf"), tmp_path / "x.gguf", outtype=kind).path)
    kinds = {name: ref.type.name for name, ref in open_gguf(str(path)).tensors.items()}
    assert {kinds[name] for name in kinds if ".lora_" in name} <= {"F16", "F32"}
