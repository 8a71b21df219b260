"""Gemma 4, the text half: blocks with a window and blocks without have heads of two widths and bases of their own;
values are normed, and may be the keys; the last blocks may take over keys and values, every block may have an embedding
of its own for each token, and experts may stand beside the feed-forward network.

Source: llama.cpp `src/models/gemma4.cpp`, `conversion/gemma.py`, transformers `modeling_gemma4.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma4 as gemma4
from ggferry.converters.architectures import _gemma_layers as gemma
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

BOOL, STRING = ValueType.BOOL, ValueType.STRING

SHARED = HParam(
    "shared_kv_layers", "attention.shared_kv_layers", fields={"hf": "num_kv_shared_layers"},
    defaults=(Default(0, "none, where nothing says otherwise"),), check="shared_kv_layers < n_layer",
)
FEED_FORWARD = (
    HParam("n_ff_stated", None, fields={"hf": "intermediate_size"}, required=False),
    HParam("double_wide", None, BOOL, {"hf": "use_double_wide_mlp"}, required=False),
    HParam("n_ff", "feed_forward_length", derive=gemma.widths, length="n_layer", allow_scalar=True),
    common.N_EXPERT,
    HParam("n_expert_used", "expert_used_count", fields={"hf": "top_k_experts|num_experts_per_tok"}, absent=0,
           own_only=True, check="n_expert_used <= n_expert and (n_expert == 0 or 0 < n_expert_used)"),
    HParam("n_ff_exp", "expert_feed_forward_length", fields={"hf": "moe_intermediate_size|expert_intermediate_size"},
           required=False),
    HParam("moe_block", None, BOOL, {"hf": "enable_moe_block"}, required=False,
           check="moe_block == 1 and n_expert > 0 or moe_block == 0 and n_expert == 0"),
)
_UNIFIED = tuple(
    Default(0, "transformers' default of the unified model, which has none", f'hf_class == "{name}"', dialect="hf")
    for name in ("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration")
)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, *gemma4.WINDOWS, SHARED, *gemma4.HEADS,
    common.RMS_EPS, *gemma4.ROPE, *FEED_FORWARD,
    replace(gemma.N_EMBD_PER_LAYER, defaults=(*_UNIFIED, *gemma.N_EMBD_PER_LAYER.defaults)), gemma.SOFTCAP_DECLARED,
    common.ALWAYS_TIED, common.GEMMA_GELU, common.GEMMA_ERF,
    # Pictures see what comes later ('vision'), text does not.
    HParam("bidirectional", None, STRING, {"hf": "use_bidirectional_attention"}, words={"vision": "vision"},
           required=False),
)

_OWN = "n < n_layer - shared_kv_layers"
ROLES = roles(
    tensors.embedding(),
    "rope_freqs.weight f32 : head_dim_full/2 | hf =factors",
    gemma.block_embeddings("n_embd_per_layer > 0"),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.linear("attn_q", "n_head*head_dim n_embd", "self_attn.q_proj"),
        tensors.linear("attn_k", "n_head_kv*head_dim n_embd", "self_attn.k_proj", when=_OWN),
        tensors.linear("attn_v", "n_head_kv*head_dim n_embd", "self_attn.v_proj",
                       when=f"{_OWN} and (k_is_v == 0 or swa_layers == 1)"),
        tensors.linear("attn_output", "n_embd n_head*head_dim", "self_attn.o_proj"),
        tensors.norm("attn_q_norm", "self_attn.q_norm", width="head_dim"),
        tensors.norm("attn_k_norm", "self_attn.k_norm", width="head_dim", when=_OWN),
        gemma.feed_forward_norms(),
        tensors.gated(),
        roles(
            """
            ffn_gate_inp.weight f32    : n_expert n_embd            | hf router.proj.weight
            ffn_gate_inp.scale f32     : n_embd                     | hf router.scale
            ffn_gate_up_exps.weight    : n_expert 2*n_ff_exp n_embd | hf experts.gate_up_proj
            ffn_down_exps.weight       : n_expert n_embd n_ff_exp   | hf experts.down_proj
            ffn_down_exps.scale f32    : n_expert                   | hf router.per_expert_scale
            pre_ffw_norm_2.weight f32  : n_embd                     | hf pre_feedforward_layernorm_2.weight
            post_ffw_norm_1.weight f32 : n_embd                     | hf post_feedforward_layernorm_1.weight
            post_ffw_norm_2.weight f32 : n_embd                     | hf post_feedforward_layernorm_2.weight
            """,
            when="n_expert > 0",
        ),
        gemma.block_input("n_embd_per_layer > 0"),
        "layer_output_scale.weight f32 optional : 1 | hf layer_scalar",
    ),
    factors=gemma.proportional_factors,
)

UNUSED = tuple(
    Drop(f"model.layers.{{n}}.self_attn.{name}.weight", "of a block that takes over keys and values",
         when="n >= n_layer - shared_kv_layers")
    for name in ("k_proj", "v_proj", "k_norm")
)

SPEC = Architecture(
    name="gemma4", runtimes=("llama.cpp",),
    display_name="Gemma 4",
    hf_classes=(
        "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForCausalLM",
        "Gemma4UnifiedForConditionalGeneration",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            caveats=(common.NO_WINDOW, common.ERF),
            drops=(*UNUSED, *common.DROPS, *gemma.DROPS),
            config_section=half.WITHIN,
            renames=half.RENAMES,
            fixed={"attn_scale": 1.0},
            ignored_keys=(common.UNBIASED, *gemma.IGNORED_KEYS, gemma.BY_BLOCK),
        ),
        Dialect("gguf", fixed={"attn_scale": 1.0}),
    ),
    recipe={
        "rope": "halves", "activation": "gelu_tanh", "embedding_scale": "sqrt_width", "v_norm": True,
        "expert_norm": True,
    },
)
