"""Youtu-VL's tower: SigLIP 2's blocks without a table of positions, rotated along two axes, that see windows of the
picture, all of it in some of them; squares of patches, normed twice, through a network.

Source: mlx-vlm (Blaizzy/mlx-vlm at 2a0d1c48, `mlx_vlm/models/youtu_vl/vision.py`, `config.py`); llama.cpp
`conversion/youtuvl.py`, `tools/mtmd/models/youtuvl.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.projectors import _windows as windows
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={"hf": "vision_config.image_size"}, defaults=(
        Default(560, "pictures are of any size; llama.cpp's own converter writes this", dialect="hf"),
    )),
    clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF, clip.V_N_LAYER, clip.V_N_HEAD, *clip.COLORS,
    vit.usual(clip.V_EPS, 1e-6), *vit.activation(usual="gelu_tanh", **vit.TANH),
    replace(qwen.MERGE, key="vision.spatial_merge_size"),
    HParam("v_window", "vision.window_size", fields={"hf": "vision_config.window_size"},
           check="2*v_patch_size <= v_window"),
    windows.FULL, windows.COUNT, *windows.LISTED,
)

_PIXELS = "3*v_patch_size*v_patch_size"
ROLES = roles(
    f"v.patch_embd.weight : v_n_embd {_PIXELS} | hf vision_tower.embeddings.patch_embedding.weight",
    "v.patch_embd.bias : v_n_embd | hf vision_tower.embeddings.patch_embedding.bias",
    siglip.BLOCKS,
    siglip.LAST_NORM,
    vit.norm("mm.input_norm", "merger.ln_q", bias=False),
    qwen.merger("merger.mlp.0", "merger.mlp.2"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="youtuvl",
    display_name="Youtu-VL, vision encoder",
    hf_classes=("YoutuVLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("youtuvl"),
            drops=(
                *clip.TEXT,
                Drop("vision_tower.embeddings.position_*", "positions that the model does not add: it rotates"),
                Drop("vision_tower.head.*", "it pools a picture into one vector, which nothing reads"),
            ),
            renames=(
                ("siglip2.vision_model.", "vision_tower."), ("siglip2.", "vision_tower."),
                ("model.siglip2.vision_model.", "vision_tower."), ("model.merger.", "merger."),
            ),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.num_patches", "the rows of a table that the model does not read"),
                IgnoredKey("vision_config.out_hidden_size", "the width of the text model", follows="v_projection"),
                IgnoredKey("vision_config.vision_use_head", "of the part that pools, which is dropped"),
                IgnoredKey("vision_config.temporal_patch_size vision_config.tokens_per_second", "of films"),
                IgnoredKey("preprocessor.max_num_patches", "how large pictures may be: the runtime has its own limit"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "youtuvl", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
        "rope": "halves", "patches": "pixels",
    },
)
