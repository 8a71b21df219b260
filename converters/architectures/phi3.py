"""Phi-3 and Phi-4: LLaMA with fused projections; long contexts by two sets of rotary factors.

Source: llama.cpp `src/models/phi3.cpp`, `conversion/phi.py`, transformers `modeling_phi3.py`. GGUF keeps the fused
matrices: queries above keys above values, gate above up.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

# transformers overwrites what stands with the factors by this key, which its class has where a file is silent.
_ORIGINAL = replace(rope.ORIGINAL_DECLARED, fields={"hf": "original_max_position_embeddings"})
# What Phi-3's first configurations call yarn are two lists of factors, too (transformers `configuration_phi3.py`).
_KIND = replace(rope.KIND_OR_FACTORS, words={**rope.KIND_OR_FACTORS.words, "yarn": "longrope"})
HPARAMS = (
    *common.SIZES, common.RMS_EPS,
    *({_ORIGINAL.name: _ORIGINAL, _KIND.name: _KIND}.get(param.name, param) for param in rope.ROPE_WITH_FACTORS),
    # 0 tells llama.cpp Phi-4 from the others: written in any case.
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, null=0, unrepresentable=0,
           defaults=(Default(0, "no sliding window is stated"),)),
    common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    rope.FACTORS,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.fused_attention(
            "self_attn.qkv_proj", "self_attn.o_proj", columns="n_head*head_dim_v",
            rows="n_head*head_dim+n_head_kv*(head_dim+head_dim_v)",
        ),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.linear("ffn_up", "2*n_ff n_embd", "mlp.gate_up_proj"),
        tensors.linear("ffn_down", "n_embd n_ff", "mlp.down_proj"),
    ),
)

IGNORED_KEYS = (
    common.UNBIASED,
    IgnoredKey("rope_parameters.original_max_position_embeddings rope_scaling.original_max_position_embeddings",
               "overwritten by the key of the model", follows="rope_original_stated"),
    IgnoredKey("lm_head_bias", "there is none", (False,)),
    IgnoredKey("min_num_patches max_num_patches", "of the vision half, dropped"),
    IgnoredKey("full_attn_mod interpolate_factor", "of Phi-4-mini's training, and without effect", (1,)),
)

HF = Dialect("hf", drops=common.DROPS, caveats=(*rope.CAVEATS, common.WINDOW, rope.UNFACTORED),
    ignored_keys=IGNORED_KEYS)

SPEC = Architecture(
    name="phi3", runtimes=("llama.cpp",),
    display_name="Phi-3",
    hf_classes=("Phi3ForCausalLM", "Phi4ForCausalLMV"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *half.of(HF, "phi3", "phi4-siglip", "phi4_siglip"),
    ),
    recipe={"rope": "halves", "qkv": "fused", "ffn": "fused"},
)
SPEC = half.with_base(SPEC, "Phi3Model")
