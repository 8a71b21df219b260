"""OpenELM: blocks of their own widths and numbers of heads; queries and keys normed head by head; gate and up in one
matrix.

Sources: llama.cpp `src/models/openelm.cpp`, `conversion/openelm.py`; the publisher's `modeling_openelm.py`, whose norms
have their epsilon in the code.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _openelm as openelm
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import block, roles

ROLES = roles(
    tensors.embedding("transformer.token_embeddings", "transformer.norm", output=""),
    block(
        norm("attn_norm", "attn_norm"),
        tensors.fused_attention("attn.qkv_proj", "attn.out_proj"),
        tensors.qk_norm("attn."),
        norm("ffn_norm", "ffn_norm"),
        linear("ffn_gate", "n_ff n_embd", "ffn.proj_1", Split(0, "n_ff")),
        linear("ffn_down", "n_embd n_ff", "ffn.proj_2"),
        linear("ffn_up", "n_ff n_embd", "ffn.proj_1", Split("n_ff", "2*n_ff")),
        layer="transformer.layers.{n}.",
    ),
)

SPEC = Architecture(
    name="openelm", runtimes=("llama.cpp",),
    display_name="OpenELM",
    hf_classes=("OpenELMForCausalLM",),
    hparams=openelm.HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"ffn": "fused"},
            drops=(common.DROP_BUFFERS,),
            fixed={"eps": 1e-6},
            ignored_keys=(
                IgnoredKey("qkv_multipliers num_gqa_groups", "the heads of each block say it"),
                IgnoredKey("share_input_output_layers", "always", (True,)),
                IgnoredKey("rope_max_length", "how many angles are computed beforehand"),
            ),
        ),
    ),
    recipe={"rope": "halves", "qkv": "fused"},
)
