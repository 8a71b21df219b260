"""InternLM 2: LLaMA, whose queries, keys and values lie in one matrix, group by group.

Sources: llama.cpp `src/models/internlm2.cpp`, `conversion/internlm.py`; the publisher's `modeling_internlm2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _internlm2 as internlm2
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU)

ROLES = roles(
    tensors.embedding("model.tok_embeddings", output="output"),
    block(
        norm("attn_norm", "attention_norm"),
        linear("attn_q", "n_head*head_dim n_embd", "attention.wqkv", internlm2.QUERIES),
        linear("attn_k", "n_head_kv*head_dim n_embd", "attention.wqkv", internlm2.KEYS),
        linear("attn_v", "n_head_kv*head_dim n_embd", "attention.wqkv", internlm2.VALUES),
        linear("attn_output", "n_embd n_head*head_dim", "attention.wo"),
        norm("ffn_norm", "ffn_norm"),
        tensors.gated("feed_forward.", ("w1", "w2", "w3")),
    ),
)

HF = Dialect(
    "hf",
    conventions={"rope": "halves", "qkv": "grouped"},
    drops=common.DROPS,
    caveats=(*rope.CAVEATS, common.own_output("internlm2"), common.heads_as_wide_as_the_model("internlm2")),
    ignored_keys=(common.UNBIASED, IgnoredKey("bias", "there is none", (False,))),
)

SPEC = Architecture(
    name="internlm2", runtimes=("llama.cpp",),
    display_name="InternLM 2",
    hf_classes=("InternLM2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *half.of(HF, "internlm2"),
    ),
    recipe={"rope": "pairs"},
)
