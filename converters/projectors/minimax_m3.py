"""MiniMax M3's tower: patches of two frames, normed, of whose heads three parts turn with time, row and column; every
patch through a network, then squares of them through another.

Source: transformers `MiniMaxM3VLVisionModel`; llama.cpp `conversion/minimax.py`, `tools/mtmd/models/minimax-m3.cpp`.
A source rotates by halves that hold the parts side by side; GGUF has each part with its own two halves.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import Heads, Rearrange
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    clip.V_IMAGE_SIZE,
    clip.V_PATCH_SIZE,
    clip.V_N_EMBD,
    clip.V_N_FF,
    clip.V_N_LAYER,
    clip.V_N_HEAD,
    *clip.COLORS,
    clip.V_EPS,
    vit.ROPE,
    HParam(
        "v_merge",
        "vision.spatial_merge_size",
        fields={"hf": "vision_config.spatial_merge_size|vision_config.img_token_compression_config.spatial_merge_size"},
        defaults=(Default(2, "squares of two by two patches"),),
        check="0 < v_merge",
    ),
    HParam("v_turned", None, derive="6*(v_n_embd//v_n_head//6)", check="0 < v_turned"),
    *vit.activation(gelu="gelu"),
)

_PARTS = Heads(
    "v_n_head", "v_turned", Rearrange("(half axis turn) -> (axis half turn)", (("half", 2), ("axis", 3)))
)
_SQUARE = "v_projection*v_merge*v_merge"
ROLES = roles(
    qwen.frames("vision_tower.embeddings.patch_embedding"),
    vit.norm("v.pre_ln", "vision_tower.pre_layrnorm"),
    vit.blocks(
        "vision_tower.encoder.layers.{n}.",
        vit.norm("ln1", "layer_norm1"),
        roles(
            """
            attn_q.weight : v_n_embd v_n_embd | hf self_attn.q_proj.weight @parts
            attn_q.bias   : v_n_embd          | hf self_attn.q_proj.bias @parts
            attn_k.weight : v_n_embd v_n_embd | hf self_attn.k_proj.weight @parts
            attn_k.bias   : v_n_embd          | hf self_attn.k_proj.bias @parts
            """,
            parts=_PARTS,
        ),
        vit.linear("attn_v", "self_attn.v_proj", vit.WIDTH, vit.WIDTH),
        vit.linear("attn_out", "self_attn.out_proj", vit.WIDTH, vit.WIDTH),
        vit.norm("ln2", "layer_norm2"),
        vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    vit.linear("mm.1", "multi_modal_projector.linear_1", "v_between", vit.WIDTH),
    vit.linear("mm.2", "multi_modal_projector.linear_2", "v_projection", "v_between"),
    vit.linear("mm.merger.fc1", "patch_merge_mlp.linear_1", "v_between", _SQUARE),
    vit.linear("mm.merger.fc2", "patch_merge_mlp.linear_2", "v_projection", "v_between"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="minimax_m3",
    display_name="MiniMax M3, vision encoder",
    hf_classes=("MiniMaxM3SparseForConditionalGeneration",),
    hparams=(
        *HPARAMS,
        HParam("v_between", None, fields={"hf": "projector_hidden_size"}, check="0 < v_between"),
    ),
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"axes": "in_turn"},
            fixed=clip.vision_fixed("minimax_m3"),
            drops=(*clip.TEXT, Drop("mtp.*", "of drafts, which this file is not for")),
            renames=(
                ("vision_tower.vision_model.", "vision_tower."),
                ("model.vision_tower.embeddings.proj.", "vision_tower.embeddings.patch_embedding."),
                ("model.vision_tower.layers.", "vision_tower.encoder.layers."),
                ("model.vision_tower.", "vision_tower."),
                ("model.multi_modal_projector.merge_linear_", "patch_merge_mlp.linear_"),
                ("model.multi_modal_projector.", "multi_modal_projector."),
            ),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                vit.AXIAL,
                IgnoredKey("vision_config.temporal_patch_size "
                         "vision_config.img_token_compression_config.temporal_patch_size", "a patch spans two frames",
                         (2,)),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "minimax_m3", "norm": "layer", "ffn": "plain", "activation": "gelu",
        "rope": "halves",
    },
)
