"""What stands beside or in place of softmax attention, each on its own: transformers' module with random weights
against our block, as a checkpoint holds the weights and as GGUF does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from transformers import (
    BambaConfig,
    DeepseekV32Config,
    FalconH1Config,
    GlmMoeDsaConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    KimiLinearConfig,
    Lfm2Config,
    MiniCPM3Config,
    NemotronHConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)
from transformers.models.bamba.modeling_bamba import BambaMixer
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention, DeepseekV32RotaryEmbedding
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer, compute_mup_vector
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaAttention, GlmMoeDsaRotaryEmbedding
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMambaLayer
from transformers.models.jamba.modeling_jamba import JambaMambaMixer
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearAttention, KimiLinearDeltaAttention
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.minicpm3.modeling_minicpm3 import MiniCPM3Attention, MiniCPM3RotaryEmbedding
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from ggferry.converters.forward.blocks.mixers import mixed
from ggferry.converters.forward.blocks.rope import rotation
from helpers.held_weights import held_model

COUNT, WIDTH = 19, 48
Tensors = dict[str, torch.Tensor]
pytestmark = pytest.mark.filterwarnings("ignore")


def shaken(module: torch.nn.Module) -> torch.nn.Module:
    """Random weights that leave nothing alike."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            if tensor.ndim < 2 or "norm" in name:
                tensor.copy_(torch.rand_like(tensor) + 0.3)
            else:
                tensor.copy_(torch.randn_like(tensor) * 1.2 / tensor.shape[-1] ** 0.5)
    return module.eval()


def told(module: torch.nn.Module, **names: str) -> Tensors:
    """The module's tensors by our names: `ours="theirs"`, '__' for a dot of ours."""
    held = dict(module.named_parameters())
    return {f"blk.0.{ours.replace('__', '.')}": held[theirs] for ours, theirs in names.items()}


def agree(expected: torch.Tensor, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, Any], **recipe: Any) -> None:
    model = held_model(tensors, {"n_embd": WIDTH, "eps": 1e-5, "n_ctx": 64, **sizes}, **recipe)
    found = mixed(model, "blk.0.", INPUT, rotation(model, COUNT) if "n_rot" in sizes else None, 0)
    assert found is not None and found.shape == expected.shape
    assert float((found - expected).norm() / expected.norm()) < 3e-6


torch.manual_seed(3)
INPUT = torch.randn(COUNT, WIDTH)

# --- the delta rule -----------------------------------------------------------------------------------------

DELTA: dict[str, Any] = {
    "hidden_size": WIDTH,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "linear_conv_kernel_dim": 3,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 4,
}
DELTA_SIZES = {"n_group": 2, "n_heads": 6, "n_state": 10, "n_inner": 84}
DELTA_NAMES = {
    "ssm_conv1d__weight": "conv1d.weight",
    "ssm_dt__bias": "dt_bias",
    "ssm_a": "A_log",
    "ssm_norm__weight": "norm.weight",
    "ssm_out__weight": "out_proj.weight",
}


def test_a_gated_delta_net_with_projections_group_by_group() -> None:
    module = shaken(Qwen3NextGatedDeltaNet(Qwen3NextConfig(**DELTA), 0))
    expected = module(INPUT[None])[0]
    names = {"attn_qkv__weight": "in_proj_qkvz.weight", "ssm_ba__weight": "in_proj_ba.weight"}
    held = told(module, **DELTA_NAMES, **names)
    agree(expected, held, DELTA_SIZES, delta_projections="grouped")
    parts = held["blk.0.attn_qkv.weight"].view(2, -1, WIDTH).split([10, 10, 42, 42], 1)
    q, k, v, gate = (part.flatten(0, 1) for part in parts)
    held |= {"blk.0.attn_qkv.weight": torch.cat((q, k, v)), "blk.0.attn_gate.weight": gate}
    agree(expected, held | {"blk.0.ssm_a": -held["blk.0.ssm_a"].exp()}, DELTA_SIZES, decay="rate")


def test_a_gated_delta_net_whose_value_heads_gguf_tiles() -> None:
    module = shaken(Qwen3_5GatedDeltaNet(Qwen3_5TextConfig(**DELTA), 0))
    expected = module(INPUT[None])[0]
    names = {"attn_qkv": "in_proj_qkv", "attn_gate": "in_proj_z", "ssm_beta": "in_proj_b", "ssm_alpha": "in_proj_a"}
    held = told(module, **DELTA_NAMES, **{f"{ours}__weight": f"{theirs}.weight" for ours, theirs in names.items()})
    agree(expected, held, DELTA_SIZES)

    def tiled(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 3, -1).transpose(0, 1).reshape(x.shape)

    def values(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x[:40], tiled(x[40:])))

    moved = {
        name: (values if "qkv" in name or "conv" in name else tiled)(tensor)
        for name, tensor in held.items()
        if "norm" not in name and "out" not in name
    }
    held |= {**moved, "blk.0.ssm_out.weight": tiled(held["blk.0.ssm_out.weight"].T).T}
    agree(expected, held, DELTA_SIZES, delta_values="tiled")


KIMI = KimiLinearConfig(
    hidden_size=WIDTH,
    num_attention_heads=6,
    num_key_value_heads=6,
    linear_num_heads=6,
    linear_head_dim=10,
    linear_conv_kernel_dim=3,
    rms_norm_eps=1e-5,
    kv_lora_rank=20,
    qk_rope_head_dim=8,
    qk_nope_head_dim=12,
    v_head_dim=10,
    num_hidden_layers=2,
    layer_types=["linear_attention", "full_attention"],
)
KIMI._attn_implementation = "eager"


def test_kimi_delta_attention() -> None:
    module = shaken(KimiLinearDeltaAttention(KIMI, 0))
    pairs = {"f_a": "forget_gate.f_a", "f_b": "forget_gate.f_b", "g_a": "g_a", "g_b": "g_b", "beta": "b"}
    names = {f"ssm_{ours}__weight": f"{theirs}_proj.weight" for ours, theirs in pairs.items()}
    names |= {f"attn_{name}__weight": f"{name}_proj.weight" for name in "qkv"}
    names |= {"attn_output__weight": "o_proj.weight", "ssm_norm__weight": "o_norm.weight"}
    held = told(module, **names, ssm_dt__bias="forget_gate.dt_bias", ssm_a="forget_gate.A_log")
    for name, part in zip("qkv", dict(module.named_parameters())["conv1d.weight"].chunk(3), strict=True):
        held[f"blk.0.ssm_conv1d_{name}.weight"] = part
    agree(module(INPUT[None])[0], held, {"n_head": 6})


# --- convolution and state spaces ---------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_a_short_convolution(bias: bool) -> None:
    config = Lfm2Config(hidden_size=WIDTH, conv_L_cache=3, conv_bias=bias, num_hidden_layers=1, layer_types=["conv"])
    module = shaken(Lfm2ShortConv(config, 0))
    kinds = ("weight", "bias") if bias else ("weight",)
    names = {
        f"shortconv__{name}__{kind}": f"{name}.{kind}" for name in ("conv", "in_proj", "out_proj") for kind in kinds
    }
    agree(module(INPUT[None])[0], told(module, **names), {})


SPACE = {
    "hidden_size": WIDTH,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 7,
    "mamba_expand": 2,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 5,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 2,
}
SPACE_NAMES = {
    "ssm_in__weight": "in_proj.weight",
    "ssm_conv1d__weight": "conv1d.weight",
    "ssm_conv1d__bias": "conv1d.bias",
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_out__weight": "out_proj.weight",
}
SPACE_SIZES = {"n_group": 2, "n_heads": 6, "n_state": 7, "n_inner": 96}
MULTIPLIERS = (1.1, 0.8, 1.4, 0.6, 1.2)
NEMOTRON = {
    "hidden_size": WIDTH,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 7,
    "conv_kernel": 3,
    "chunk_size": 5,
    "layer_norm_epsilon": 1e-5,
    "time_step_min": 0.9,
}


def falcon(norm: bool) -> torch.nn.Module:
    """Its state space; the model multiplies what comes out of it."""
    config = FalconH1Config(
        **SPACE,
        mamba_d_ssm=96,
        mamba_rms_norm=norm,
        mamba_norm_before_gate=False,
        ssm_in_multiplier=1.3,
        ssm_multipliers=list(MULTIPLIERS),
    )
    module = FalconH1Mixer(config, 0)
    module.register_buffer("mup_vector", compute_mup_vector(config))
    return module


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (lambda: BambaMixer(BambaConfig(**SPACE), 0), {}),
        (lambda: GraniteMoeHybridMambaLayer(GraniteMoeHybridConfig(**SPACE, layer_types=["mamba"] * 2), 0), {}),
        (lambda: falcon(True), {"ssm_in_scale": 1.3, "ssm_scales": MULTIPLIERS}),
        (lambda: falcon(False), {"ssm_in_scale": 1.3, "ssm_scales": MULTIPLIERS}),
        (lambda: NemotronHMamba2Mixer(NemotronHConfig(**NEMOTRON), 0), {"dt_min": 0.9}),
    ],
    ids=["bamba", "granite hybrid", "falcon-h1 normed", "falcon-h1", "nemotron-h"],
)
def test_mamba2_beside_attention(make: Callable[[], torch.nn.Module], more: Mapping[str, Any]) -> None:
    module = shaken(make())
    names = {**SPACE_NAMES, "ssm_dt__bias": "dt_bias"}
    if "norm.weight" in dict(module.named_parameters()):
        names["ssm_norm__weight"] = "norm.weight"
    agree(module(INPUT[None])[0], told(module, **names), {**SPACE_SIZES, **more})


def test_mamba_whose_selections_are_normed_with_weights() -> None:
    config = JambaConfig(hidden_size=WIDTH, mamba_d_state=7, mamba_dt_rank=5, mamba_d_conv=3, rms_norm_eps=1e-5)
    module = shaken(JambaMambaMixer(config, 0))
    names = {**SPACE_NAMES, "ssm_x__weight": "x_proj.weight", "ssm_dt__weight": "dt_proj.weight"}
    names |= {f"ssm_{part}_norm__weight": f"{part}_layernorm.weight" for part in ("dt", "b", "c")}
    held = told(module, **names, ssm_dt__bias="dt_proj.bias")
    agree(module(INPUT[None])[0], held, {"n_inner": 96, "n_state": 7, "dt_rank": 5})


# --- latent attention ---------------------------------------------------------------------------------------

CAUSAL = torch.full((COUNT, COUNT), float("-inf")).triu(1)[None, None]
RANKS = {"kv_lora_rank": 20, "q_lora_rank": 28, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
LATENT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    **RANKS,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
LATENT_SIZES = {
    "n_head": 6,
    "kv_rank": 20,
    "n_rot": 8,
    "head_dim_mla": 20,
    "rope_base": 500.0,
    "eps": 1e-3,
    "latent_eps": 1e-6,
}
LATENT_NAMES = {
    "attn_kv_a_mqa__weight": "kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm__weight": "kv_a_layernorm.weight",
    "attn_kv_b__weight": "kv_b_proj.weight",
    "attn_output__weight": "o_proj.weight",
}
LOW_QUERIES = {
    "attn_q_a__weight": "q_a_proj.weight",
    "attn_q_a_norm__weight": "q_a_layernorm.weight",
    "attn_q_b__weight": "q_b_proj.weight",
}


def split(held: Tensors) -> Tensors:
    """The expansion as GGUF's deepseek2 has it: a transposed matrix a head for keys, one a head for values."""
    heads = held["blk.0.attn_kv_b.weight"].view(6, 22, 20)
    rest = {name: tensor for name, tensor in held.items() if "kv_b" not in name}
    return {**rest, "blk.0.attn_k_b.weight": heads[:, :12].mT, "blk.0.attn_v_b.weight": heads[:, 12:]}


def test_latent_attention_without_positions() -> None:
    module = shaken(KimiLinearAttention(KIMI, 1))
    held = told(module, **LATENT_NAMES, attn_q__weight="q_proj.weight")
    expected = module(INPUT[None], attention_mask=CAUSAL)[0][0]
    for tensors in (held, split(held)):
        agree(expected, tensors, {**LATENT_SIZES, "eps": 1e-5}, attention="latent", rope="none")


def test_latent_attention_whose_parts_turn_in_halves() -> None:
    config = MiniCPM3Config(**LATENT)
    module = shaken(MiniCPM3Attention(config, 0))
    turn = MiniCPM3RotaryEmbedding(config)(INPUT, torch.arange(COUNT)[None])
    expected = module(INPUT[None], position_embeddings=turn, attention_mask=CAUSAL)[0][0]
    held = told(module, **LATENT_NAMES, **LOW_QUERIES)
    agree(expected, held, LATENT_SIZES, attention="latent", rope="halves")


INDEX = {"index_n_heads": 5, "index_head_dim": 14, "index_topk": 4}


@pytest.mark.parametrize(
    ("config", "attention", "rope", "rotated"),
    [
        (DeepseekV32Config, DeepseekV32Attention, DeepseekV32RotaryEmbedding, "halves"),
        (GlmMoeDsaConfig, GlmMoeDsaAttention, GlmMoeDsaRotaryEmbedding, "pairs"),
    ],
    ids=["deepseek 3.2", "glm 5"],
)
def test_attention_to_what_an_indexer_chooses(config: Any, attention: Any, rope: Any, rotated: str) -> None:
    made = config(**LATENT, **INDEX, num_hidden_layers=2)
    module = shaken(attention(made, 0))
    turn = rope(made)(INPUT, torch.arange(COUNT)[None])
    found = module(INPUT[None], position_embeddings=turn, attention_mask=CAUSAL)
    pairs = {
        "attn_q_b__weight": "wq_b.weight",
        "attn_k__weight": "wk.weight",
        "proj__weight": "weights_proj.weight",
        "k_norm__weight": "k_norm.weight",
        "k_norm__bias": "k_norm.bias",
    }
    names = {f"indexer__{ours}": f"indexer.{theirs}" for ours, theirs in pairs.items()}
    held = split(told(module, **LATENT_NAMES, **LOW_QUERIES, **names))
    sizes = {**LATENT_SIZES, "index_heads": 5, "index_top_k": 4}
    agree(found[0][0], held, sizes, attention="latent", indexer_rope=rotated)
