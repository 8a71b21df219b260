"""MiMo-V2.5's queries, keys and values lie rank by rank in one matrix: transformers' model of the same weights, in
matrices of their own, is the witness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward, part_compared
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError
from helpers.next_tokens import further_logits, predicting
from helpers.quantized_llama import request
from helpers.tiny import TOKENS
from helpers.tiny_models import TINY, make, relative, write

RANKS, BLOCK = 2, 32
FP8 = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
Tensors = dict[str, torch.Tensor]


def ranked(parts: list[torch.Tensor]) -> torch.Tensor:
    """The first rank's queries, keys and values, then those of the second."""
    return torch.cat([torch.cat([part.chunk(RANKS)[rank] for part in parts]) for rank in range(RANKS)])


def packed(weight: torch.Tensor, ranks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FP8, scales of blocks that begin anew with each rank, and what both mean: llama.cpp `_tp_aware_qkv_dequant`."""
    values, scales, meaning = [], [], []
    for part in weight.chunk(ranks):
        down, across = (-(-size // BLOCK) for size in part.shape)
        scale = torch.rand(down, across) * 0.5 + 0.5
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: part.shape[0], : part.shape[1]]
        values.append((part / spread).to(torch.float8_e4m3fn))
        scales.append(scale)
        meaning.append(values[-1].float() * spread)
    return torch.cat(values), torch.cat(scales), torch.cat(meaning)


def published(
    folder: Path, quantized: bool = True, layout: str | None = "fused_qkv", further: int = 0, **changes: Any
) -> np.ndarray:
    """Save the tiny model as MiMo-V2.5 is published; return transformers' logits of what its matrices mean.

    With blocks that predict further tokens, whose matrices lie in ranks, too, their logits follow; without, it has two
    tensors that are no whole block.
    """
    import transformers

    if further:
        predicting("mimo2", folder, further)
    else:
        make("mimo2", folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    saved: Tensors = {name: value for name, value in tensors.items() if "self_attn" not in name or "sink" in name}
    torch.manual_seed(3)
    blocks = [f"model.layers.{n}" for n in range(config["num_hidden_layers"])]
    for at in (f"{block}.self_attn." for block in (*blocks, *(f"model.mtp.layers.{n}" for n in range(further)))):
        names = [f"{at}{part}_proj.weight" for part in "qkv"]
        fused = ranked([tensors[name] for name in names])
        saved[f"{at}o_proj.weight"] = tensors[f"{at}o_proj.weight"]
        saved[f"{at}qkv_proj.weight"] = fused
        if quantized:
            values, scales, fused = packed(fused, RANKS)
            saved |= {f"{at}qkv_proj.weight": values, f"{at}qkv_proj.weight_scale_inv": scales}
        cut = [fused_rank.split([len(tensors[name]) // RANKS for name in names]) for fused_rank in fused.chunk(RANKS)]
        tensors |= {name: torch.cat([rank[part] for rank in cut]) for part, name in enumerate(names)}
    saved |= {"visual.blocks.0.weight": torch.ones(2, 3), "speech_embeddings.0.weight": torch.ones(2, 3)}
    if not further:
        saved["model.mtp.layers.0.enorm.weight"] = torch.ones(48)
    if quantized and not further:
        drafting = "model.mtp.layers.0.self_attn.qkv_proj.weight"
        saved |= {drafting: torch.ones(140, 48).to(torch.float8_e4m3fn), f"{drafting}_scale_inv": torch.ones(9, 9)}
    save_file(saved, folder / "model.safetensors")
    config |= {"architectures": ["MiMoV2ForCausalLM"], "model_type": "mimo_v2", **changes}
    config |= {"quantization_config": FP8} if quantized else {}
    config |= {"attention_projection_layout": layout} if layout else {}
    (folder / "config.json").write_text(json.dumps(config))
    own = transformers.MiMoV2FlashConfig(**json.loads(json.dumps(TINY["mimo2"].config)))
    own.sliding_window = config["sliding_window"]
    own._attn_implementation = "eager"
    network = transformers.MiMoV2FlashForCausalLM(own).float().eval()
    reference = folder.with_name(f"{folder.name} reference")
    network.save_pretrained(reference)
    save_file(tensors, reference / "model.safetensors", {"format": "pt"})
    network = transformers.MiMoV2FlashForCausalLM.from_pretrained(reference, attn_implementation="eager").float().eval()
    with torch.no_grad():
        found: np.ndarray = network(torch.tensor([TOKENS])).logits[0].numpy()
    return np.concatenate((found, further_logits("mimo2", reference, further))) if further else found


@pytest.mark.parametrize(("quantized", "layout"), [(True, "fused_qkv"), (True, None), (False, "fused_qkv")])
def test_logits_are_those_of_separate_matrices(quantized: bool, layout: str | None, tmp_path: Path) -> None:
    """Where the configuration is silent the scales say it: they are more than those of an uncut matrix."""
    expected = published(tmp_path / "in", quantized, layout)
    result = convert(request(tmp_path / "in", tmp_path / "out.gguf"))[0]
    written = graph_of(str(tmp_path / "out.gguf"))
    assert relative(expected, forward(written, TOKENS)) < 1e-5
    assert result.receipt["logits"]["relative_rms"] < 2e-6
    assert {drop["name"] for drop in result.receipt["dropped"]} >= {
        "visual.blocks.0.weight",
        "speech_embeddings.0.weight",
        "model.mtp.layers.0.enorm.weight",
    }
    assert not quantized or "quantized matrices computed alike" in result.proof.second_reader.line


@pytest.mark.unix("open files passed to the second reader")
@pytest.mark.parametrize("quantized", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_blocks_that_predict_further_tokens_lie_in_ranks_too(quantized: bool, tmp_path: Path) -> None:
    """SGLang (`mimo_v2_nextn.py`) and llama.cpp's converter (b11549, `dequant_model`) cut them as the decoder's."""
    expected = published(tmp_path / "in", quantized, further=2)
    result = convert(request(tmp_path / "in", tmp_path / "out.gguf"))[0]
    written = graph_of(str(tmp_path / "out.gguf"))
    assert relative(expected, forward(written, TOKENS, part=part_compared(written))) < 1e-5
    assert "blocks that predict further tokens: 2" in result.receipt["logits"]["reached"]
    assert {"blk.0.attn_q.weight", "blk.5.attn_qkv.weight"} <= written.by_name.keys()
    assert not quantized or "quantized matrices computed alike" in result.proof.second_reader.line


@pytest.mark.slow
def test_the_three_are_joined_where_ranks_keep_them(tmp_path: Path) -> None:
    """As llama.cpp's converter writes MiMo-V2.5, in whose files nothing is apart."""
    expected = published(tmp_path / "in", quantized=False, further=1)
    source = understand(open_checkpoint(str(tmp_path / "in")), fuse_qkv=True)
    made = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert not [name for name in made.by_name if "attn_q." in name]
    assert relative(expected, forward(made, TOKENS, part=part_compared(made))) < 1e-5


def test_nothing_that_says_it_is_refused(tmp_path: Path) -> None:
    published(tmp_path / "in", quantized=False, layout=None)
    with pytest.raises(GgferryError, match="for how many ranks"):
        graph_of(str(tmp_path / "in"))


def test_another_number_of_scales_is_refused(tmp_path: Path) -> None:
    published(tmp_path / "in", num_key_value_heads=4)
    with pytest.raises(GgferryError, match="qkv_proj"):
        graph_of(str(tmp_path / "in"))
