"""Qwen3-VL with experts, the text half.

Source: llama.cpp `src/models/qwen3vlmoe.cpp`, transformers `modeling_qwen3_vl_moe.py`. Published checkpoints hold a
column an output of the experts' matrices (experts, in, out); transformers 5 saves a row an output (experts, out, in).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Pick, Stack, Transpose
from ggferry.converters.schema.roles import block, roles, varied

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE_OF_QWEN3_AXES, *half.DEEPSTACK, common.N_EXPERT, common.N_EXPERT_USED,
    common.N_FF_EXP,
    *common.ALL_SPARSE, common.TIED, common.SILU, *common.BIASES,
)

GATE = Pick("n_expert", 0, "n_ff_exp", stacked=True)
UP = Pick("n_expert", "n_ff_exp", "2*n_ff_exp", stacked=True)
ROLES = varied(
    roles(
        tensors.embedding(),
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            tensors.biased_attention(),
            tensors.qk_norm(),
            tensors.norm("ffn_norm", "post_attention_layernorm"),
            """
            ffn_gate_inp.weight f32 : n_expert n_embd          | hf mlp.gate.weight
            ffn_gate_exps.weight    : n_expert n_ff_exp n_embd | hf mlp.experts.gate_up_proj @gate
            ffn_down_exps.weight    : n_expert n_embd n_ff_exp | hf mlp.experts.down_proj @rotated
            ffn_up_exps.weight      : n_expert n_ff_exp n_embd | hf mlp.experts.gate_up_proj @up
            """,
            gate=Then(Transpose(), GATE), up=Then(Transpose(), UP), rotated=Transpose(),
        ),
    ),
    "hf5", "hf",
    """
    blk.{n}.ffn_gate_exps.weight model.layers.{n}.mlp.experts.gate_up_proj @gate
    blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.down_proj
    blk.{n}.ffn_up_exps.weight   model.layers.{n}.mlp.experts.gate_up_proj @up
    """,
    gate=GATE, up=UP,
)

ROLES = varied(
    ROLES, "omni", "hf",
    """
    blk.{n}.ffn_gate_exps.weight model.layers.{n}.mlp.experts.{e}.gate_proj.weight @one_by_one
    blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.{e}.down_proj.weight @one_by_one
    blk.{n}.ffn_up_exps.weight   model.layers.{n}.mlp.experts.{e}.up_proj.weight @one_by_one
    """,
    one_by_one=Stack(),
)

NORMED = IgnoredKey("norm_topk_prob", "this class always makes the weights of the chosen experts sum to one")

_HF = Dialect(
    "hf",
    conventions={"expert_rows": False, "gate_up": "halves"},
    drops=(*common.DROPS, *half.drop_vision("*visual.*")),
    caveats=(*rope.CAVEATS, common.biased_output("qwen3vlmoe")),
    config_section=half.WITHIN,
    renames=half.RENAMES,
    ignored_keys=(common.UNBIASED, half.VISION_KEYS, half.INTERLEAVED, NORMED),
)

SPEC = Architecture(
    name="qwen3vlmoe", runtimes=("llama.cpp",),
    display_name="Qwen3-VL-MoE",
    hf_classes=("Qwen3VLMoeForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        replace(
            _HF,
            name="hf5",
            fields="hf",
            conventions={"gate_up": "halves"},
            shapes=("*.mlp.experts.gate_up_proj: experts 2*ff width", "*.mlp.experts.down_proj: experts width ff"),
        ),
        _HF,
        # mlx-lm stacks experts otherwise, from which they are taken one by one.
        replace(
            _HF, name="apart", names="omni", fields="hf", conventions={},
            classes=("Qwen3VLMoeForConditionalGeneration",), forbidden_tensors=("*.mlp.experts.gate_up_proj",),
        ),
        # Qwen3-Omni keeps its experts one by one.
        replace(
            _HF, name="omni", fields="hf", conventions={}, classes=("Qwen3OmniMoeForConditionalGeneration",),
            config_section="thinker_config.text_config", nested=("thinker_config",), renames=(("thinker.", ""),),
            drops=(*_HF.drops, *half.drop_audio("audio_tower.*"), *half.drop_talker("talker.*", "code2wav.*")),
            ignored_keys=(*_HF.ignored_keys, half.THINKERS),
        ),
    ),
    recipe={"rope": "halves", "expert_norm": True},
)
