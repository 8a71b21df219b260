"""CogVLM, the text half: LLaMA turned in halves, whose blocks have further matrices for what is seen.

Those matrices (`vis_*`) are copied and not computed with: tokens of text never pass them. Sources: llama.cpp
`src/models/cogvlm.cpp`, `conversion/cogvlm.py`; THUDM's `modeling_cogvlm.py`. CogVLM 2 has fewer keys than heads and
biases of what is seen, for which llama.cpp has no word.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES[:-3],
    replace(common.N_HEAD_KV, fields={"hf": "num_multi_query_heads"}, derive="n_head", check="n_head_kv == n_head"),
    *common.SIZES[-2:], common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU,
)

SEEING = """
vis_attn_qkv.weight    : 3*n_head*head_dim n_embd | hf self_attn.vision_expert_query_key_value.weight
vis_attn_output.weight : n_embd n_head*head_dim   | hf self_attn.vision_expert_dense.weight
vis_gate.weight        : n_ff n_embd              | hf mlp.vision_mlp.gate_proj.weight
vis_down.weight        : n_embd n_ff              | hf mlp.vision_mlp.down_proj.weight
vis_up.weight          : n_ff n_embd              | hf mlp.vision_mlp.up_proj.weight
"""
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.fused_attention("self_attn.language_expert_query_key_value", "self_attn.language_expert_dense"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated("mlp.language_mlp."),
        SEEING,
    ),
)

FIXED = Caveat(
    "rope_base != 10000 or n_head * head_dim != n_embd or rope_factor != 1",
    "llama.cpp does not run this model: in cogvlm it turns by a base of 10000, as it is, and takes all heads together "
    "to be as wide as the model",
    unsupported_by="llama.cpp",
)

FIRST = Caveat(
    "n_layer > 0",
    "llama.cpp b11549 continues a prompt with what follows its first token: its graph gives the logits of all tokens, "
    "of which it takes the first for the last",
    differs_in="llama.cpp",
)

SPEC = Architecture(
    name="cogvlm", runtimes=("llama.cpp",),
    display_name="CogVLM",
    hf_classes=("CogVLMForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(*common.DROPS, *half.drop_vision("model.vision.*")),
            caveats=rope.CAVEATS,
            ignored_keys=(
                common.UNBIASED,
                half.VISION_KEYS,
                IgnoredKey("template_version", "how a prompt is worded"),
            ),
        ),
    ),
    recipe={"rope": "halves", "qkv": "fused"},
    caveats=(FIXED, FIRST),
)
