"""Mistral Small 4: DeepSeek's graph, whose queries grow with their position. Sources: `_deepseek`; llama.cpp
`src/models/mistral4.cpp`; transformers `modeling_mistral4.py`. Of a vision model the text half is taken.

Experts are scored by softmax. Checkpoints keep them one by one or, gate and up joined, in two stacks. Today's
convert_hf_to_gguf leaves `attention.temperature_scale` out.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.gguf.values import ValueType

F32 = ValueType.FLOAT32
_BETA = "rope_parameters.llama_4_scaling_beta|rope_scaling.llama_4_scaling_beta"
TEMPERATURE = (
    HParam("temperature_scale", "attention.temperature_scale", F32, {"hf": _BETA}, absent=0.0),
    HParam("temperature_length", "attention.temperature_length", derive="rope_original", required=False),
)
GATING = replace(deepseek.GATING, defaults=(Default(1, "Mistral 4 scores experts by softmax"),))

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"), latent_attention(halves="rope_halves"),
        deepseek.feed_forward(joined=True),
    ),
)
STACKED = "blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.down_proj"
CLASSES = ("Mistral3ForConditionalGeneration", "Mistral4ForCausalLM")
SINGLE = "*.self_attn.k_proj.weight"

HF = Dialect(
    "hf", conventions={"latent_kv": "joint"}, caveats=(*rope.CAVEATS, deepseek.EPSILON),
    fixed={"n_head_kv": 1, "joined": False, "expert_gating": 1},
    config_section=half.WITHIN, renames=half.RENAMES, classes=CLASSES, forbidden_tensors=(SINGLE,),
    drops=(*deepseek.DROPS, *half.drop_vision("*vision_tower.*", "*multi_modal_projector.*")),
    ignored_keys=(
        *deepseek.IGNORED_KEYS, half.VISION_KEYS, IgnoredKey("head_dim", "repeats qk_head_dim", follows="head_dim_mla"),
        IgnoredKey("rope_parameters.partial_rotary_factor", "qk_rope_head_dim says what turns"),
        IgnoredKey("rope_parameters.partial_rotary_factor", "the turned part of a head", follows="@latent_fraction"),
        IgnoredKey("rope_parameters.max_position_embeddings", "repeats max_position_embeddings"),
        IgnoredKey("multimodal_projector_bias projector_hidden_act spatial_merge_size", "of the vision half"),
    ),
)

SPEC = Architecture(
    name="mistral4", runtimes=("llama.cpp",),
    display_name="Mistral 4",
    hf_classes=("Mistral4ForCausalLM",),
    hparams=(
        *deepseek.SIZES, *deepseek.ROTARY_OF_EITHER, *TEMPERATURE, common.JOINED, *deepseek.DENSE,
        *deepseek.ROUTING, GATING, *deepseek.PLAIN,
    ),
    roles=varied(ROLES, "stacked", "hf", STACKED),
    dialects=(
        HF,
        replace(
            HF, name="stacked", fields="hf", forbidden_tensors=(SINGLE, "*.mlp.experts.0.gate_proj.weight"),
            fixed={"n_head_kv": 1, "joined": True, "expert_gating": 1},
        ),
    ),
    recipe={"attention": "latent", "temperature": "all", "group_rank": "two"},
)
