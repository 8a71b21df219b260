"""What ERNIE 4.5 and its mixture share: LLaMA whose rotary pairs lie side by side in a checkpoint, too.

Sources: llama.cpp `src/models/ernie4-5{,-moe}.cpp`, `conversion/ernie.py`; transformers `modeling_ernie4_5{,_moe}.py`.
Baidu's own code holds queries, keys and values in one matrix, and gate and up in another, gate first.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Caveat, Default, Dialect, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import varied
from ggferry.formats.gguf.values import ValueType

BIASED = HParam("biased", None, ValueType.BOOL, {"hf": "use_bias"}, required=False, nonzero=True,
                defaults=(Default(False, "transformers' default", dialect="hf"),))
HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, common.ALWAYS_TIED, BIASED, common.SILU)
_BIAS = "biased == 1"


def chosen_by_bias(values: Values) -> bool:
    """Whether a bias takes part in the choice of experts: Baidu's code has none where moe_use_aux_free is false, and
    transformers' class always. Raises KeyError where nothing says so."""
    return bool(values["bias_there"] or values.get("bias_stated", True))


def attention() -> tuple[Role, ...]:
    """Return the first half of a block, and the norm of the second."""
    return (
        *tensors.norm("attn_norm", "input_layernorm"),
        *tensors.attention(bias=_BIAS, output_bias=_BIAS),
        *tensors.norm("ffn_norm", "post_attention_layernorm"),
    )


def gated(when: str = "") -> tuple[Role, ...]:
    """Return the dense feed-forward of a block."""
    return tensors.gated(bias=_BIAS, when=when)


_QUERIES, _KEYS = "n_head*head_dim", "n_head_kv*head_dim"
FUSED = """
    blk.{n}.attn_q.weight   model.layers.{n}.self_attn.qkv_proj.weight @queries
    blk.{n}.attn_k.weight   model.layers.{n}.self_attn.qkv_proj.weight @keys
    blk.{n}.attn_v.weight   model.layers.{n}.self_attn.qkv_proj.weight @values
    blk.{n}.attn_q.bias     model.layers.{n}.self_attn.qkv_proj.bias @queries
    blk.{n}.attn_k.bias     model.layers.{n}.self_attn.qkv_proj.bias @keys
    blk.{n}.attn_v.bias     model.layers.{n}.self_attn.qkv_proj.bias @values
    blk.{n}.ffn_gate.weight model.layers.{n}.mlp.up_gate_proj.weight @gate
    blk.{n}.ffn_up.weight   model.layers.{n}.mlp.up_gate_proj.weight @up
    blk.{n}.ffn_gate.bias   model.layers.{n}.mlp.up_gate_proj.bias @gate
    blk.{n}.ffn_up.bias     model.layers.{n}.mlp.up_gate_proj.bias @up
"""
FUSED_CONVENTIONS: Conventions = {"qkv": "fused", "ffn": "fused"}


def with_fused(table: Sequence[Role]) -> Sequence[Role]:
    """Return `table` with the dialect of Baidu's own code."""
    return varied(
        table, "fused", "hf", FUSED,
        queries=Split(0, _QUERIES), keys=Split(_QUERIES, f"{_QUERIES}+{_KEYS}"),
        values=Split(f"{_QUERIES}+{_KEYS}", f"{_QUERIES}+2*{_KEYS}"), gate=Split(0, "n_ff"), up=Split("n_ff", "2*n_ff"),
    )


def unloadable(architecture: str) -> Caveat:
    """Return the remark on a model with biases, which llama.cpp has not all of."""
    return Caveat(
        "biased == 1",
        f"llama.cpp does not run this model: {architecture} has no biases in the feed-forward there",
        unsupported_by="llama.cpp",
    )


RENAMES = (("ernie.", "model."),)
DROPS = (
    Drop("model.mtp_*", "predicts further tokens for speculative decoding: no part of the decoder"), *common.DROPS,
)
IGNORED_KEYS = (
    IgnoredKey("compression_ratio rope_scaling_factor", "not read where it is one", (1, 1.0)),
    IgnoredKey("use_rmsnorm", "always", (True,)),
    IgnoredKey("fuse_* use_flash_attention recompute* *_parallel* micro_batch_size max_sequence_length num_nextn*"
             " freq_allocation hidden_dropout_prob attention_probs_dropout_prob weight_share_add_bias",
             "how it is trained or computed, not what"),
)


def dialects(
    remarks: tuple[Caveat, ...], ignored: tuple[IgnoredKey, ...] = (), fused: bool = False
) -> tuple[Dialect, ...]:
    """Return what checkpoints speak, the dialect of Baidu's own code among them where it is `fused`."""
    hf = Dialect("hf", drops=DROPS, caveats=remarks, ignored_keys=(*IGNORED_KEYS, *ignored), renames=RENAMES)
    marks = ("*.self_attn.qkv_proj.weight", "*.mlp.up_gate_proj.weight")
    own = replace(hf, name="fused", fields="hf", required_tensors=marks, conventions=FUSED_CONVENTIONS)
    return (hf, own) if fused else (hf,)
