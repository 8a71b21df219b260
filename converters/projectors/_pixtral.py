"""Pixtral's tower: gated blocks with RMSNorm, rotated along two axes in turn, before a network of two matrices."""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _llava as llava
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.roles import roles

MERGE = HParam(
    "v_merge", "vision.spatial_merge_size", fields={"hf": "spatial_merge_size"}, check="0 < v_merge",
    defaults=(
        vit.UNMERGED,
        Default(1, "LLaVA's projector merges none", 'hf_class == "LlavaForConditionalGeneration"', dialect="hf"),
    ),
)
HPARAMS = (
    clip.PROJECTOR, *(one for one in clip.VISION if one is not clip.V_N_LAYER), *llava.feature_layer(),
    clip.projector_act("gelu"),
    HParam("norm_eps", None, clip.F32, {"hf": "text_config.rms_norm_eps"}, required=False, check="norm_eps <= 0.00001"),
    replace(clip.V_EPS, fields={}, defaults=(Default(1e-5, "transformers: every norm of this tower", dialect="hf"),)),
    vit.ROPE, MERGE, *vit.activation(),
)
_HEADS = heads_halves_to_pairs("v_n_head")
_PROJECTIONS = "\n".join(
    f"attn_{x}.weight : v_n_embd v_n_embd | hf attention.{x}_proj.weight {'@heads' if x in 'qk' else ''}" for x in "qkv"
)
ROLES = roles(
    vit.patches("vision_tower.patch_conv", bias=False),
    vit.norm("v.pre_ln", "vision_tower.ln_pre", bias=False),
    vit.blocks(
        "vision_tower.transformer.layers.{n}.",
        vit.norm("ln1", "attention_norm", bias=False),
        roles(_PROJECTIONS, heads=_HEADS),
        vit.linear("attn_out", "attention.o_proj", vit.WIDTH, vit.WIDTH, bias=False),
        vit.norm("ln2", "ffn_norm", bias=False),
        vit.gated("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj", bias=False),
    ),
    roles(
        """
        mm.input_norm.weight f32 optional     : v_n_embd                          | hf norm.weight
        mm.patch_merger.weight plain optional : v_n_embd v_n_embd*v_merge*v_merge | hf patch_merger.merging_layer.weight
        """,
        under={"hf": "multi_modal_projector."},
    ),
    vit.linear("mm.1", "multi_modal_projector.linear_1", "v_projection", "v_n_embd", bias="optional"),
    vit.linear("mm.2", "multi_modal_projector.linear_2", "v_projection", "v_projection", bias="optional"),
)
NAMES = (
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.vision_encoder.", "vision_tower."),
    ("model.vision_projection.", "multi_modal_projector."),
)
HF = Dialect(
    "hf",
    conventions={"rope": "halves"},
    renames=NAMES,
    drops=(*clip.TEXT, llava.appended("vision_tower.transformer.layers.{n}.")),
    nested=("vision_config",),
    ignored_keys=(
        *vit.IGNORED_KEYS, vit.AXIAL,
        IgnoredKey("vision_config.vocab_size", "a tower has no vocabulary"),
        IgnoredKey("vision_config.head_dim", "the width over the heads", follows="v_n_embd / v_n_head"),
    ),
)
