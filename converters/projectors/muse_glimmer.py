"""Muse Glimmer's tower: patches of two frames that a still picture sums, sampled positions, norms before and behind the
blocks, rotation along two axes, windows as large as the table of positions but for every fourth block and the last.

Source: transformers `MuseGlimmerVisionModel`; llama.cpp `conversion/muse_glimmer.py`,
`tools/mtmd/models/muse-glimmer.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _tower_sizes as towers
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.layouts.towers import Summed
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={}, derive=towers.nominal_size),
    clip.V_PATCH_SIZE,
    clip.V_N_EMBD,
    clip.V_N_FF,
    clip.V_N_LAYER,
    clip.V_N_HEAD,
    *clip.COLORS,
    clip.V_EPS,
    vit.ROPE,
    HParam("positions_high", None, fields={"hf": "vision_config.pos_emb_height"}, required=False),
    HParam(
        "positions_wide", None, fields={"hf": "vision_config.pos_emb_width"}, required=False,
        check="positions_wide == positions_high",
    ),
    HParam("n_positions", None, fields={}, required=False),
    HParam(
        "v_merge", "vision.spatial_merge_size", fields={"hf": "vision_config.merge_size"}, words={2: 2},
        defaults=(Default(2, "squares of two by two patches"),),
    ),
    HParam(
        "listed_kinds", None, clip.BOOL, {"hf": "vision_config.layer_types"}, length="v_n_layer", required=False,
        words={"full_attention": True, "window_attention": False},
    ),
    HParam("block_kinds", None, clip.BOOL, derive=towers.muse_kinds, length="v_n_layer"),
    HParam("v_between", None, fields={"hf": "projector_hidden_size"}, required=False),
    clip.projector_act("gelu"),
    *vit.activation(gelu="gelu", usual="gelu"),
)
_AT = "model.vision_tower."
ROLES = roles(
    roles(
        f"v.patch_embd.weight plain : v_n_embd 3 v_patch_size v_patch_size "
        f"| hf {_AT}patch_embedder.patch_embedding.weight @still",
        still=Then(Summed(2), Reshape(("v_n_embd", "3", "v_patch_size", "v_patch_size"))),
    ),
    f"v.position_embd.weight f32 : n_positions v_n_embd | hf {_AT}patch_embedder.position_embedding_table.weight",
    vit.norm("v.pre_ln", f"{_AT}ln_pre"),
    vit.blocks(
        f"{_AT}layers.{{n}}.",
        vit.norm("ln1", "norm1"),
        roles(
            """
            attn_q.weight : v_n_embd v_n_embd | hf attn.q_proj.weight @pairs
            attn_q.bias   : v_n_embd          | hf attn.q_proj.bias @pairs
            attn_k.weight : v_n_embd v_n_embd | hf attn.k_proj.weight @pairs
            attn_k.bias   : v_n_embd          | hf attn.k_proj.bias @pairs
            """,
            pairs=heads_halves_to_pairs("v_n_head"),
        ),
        vit.linear("attn_v", "attn.v_proj", vit.WIDTH, vit.WIDTH),
        vit.linear("attn_out", "attn.proj", vit.WIDTH, vit.WIDTH),
        vit.norm("ln2", "norm2"),
        vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    vit.norm("v.post_ln", f"{_AT}ln_post"),
    vit.linear("mm.0", "model.vision_adapter.fc1", "v_between", "4*v_n_embd", bias=False),
    vit.linear("mm.1", "model.vision_adapter.fc2", "v_between", "v_between", bias=False),
    vit.linear("mm.2", "model.vision_projection", "v_projection", "v_between", bias=False),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="muse-glimmer",
    display_name="Muse Glimmer, vision encoder",
    hf_classes=("MuseGlimmerForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            fixed=clip.vision_fixed("muse-glimmer"),
            drops=clip.TEXT,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                vit.AXIAL,
                IgnoredKey("vision_config.patch_temporal", "a patch spans two frames", (2,)),
                IgnoredKey("preprocessor.max_image_tokens", "how large pictures may be: the runtime has its own limit"),
                IgnoredKey("out_hidden_size vision_config.max_position_embeddings", "the tensors say it"),
            ),
        ),
    ),
    caveats=(
        Caveat(
            "",
            "llama.cpp stretches the table of positions over a picture; the model samples it, fading where it ends, "
            "and takes the samples of rows and columns the other way round in pictures that are not square",
            differs_in="llama.cpp",
        ),
    ),
    recipe={
        "computation": "projector", "vision": "muse_glimmer", "norm": "layer", "ffn": "plain", "activation": "gelu",
        "rope": "pairs",
    },
)
