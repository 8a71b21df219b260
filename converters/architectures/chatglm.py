"""ChatGLM 2 to GLM-4-9B: gate and up in one matrix, half of each head turned, in pairs.

Sources: llama.cpp `src/models/chatglm.cpp`, `conversion/chatglm.py`; the publisher's `modeling_chatglm.py`, whose
queries, keys and values lie in one matrix; transformers `modeling_glm.py`, where they are apart. Of the latter
convert_hf_to_gguf takes neither the rotary base nor the epsilon.
"""

from dataclasses import replace

from ggferry.converters.architectures import _chatglm as chatglm
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles, varied

APART, JOINT, BIASED = "joint == 0", "joint == 1", "biased == 1"
ROLES = roles(
    tensors.embedding(),
    block(
        norm("attn_norm", "input_layernorm"),
        linear("attn_qkv", "(n_head+2*n_head_kv)*head_dim n_embd", "self_attn.qkv_proj", bias=BIASED, when=JOINT),
        tensors.attention(bias=BIASED, when=APART)[:3],
        tensors.attention(bias=BIASED, when=APART)[4:],
        linear("attn_output", "n_embd n_head*head_dim", "self_attn.o_proj"),
        norm("ffn_norm", "post_attention_layernorm"),
        linear("ffn_up", "2*n_ff n_embd", "mlp.gate_up_proj"),
        linear("ffn_down", "n_embd n_ff", "mlp.down_proj"),
    ),
)

HF = Dialect(
    "hf",
    drops=(*common.DROPS, *chatglm.BUFFERS),
    caveats=(*rope.CAVEATS, common.heads_as_wide_as_the_model("chatglm")),
    fixed={"joint": False},
)

THUDM = replace(
    HF, name="thudm", fields="hf", renames=(("transformer.", ""),), fixed={"joint": True, "tied": False},
    classes=("ChatGLMModel", "ChatGLMForConditionalGeneration"), conventions={"qkv": "fused"},
    ignored_keys=chatglm.IGNORED_KEYS,
)
# chatglm.cpp keeps the publisher's names.
FILE = replace(
    THUDM, name="chatglm.cpp", names="thudm", classes=(), header="header",
    required_tensors=("transformer.embedding.word_embeddings.weight", "transformer.output_layer.weight"),
)

SPEC = Architecture(
    name="chatglm", runtimes=("llama.cpp",),
    display_name="ChatGLM",
    hf_classes=("GlmForCausalLM", "ChatGLMModel", "ChatGLMForConditionalGeneration"),
    hparams=chatglm.HPARAMS,
    roles=varied(ROLES, "thudm", "hf", chatglm.NAMES),
    dialects=(
        HF,
        THUDM,
        FILE,
    ),
    recipe={"rope": "pairs", "ffn": "fused"},
)
SPEC = half.with_base(SPEC, "GlmModel")
