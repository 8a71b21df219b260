"""CodeShell: layer norms, biases throughout, joint queries, keys and values that heads share in groups.

Sources: llama.cpp `src/models/codeshell.cpp`, `conversion/codeshell.py`; the publisher's `modeling_codeshell.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import norm, plain
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

_ROTATED = {"rope": "rope"}
HPARAMS = (
    common.N_VOCAB, gpt.N_CTX, gpt.N_EMBD, gpt.N_LAYER, replace(gpt.N_FF, derive="4 * n_embd"), gpt.N_HEAD,
    replace(common.N_HEAD_KV, fields={"hf": "num_query_groups"}), gpt.HEAD_DIM, gpt.EPS,
    replace(rope.BASE, fields={"hf": "rope_theta"}), rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("positions", None, ValueType.STRING, {"hf": "position_embedding_type"}, words=_ROTATED, required=False),
    HParam("scaled", None, ValueType.BOOL, {"hf": "scale_attn_weights"}, words={True: True}, required=False),
    HParam("grouped", None, ValueType.BOOL, {"hf": "group_query_attention"}, words={True: True}, required=False),
    HParam("activation", None, ValueType.STRING, {"hf": "activation_function"},
           words={"gelu_pytorch_tanh": "gelu_tanh"}, required=False),
    replace(common.TIED, defaults=(Default(True, "transformers' default", dialect="hf"),)),
)

ROLES = roles(
    tensors.embedding("transformer.wte", "transformer.ln_f", bias=True),
    block(
        norm("attn_norm", "ln_1", bias=True),
        tensors.fused_attention("attn.c_attn", "attn.c_proj", bias=True),
        norm("ffn_norm", "ln_2", bias=True),
        plain(names=("c_fc", "c_proj"), bias=True),
        layer="transformer.h.{n}.",
    ),
)

SPEC = Architecture(
    name="codeshell", runtimes=("llama.cpp",),
    display_name="CodeShell",
    hf_classes=("CodeShellForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(
                *common.DROPS, *gpt.DROP_MASKS,
                Drop("*.attn.rotary_emb.*", "a buffer: it follows from the rotary base", follows=True),
            ),
            caveats=(*rope.CAVEATS, common.own_output("codeshell")),
            ignored_keys=(gpt.UPCAST,),
        ),
    ),
    recipe={"norm": "layer", "rope": "halves", "qkv": "fused", "ffn": "plain", "activation": "gelu_tanh"},
)
