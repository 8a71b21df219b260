"""Qwen3-Next: three blocks of linear attention, one of gated attention, experts in all.

Sources: `_gated_delta`. Hugging Face keeps queries, keys, values and gates of the delta net in one matrix, group by
group: the heads that share a key. GGUF has all queries, all keys and all values, and the gates in another matrix.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gated_delta as delta
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import Regroup
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

_SHARE = "n_inner / n_group"
_GROUPED = Regroup("n_group", ("n_state", "n_state", _SHARE, _SHARE))
MIXED = Then(_GROUPED, Split(0, delta.CHANNELS))
GATE = Then(_GROUPED, Split(delta.CHANNELS, f"{delta.CHANNELS} + n_inner"))

HPARAMS = (
    *delta.HPARAMS, common.N_FF, *delta.EXPERTS,
    HParam("expert_norm", None, ValueType.BOOL, {"hf": "norm_topk_prob"}, words={True: True}, required=False),
    *common.ALL_SPARSE,
)

DELTA_NET = """
attn_qkv.weight  : 2*n_group*n_state+n_inner n_embd | hf linear_attn.in_proj_qkvz.weight @mixed
attn_gate.weight : n_inner n_embd                   | hf linear_attn.in_proj_qkvz.weight @gate
ssm_ba.weight    : 2*n_heads n_embd                 | hf linear_attn.in_proj_ba.weight
ssm_out.weight   : n_embd n_inner                   | hf linear_attn.out_proj.weight
"""
ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        delta.norms(),
        roles(DELTA_NET, when="recurrent == 1", mixed=MIXED, gate=GATE),
        delta.delta_net(),
        delta.attention(),
        tensors.experts(),
        delta.shared_expert(),
        nextn.tensors(ADD_ONE),
    ),
)

SPEC = Architecture(
    name="qwen3next", runtimes=("llama.cpp",),
    display_name="Qwen3-Next",
    hf_classes=("Qwen3NextForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={**delta.CONVENTIONS, "delta_projections": "grouped"},
            drops=(*delta.DROPS, *common.DROPS),
            appended_blocks=delta.APPENDED,
            export_renames=delta.EXPORTED,
            caveats=delta.CAVEATS,
            ignored_keys=delta.IGNORED_KEYS,
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe=delta.RECIPE,
)
SPEC = half.with_base(SPEC, "Qwen3NextModel")
