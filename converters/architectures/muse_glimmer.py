"""Muse Glimmer (Meta): blocks with a window turn queries and keys, every fourth sees all and does not; norms before and
behind both branches, these with an epsilon of their own; embeddings and queries and keys normed without weights;
attention gated; logits scaled, then capped.

Sources: llama.cpp `src/models/muse-glimmer.cpp`, `conversion/muse_glimmer.py`; transformers `modeling_muse_glimmer.py`.
Of the whole model the text half is taken.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _muse as muse
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.values import Plus
from ggferry.converters.schema.roles import block, roles

F32, BOOL, STRING = common.F32, common.BOOL, common.STRING
_HF = "transformers' default"
APPENDED = 1e-8

HPARAMS = (
    *common.SIZES, replace(common.RMS_EPS, defaults=(Default(1e-5, _HF, dialect="hf"),)), *rope.ROPE,
    HParam("eps_behind", None, F32, {"hf": "post_norm_eps"}, words={APPENDED: APPENDED},
           defaults=(Default(APPENDED, "a constant of the model"),)),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, check="0 < n_swa"),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, {"hf": "layer_types"}, length="n_layer",
           words=common.LAYER_WINDOWS.words, derive=muse.windowed),
    common.N_WINDOWS,
    HParam("rope_bases", None, F32, {"hf": "layer_rope_theta"}, length="n_layer", required=False),
    HParam("rope_layers", None, BOOL, derive=muse.rotated, length="n_layer"),
    HParam("other_bases", None, derive=muse.other_bases, check="other_bases == 0"),
    HParam("turned_otherwise", None, derive=muse.rotated_differently, check="turned_otherwise == 0"),
    HParam("qk_scale", None, F32, {"hf": "qk_scale_factor"}, required=False,
           defaults=(Default(3.87, _HF, dialect="hf"),)),
    HParam("logit_scale", "logit_scale", F32, {"hf": "output_multiplier"}, unrepresentable=0.0,
           defaults=(Default(0.19611613513818404, _HF, dialect="hf"),)),
    HParam("final_softcap", "final_logit_softcapping", F32, {"hf": "final_logit_softcapping"}, absent=30.0,
           unrepresentable=0.0, defaults=(Default(20.0, _HF, dialect="hf"),)),
    HParam("activation", None, STRING, {"hf": "hidden_activation|hidden_act"}, words=common.SILU.words, required=False),
    common.TIED,
)

CENTERED = Plus(1.0)
NORMED = """
attn_q_norm.weight f32 : head_dim | hf =query
attn_k_norm.weight f32 : head_dim | hf =key
"""
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm", layout=CENTERED),
        tensors.paired_attention(),
        roles(NORMED, query=muse.query_norm, key=muse.key_norm),
        tensors.linear("attn_gate", "n_head*head_dim n_embd", "self_attn.gate_proj", SAME),
        tensors.norm("post_attention_norm", "post_attention_layernorm", layout=CENTERED),
        tensors.norm("ffn_norm", "pre_feedforward_layernorm", layout=CENTERED),
        tensors.gated(),
        tensors.norm("post_ffw_norm", "post_feedforward_layernorm", layout=CENTERED),
    ),
)
SEEN = ("model.vision_tower.*", "model.vision_adapter.*", "model.vision_projection.*")

SPEC = Architecture(
    name="muse-glimmer", runtimes=("llama.cpp",),
    display_name="Muse Glimmer",
    hf_classes=("MuseGlimmerForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={
                "rope": "halves", "norm_offset": 1.0,
                "offset_norms": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
            },
            drops=(*common.DROPS, *half.drop_vision(*SEEN)),
            caveats=rope.CAVEATS,
            config_section=half.WITHIN,
            renames=half.RENAMES,
            ignored_keys=(
                common.UNBIASED, half.VISION_KEYS,
                IgnoredKey("out_hidden_size projector_*", "of the vision half, dropped"),
            ),
        ),
    ),
    recipe={"embedding_scale": "normed"},
    caveats=(common.NO_WINDOW, common.own_output("muse-glimmer")),
)
