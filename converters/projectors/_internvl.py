"""InternVL's tower: hparams, and roles under the names of its publisher (`hf`) and transformers (`tf`)."""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _llava as llava
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Caveat, Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import roles, varied

_LARGE = "v_n_embd == 3200 and v_n_layer == 45"
"""The one tower that llama.cpp computes with RMSNorm (InternViT-6B)."""


def _norm(values: Values) -> str:
    """Return the norm of the blocks: llama.cpp knows one tower with RMSNorm, InternViT-6B, by its sizes."""
    return "rms" if (values["v_n_embd"], values["v_n_layer"]) == (3200, 45) else "layer"


def _post_normed(values: Values) -> bool:
    """Return whether the states that are read were normed.

    Those behind all blocks are, of a tower that is not pooled by a mean (transformers `InternVLVisionModel.layernorm`);
    another layer, also the same one by its number, is read as it leaves its block.
    """
    return not values["mean_pooled"] and values["feature_layers"] in (-1, (-1,))


HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={}, derive=lambda values: _one(values["image_sides"])),
    replace(clip.V_PATCH_SIZE, fields={}, derive=lambda values: _one(values["patch_sides"])),
    HParam("image_sides", None, fields={"hf": "vision_config.image_size"}, length="n_sides", allow_scalar=True,
        required=False),
    HParam("patch_sides", None, fields={"hf": "vision_config.patch_size"}, length="n_sides", allow_scalar=True,
        required=False),
    HParam("n_sides", None, derive="2"),
    clip.V_N_EMBD,
    clip.V_N_FF,
    *llava.feature_layer("vision_feature_layer|select_layer", usual=(llava.LAST,)),
    llava.SELECTED,
    HParam("mean_pooled", None, clip.BOOL, {"hf": "vision_config.use_mean_pooling"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    HParam("post_normed", None, clip.BOOL, derive=_post_normed, required=False),
    clip.projector_act("gelu"),
    clip.V_N_HEAD,
    *clip.COLORS,
    clip.V_EPS,
    *vit.activation(),
    HParam(
        "downsample_ratio", None, clip.F32, {"hf": "downsample_ratio"}, required=False, check="0 < downsample_ratio"
    ),
    HParam(
        "v_merge",
        "vision.projector.scale_factor",
        derive=vit.inverse_of("downsample_ratio"),
        defaults=(vit.UNMERGED,),
        check="0 < v_merge",
    ),
    HParam(
        "qk_normed", None, clip.BOOL, {"hf": "vision_config.use_qk_norm|vision_config.qk_normalization"}, required=False
    ),
    HParam("v_min_tiles", "vision.preproc_min_tiles", fields={"hf": "min_dynamic_patch"}, required=False),
    HParam("v_max_tiles", "vision.preproc_max_tiles", fields={"hf": "max_dynamic_patch"}, required=False),
    HParam(
        "norm",
        None,
        clip.STRING,
        {"hf": "vision_config.norm_type"},
        required=False,
        words={"layer_norm": "layer", "rms_norm": "rms"},
        derive=_norm,
        check=f'norm == "layer" or {_LARGE}',
    ),
)


def _one(sides: tuple[int, ...] | int) -> int:
    """Return the side of a square, of which a configuration states one number or two."""
    found = {sides} if isinstance(sides, int) else set(sides)
    if len(found) != 1:
        raise ValueError(f"sides of {sides} pixels: GGUF knows squares only")
    return int(found.pop())


QK_NORMED = Caveat(
    'qk_normed == 1 and norm == "layer"',
    "llama.cpp (b11549) norms queries and keys by LayerNorm, as it does states, the model by RMSNorm",
    differs_in="llama.cpp",
)
_PATCHES = vit.PATCHES
_SQUARE = "v_n_embd*v_merge*v_merge"
_CHAT = roles(
    f"""
    v.class_embd f32               : v_n_embd               | hf embeddings.class_embedding @vector
    v.position_embd.weight f32     : {_PATCHES}+1 v_n_embd  | hf embeddings.position_embedding @grid
    """,
    under={"hf": "vision_model."},
    vector=Reshape(("v_n_embd",)),
    grid=Reshape((f"{_PATCHES}+1", "v_n_embd")),
)
_BLOCKS = vit.blocks(
    "vision_model.encoder.layers.{n}.",
    vit.norm("ln1", "norm1", bias="optional"),
    vit.cut("attn.qkv", "attn.proj", bias="optional"),
    """
    attn_q_norm.weight f32 optional : v_n_embd | hf attn.q_norm.weight
    attn_k_norm.weight f32 optional : v_n_embd | hf attn.k_norm.weight
    ls1.weight f32 : v_n_embd | hf ls1
    ls2.weight f32 : v_n_embd | hf ls2
    """,
    vit.norm("ln2", "norm2", bias="optional"),
    vit.plain("mlp.fc1", "mlp.fc2"),
)
_PROJECTOR = roles(
    vit.norm("mm.model.mlp.0", "mlp1.0", width=_SQUARE),
    vit.linear("mm.model.mlp.1", "mlp1.1", "v_projection", _SQUARE),
    vit.linear("mm.model.mlp.3", "mlp1.3", "v_projection", "v_projection"),
)
_NAMES = {
    "ln1": "layernorm_before",
    "ln2": "layernorm_after",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.projection_layer",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_LAYER = "vision_tower.encoder.layer.{n}."
_OURS = [
    f"v.blk.{{n}}.{ours}.{part} {_LAYER}{theirs}.{part}"
    for ours, theirs in _NAMES.items()
    for part in ("weight", "bias")
]
_OURS += [f"v.blk.{{n}}.attn_{x}_norm.weight {_LAYER}attention.{x}_norm.weight" for x in "qk"]
_OURS += [f"v.blk.{{n}}.ls{i}.weight {_LAYER}lambda_{i}" for i in (1, 2)]
_OURS += [
    f"mm.model.mlp.{i}.{part} multi_modal_projector.{name}.{part}"
    for i, name in ((0, "layer_norm"), (1, "linear_1"), (3, "linear_2"))
    for part in ("weight", "bias")
]
_OURS += [
    f"v.patch_embd.{part} vision_tower.embeddings.patch_embeddings.projection.{part}" for part in ("weight", "bias")
]
_OURS += [
    "v.class_embd vision_tower.embeddings.cls_token @vector",
    "v.position_embd.weight vision_tower.embeddings.position_embeddings @grid",
]
_POST = roles(
    """
    v.post_ln.weight f32 when=post_normed==1 : v_n_embd | tf vision_tower.layernorm.weight
    v.post_ln.bias when=post_normed==1       : v_n_embd | tf vision_tower.layernorm.bias
    """
)
_TOWER = varied(
    roles(vit.patches("vision_model.embeddings.patch_embedding"), _CHAT, _BLOCKS, _PROJECTOR),
    "tf",
    "hf",
    "\n".join(_OURS),
    vector=Reshape(("v_n_embd",)),
    grid=Reshape((f"{_PATCHES}+1", "v_n_embd")),
)
ROLES = roles(_TOWER, _POST)
