"""The words of `Recipe` for attention, feed-forward, routers and norms, each on its own: transformers' module with
random weights against our block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from transformers.activations import ACT2CLS
from transformers.models.afmoe.modeling_afmoe import AfmoeAttention
from transformers.models.cohere2.modeling_cohere2 import Cohere2DecoderLayer
from transformers.models.exaone4.modeling_exaone4 import Exaone4DecoderLayer
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextAltUp, Gemma3nTextLaurelBlock, Gemma3nTextMLP
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextExperts, Gemma4TextRouter
from transformers.models.glm4.modeling_glm4 import Glm4DecoderLayer, Glm4RotaryEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssMLP, GptOssRotaryEmbedding
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1Attention
from transformers.models.laguna.modeling_laguna import LagunaAttention
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention, Llama4TextMoe, Llama4TextRotaryEmbedding
from transformers.models.ministral3.modeling_ministral3 import Ministral3Attention
from transformers.models.nemotron.modeling_nemotron import NemotronMLP
from transformers.models.olmo3.modeling_olmo3 import Olmo3Attention
from transformers.models.phimoe.modeling_phimoe import sparsemixer as their_sparsemixer
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding
from transformers.models.smollm3.modeling_smollm3 import SmolLM3Attention

from ggferry.converters.forward.blocks import altup
from ggferry.converters.forward.blocks.attention import attention
from ggferry.converters.forward.blocks.experts import experts
from ggferry.converters.forward.blocks.feed_forward import dense, feed_forward
from ggferry.converters.forward.blocks.rope import rotation
from ggferry.converters.forward.blocks.routing import route, sparsemixer
from ggferry.converters.forward.computations.decoder import after_block as decoder_block
from ggferry.converters.forward.model import Model
from helpers.held_weights import held_model

COUNT, WIDTH, HEAD = 19, 48, 12
BASE: dict[str, Any] = {
    "hidden_size": WIDTH, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": HEAD, "intermediate_size": 56,
    "num_hidden_layers": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "vocab_size": 64, "pad_token_id": 0,
}
SIZES: dict[str, Any] = {
    "n_embd": WIDTH, "n_head": 8, "n_head_kv": 2, "head_dim": HEAD, "n_layer": 4, "n_ctx": 64, "eps": 1e-5,
    "n_rot": HEAD, "rope_base": 10000.0,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 5}
PROJECTIONS = {f"attn_{name}.weight": f"{name}_proj.weight" for name in "qkv"} | {"attn_output.weight": "o_proj.weight"}
BIASES = {ours.replace("weight", "bias"): theirs.replace("weight", "bias") for ours, theirs in PROJECTIONS.items()}
QK_NORM = {"attn_q_norm.weight": "q_norm.weight", "attn_k_norm.weight": "k_norm.weight"}
GATED = {f"ffn_{name}.weight": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
pytestmark = pytest.mark.filterwarnings("ignore")
torch.manual_seed(3)
INPUT = torch.randn(COUNT, WIDTH)
POSITIONS = torch.arange(COUNT)[None]


def config(kind: str, **changes: Any) -> Any:
    found = getattr(tf, f"{kind}Config")(**{**BASE, "rope_parameters": dict(ROPE), **changes})
    found._attn_implementation = "eager"
    return found


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


def ours(module: torch.nn.Module, names: dict[str, str], sizes: dict[str, Any] | None = None, **recipe: Any) -> Model:
    held = dict(module.named_parameters())
    tensors = {f"blk.0.{mine}": held[theirs] for mine, theirs in names.items()}
    return held_model(tensors, {**SIZES, **(sizes or {})}, **{"rope": "halves", **recipe})


def agree(expected: torch.Tensor, found: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).norm() / expected.norm()) < 3e-6


def mask(window: int = 0) -> torch.Tensor:
    ahead = torch.arange(COUNT)[None] - torch.arange(COUNT)[:, None]
    hidden = (ahead > 0) | (ahead <= -window) if window else ahead > 0
    return torch.zeros(COUNT, COUNT).masked_fill(hidden, float("-inf"))[None, None]


def angles(n_rot: int = HEAD) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 10000.0 ** -(torch.arange(0, n_rot, 2, dtype=torch.float64) / n_rot)
    table = torch.outer(torch.arange(COUNT, dtype=torch.float64), frequencies).repeat(1, 2)[None]
    return table.cos().float(), table.sin().float()


def attended(model: Model, window: int = 0) -> torch.Tensor:
    return attention(model, "blk.0.", INPUT, rotation(model, COUNT, window > 0), window)


def theirs(module: torch.nn.Module, window: int = 0, **more: Any) -> torch.Tensor:
    return module(INPUT[None], position_embeddings=angles(), attention_mask=mask(window), **more)[0][0]


# --- attention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 5])
def test_sinks(window: int) -> None:
    module = shaken(GptOssAttention(config("GptOss", **WINDOWED), 0 if window else 1))
    cos, sin = (part[..., : HEAD // 2] for part in angles())
    expected = module(INPUT[None], position_embeddings=(cos, sin), attention_mask=mask(window))[0][0]
    model = ours(module, PROJECTIONS | BIASES | {"attn_sinks.weight": "sinks"})
    agree(expected, attended(model, window))


def test_queries_and_keys_normed_over_their_full_width() -> None:
    module = shaken(Olmo3Attention(config("Olmo3", **WINDOWED, head_dim=6), 1))
    module.head_dim = 6
    cos, sin = angles(6)
    expected = module(INPUT[None], position_embeddings=(cos, sin), attention_mask=mask())[0][0]
    agree(expected, attended(ours(module, PROJECTIONS | QK_NORM, {"head_dim": 6, "n_rot": 6}, qk_norm="full")))


def test_queries_and_keys_normed_after_they_are_turned() -> None:
    module = shaken(HunYuanDenseV1Attention(config("HunYuanDenseV1"), 0))
    names = {"attn_q_norm.weight": "query_layernorm.weight", "attn_k_norm.weight": "key_layernorm.weight"}
    agree(theirs(module), attended(ours(module, PROJECTIONS | names, qk_norm_at="after")))


@pytest.mark.parametrize("block", [2, 3])
def test_blocks_without_rotation(block: int) -> None:
    module = shaken(SmolLM3Attention(config("SmolLM3", no_rope_layer_interval=4), block))
    agree(theirs(module), attended(ours(module, PROJECTIONS, {"rope_layers": block != 3})))


@pytest.mark.parametrize("block", [0, 1])
def test_a_gate_an_element_of_a_matrix_of_its_own(block: int) -> None:
    """Afmoe: and no rotation where there is no window."""
    module = shaken(AfmoeAttention(config("Afmoe", **WINDOWED), block))
    model = ours(module, PROJECTIONS | QK_NORM | {"attn_gate.weight": "gate_proj.weight"}, {"rope_layers": block == 0})
    window = 0 if block else 5
    agree(theirs(module, window), attended(model, window))


@pytest.mark.parametrize("gating", ["per-head", "per-element"])
def test_a_softplus_gate(gating: str) -> None:
    module = shaken(LagunaAttention(config("Laguna", **WINDOWED, gating=gating), 1, 8))
    names = PROJECTIONS | QK_NORM | {"attn_gate.weight": "g_proj.weight"}
    agree(theirs(module), attended(ours(module, names, gate_activation="softplus")))


def test_a_gate_beside_every_query() -> None:
    module = shaken(Qwen3NextAttention(config("Qwen3Next", partial_rotary_factor=1.0), 3))
    model = ours(module, PROJECTIONS | QK_NORM, attn_gate="query", norm_offset=1.0)
    agree(theirs(module), attended(model))


def test_temperature_in_all_blocks() -> None:
    yarn = {**ROPE, "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.7}
    module = shaken(Ministral3Attention(config("Ministral3", rope_parameters=yarn), 0))
    expected = theirs(module, position_ids=POSITIONS)
    agree(expected, attended(ours(module, PROJECTIONS, {"temperature_scale": 0.7, "temperature_length": 4},
                                  temperature="all")))


@pytest.mark.parametrize("block", [0, 3])
def test_unweighted_norms_where_queries_turn_and_temperature_where_not(block: int) -> None:
    made = config("Llama4Text", attn_scale=0.7, floor_scale=4, no_rope_layer_interval=4, use_qk_norm=True)
    module = shaken(Llama4TextAttention(made, block))
    turns = Llama4TextRotaryEmbedding(made)(INPUT[None], POSITIONS)
    expected = module(INPUT[None], position_embeddings=turns, attention_mask=mask())[0][0]
    sizes = {"temperature_scale": 0.7, "temperature_length": 4, "rope_layers": block != 3}
    words = {"rope": "pairs", "qk_norm": "unweighted", "qk_norm_at": "after", "temperature": "unrotated"}
    agree(expected, attended(ours(module, PROJECTIONS, sizes, **words)))


def test_attention_in_chunks() -> None:
    made = tf.Llama4TextConfig(
        **BASE, rope_parameters=ROPE, intermediate_size_mlp=56, moe_layers=[], attention_chunk_size=6,
        no_rope_layers=[1] * 4, layer_types=["chunked_attention"] * 4,
    )
    made._attn_implementation = "eager"
    from transformers.masking_utils import create_chunked_causal_mask

    chunks = create_chunked_causal_mask(made, INPUT[None], None, None)
    module = shaken(Llama4TextAttention(made, 0))
    turns = Llama4TextRotaryEmbedding(made)(INPUT[None], POSITIONS)
    expected = module(INPUT[None], position_embeddings=turns, attention_mask=chunks)[0][0]
    model = ours(module, PROJECTIONS, rope="pairs", qk_norm="unweighted", qk_norm_at="after", window="chunked")
    agree(expected, attended(model, 6))


@pytest.mark.parametrize(("kind", "made"), [
    (Qwen2VLRotaryEmbedding, {"mrope_section": [1, 2, 3]}),
    (Qwen3VLTextRotaryEmbedding, {"mrope_section": [2, 2, 2], "mrope_interleaved": True}),
])
def test_several_axes_of_position_are_one_for_text(kind: Any, made: dict[str, Any]) -> None:
    name = "Qwen2VLText" if kind is Qwen2VLRotaryEmbedding else "Qwen3VLText"
    found = config(name, rope_parameters={**ROPE, **made})
    found.head_dim = HEAD
    cos, sin = kind(found)(INPUT[None], POSITIONS[None].expand(3, 1, COUNT))
    turn = rotation(held_model({}, SIZES, rope="halves"), COUNT)
    assert turn is not None
    for whole, half in zip((cos, sin), turn, strict=True):
        assert torch.allclose(whole.reshape(-1, COUNT, HEAD)[0], half.repeat(1, 2), atol=2e-6)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_rounds_its_range_or_not(truncate: bool) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 3.0, "beta_slow": 0.4,
            "original_max_position_embeddings": 32, "truncate": truncate}
    cos, sin = GptOssRotaryEmbedding(config("GptOss", rope_parameters=yarn))(INPUT[None], POSITIONS)
    sizes = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_beta_fast": 3.0, "rope_beta_slow": 0.4,
             "rope_original": 32, "rope_truncate": truncate}
    turn = rotation(held_model({}, {**SIZES, **sizes}, rope="halves"), COUNT)
    assert (
        turn is not None and torch.allclose(cos[0], turn[0], atol=2e-6) and torch.allclose(sin[0], turn[1], atol=2e-6)
    )


# --- blocks and norms ---------------------------------------------------------------------------------------


def with_prefix(names: dict[str, str], prefix: str) -> dict[str, str]:
    return {mine: f"{prefix}{name}" for mine, name in names.items()}


@pytest.mark.parametrize("block", [0, 1])
def test_norms_behind_the_branches_alone(block: int) -> None:
    """EXAONE 4: and no rotation where there is no window."""
    module = shaken(Exaone4DecoderLayer(config("Exaone4", **WINDOWED), block))
    window = 0 if block else 5
    expected = module(INPUT[None], position_embeddings=angles(), attention_mask=mask(window))[0]
    norms = {"post_attention_norm.weight": "post_attention_layernorm.weight",
             "post_ffw_norm.weight": "post_feedforward_layernorm.weight"}
    names = with_prefix(PROJECTIONS | QK_NORM, "self_attn.") | GATED | norms
    model = ours(module, names, {"n_swa": window, "rope_layers": block == 0}, pre_norm=False)
    agree(expected, decoder_block(model, "blk.0.", INPUT))


def test_norms_before_and_behind_and_gate_and_up_in_one() -> None:
    made = config("Glm4", rope_parameters={**ROPE, "partial_rotary_factor": 0.5}, attention_bias=True)
    module = shaken(Glm4DecoderLayer(made, 0))
    turns = Glm4RotaryEmbedding(made)(INPUT[None], POSITIONS)
    expected = module(INPUT[None], position_embeddings=turns, attention_mask=mask())[0]
    norms = {"attn_norm": "input_layernorm", "post_attention_norm": "post_self_attn_layernorm",
             "ffn_norm": "post_attention_layernorm", "post_ffw_norm": "post_mlp_layernorm",
             "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
    biases = {name: theirs for name, theirs in BIASES.items() if "output" not in name}
    names = with_prefix(PROJECTIONS | biases, "self_attn.") | {f"{a}.weight": f"{b}.weight" for a, b in norms.items()}
    model = ours(module, names, {"n_rot": HEAD // 2}, rope="pairs", ffn="fused")
    agree(expected, decoder_block(model, "blk.0.", INPUT))


def test_branches_side_by_side_of_one_norm() -> None:
    module = shaken(Cohere2DecoderLayer(config("Cohere2", **WINDOWED, layer_norm_eps=1e-5), 1))
    expected = module(INPUT[None], position_embeddings=angles(), attention_mask=mask())
    expected = expected[0] if isinstance(expected, torch.Tensor) else expected[0][0]
    names = with_prefix(PROJECTIONS, "self_attn.") | GATED | {"attn_norm.weight": "input_layernorm.weight"}
    model = ours(module, names, {"rope_layers": False}, norm="layer", residual="parallel")
    agree(expected, decoder_block(model, "blk.0.", INPUT))


# --- feed-forward -------------------------------------------------------------------------------------------


def test_relu_squared_without_a_gate() -> None:
    module = shaken(NemotronMLP(config("Nemotron", hidden_act="relu2")))
    names = {f"ffn_{name}.weight": f"{name}_proj.weight" for name in ("up", "down")}
    agree(module(INPUT), dense(ours(module, names, ffn="plain", activation="relu_squared"), "blk.0.", INPUT))


def test_xielu() -> None:
    function = ACT2CLS["xielu"](alpha_p_init=0.4, alpha_n_init=0.9, beta=0.6, eps=-1e-3, dtype=torch.float32)
    with torch.no_grad():
        sizes = {"xielu_alpha_p": float(function.alpha_p), "xielu_beta": 0.6, "xielu_eps": -1e-3,
                 "xielu_alpha_n": float(function.alpha_n)}
        agree(function(INPUT), held_model({}, sizes, activation="xielu").activate(INPUT))


def test_sparse_activations() -> None:
    made = tf.Gemma3nTextConfig(hidden_size=WIDTH, intermediate_size=[56], activation_sparsity_pattern=[0.8],
                                num_hidden_layers=1, layer_types=["full_attention"], vocab_size=64)
    module = shaken(Gemma3nTextMLP(made, 0))
    names = {f"ffn_{name}.weight": f"{name}_proj.weight" for name in ("gate", "up", "down")}
    scale = float(torch.distributions.Normal(0, 1).icdf(torch.tensor(0.8)))
    agree(module(INPUT), dense(ours(module, names, {"sparsity_scale": scale}, activation="gelu_tanh"), "blk.0.", INPUT))


# --- experts and routers ------------------------------------------------------------------------------------


def test_clamped_experts_with_biases_chosen_by_logits() -> None:
    module = shaken(GptOssMLP(config("GptOss", num_local_experts=5, num_experts_per_tok=2)))
    with torch.no_grad():
        module.experts.gate_up_proj.mul_(6)  # so that the limit is met
    names = {"ffn_gate_inp.weight": "router.weight", "ffn_gate_inp.bias": "router.bias"}
    for ending, suffix in (("weight", ""), ("bias", "_bias")):
        names |= {f"ffn_{name}_exps.{ending}": f"experts.gate_up_proj{suffix}" for name in ("gate", "up")}
        names[f"ffn_down_exps.{ending}"] = f"experts.down_proj{suffix}"
    model = ours(module, names, {"n_expert_used": 2}, routing="chosen", glu="clamped", expert_rows=False,
                 gate_up="alternating")
    agree(module(INPUT[None])[0][0], feed_forward(model, "blk.0.", INPUT))


def test_weights_before_the_expert_beside_a_shared_one() -> None:
    made = tf.Llama4TextConfig(**BASE, num_local_experts=5, num_experts_per_tok=2, intermediate_size_mlp=56)
    module = shaken(Llama4TextMoe(made))
    names = {"ffn_gate_inp.weight": "router.weight", "ffn_down_exps.weight": "experts.down_proj"}
    names |= {f"ffn_{name}_exps.weight": "experts.gate_up_proj" for name in ("gate", "up")}
    names |= {f"ffn_{name}_shexp.weight": f"shared_expert.{name}_proj.weight" for name in ("gate", "up", "down")}
    model = ours(module, names, {"n_expert_used": 2}, routing="sigmoid", expert_weight="input", expert_rows=False,
                 gate_up="halves")
    agree(module(INPUT[None])[0], feed_forward(model, "blk.0.", INPUT))


def test_a_router_that_norms_the_state_and_experts_that_are_scaled() -> None:
    made = tf.Gemma4TextConfig(**BASE, num_experts=5, top_k_experts=2, moe_intermediate_size=20, enable_moe_block=True)
    made.rms_norm_eps = 1e-5
    router, module = shaken(Gemma4TextRouter(made)), shaken(Gemma4TextExperts(made))
    _, weights, chosen = router(INPUT)
    held = dict(module.named_parameters()) | {f"router.{name}": x for name, x in router.named_parameters()}
    names = {"ffn_gate_inp.weight": "router.proj.weight", "ffn_gate_inp.scale": "router.scale",
             "ffn_down_exps.scale": "router.per_expert_scale", "ffn_gate_up_exps.weight": "gate_up_proj",
             "ffn_down_exps.weight": "down_proj"}
    tensors = {f"blk.0.{mine}": held[theirs] for mine, theirs in names.items()}
    model = held_model(tensors, {**SIZES, "n_expert_used": 2, "expert_norm": True}, activation="gelu_tanh")
    agree(weights, route(model, "blk.0.", INPUT)[0])
    read = torch.randn(COUNT, WIDTH)
    agree(module(read, chosen, weights), experts(model, "blk.0.", read, seen=INPUT))


def test_sparsemixer() -> None:
    scores = torch.randn(200, 7)
    weights, chosen = sparsemixer(scores, 0.4)
    expected, numbers = their_sparsemixer(scores, 0.4, False)
    agree(expected, weights)
    assert torch.equal(numbers, chosen) and float(weights.max()) <= 1 and (weights < 0.999).any()


# --- streams ------------------------------------------------------------------------------------------------

GEMMA3N = tf.Gemma3nTextConfig(hidden_size=WIDTH, laurel_rank=6, altup_num_inputs=3, altup_active_idx=1,
                               num_hidden_layers=2, rms_norm_eps=1e-5, vocab_size=64)


def test_streams_are_predicted_and_corrected() -> None:
    module = shaken(Gemma3nTextAltUp(GEMMA3N))
    names = {"predict_coef": "prediction_coefs", "correct_coef": "correction_coefs", "router": "modality_router",
             "router_norm": "router_norm"}
    made = {f"altup_{mine}.weight": f"{theirs}.weight" for mine, theirs in names.items()}
    model = ours(module, made, {"altup_active": 1})
    streams = torch.randn(3, COUNT, WIDTH)
    predicted = module.predict(streams[:, None])[:, 0]
    agree(predicted, altup.predicted(model, "blk.0.", streams))
    agree(module.correct(predicted[:, None], INPUT[None])[:, 0],
          altup.corrected(model, "blk.0.", predicted, INPUT))


def test_laurel() -> None:
    module = shaken(Gemma3nTextLaurelBlock(GEMMA3N))
    names = {"laurel_l": "linear_left", "laurel_r": "linear_right", "laurel_post_norm": "post_laurel_norm"}
    model = ours(module, {f"{mine}.weight": f"{theirs}.weight" for mine, theirs in names.items()})
    agree(module(INPUT), altup.laurel(model, "blk.0.", INPUT))
