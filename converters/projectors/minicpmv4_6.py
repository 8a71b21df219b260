"""MiniCPM-V 4.6's tower: SigLIP with positions of the nearest of 70 by 70; behind one of its blocks squares of patches
see each other and become one, and behind the last one squares of those.

Source: transformers `MiniCPMV4_6VisionModel`; llama.cpp `conversion/minicpm.py`, `tools/mtmd/models/minicpmv.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _tower_sizes as towers
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={"hf": "preprocessor.scale_resolution|image_size|vision_config.image_size"}),
    clip.V_PATCH_SIZE,
    clip.V_N_EMBD,
    clip.V_N_FF,
    clip.V_N_LAYER,
    clip.V_N_HEAD,
    *clip.COLORS,
    vit.usual(clip.V_EPS, 1e-6),
    HParam("positions", None, fields={}, required=False, check="positions == 4900"),
    HParam(
        "mode", None, clip.STRING, {"hf": "preprocessor.downsample_mode|downsample_mode"}, words={"16x": "16x"},
        required=False,
    ),
    HParam(
        "v_merge", "vision.projector.scale_factor", words={4: 4},
        defaults=(Default(4, "squares of two by two patches, twice"),),
    ),
    # The tower's own number is overwritten by it, stated or not (`MiniCPMV4_6Config.__post_init__`).
    HParam(
        "insert_block", None, fields={"hf": "insert_layer_id"}, required=False,
        check="0 <= insert_block and insert_block < v_n_layer",
        defaults=(Default(6, "transformers' default", dialect="hf"),),
    ),
    HParam("v_insert", "vision.wa_layer_indexes", ValueType.INT32, derive=towers.insert_list, length="1"),
    *vit.activation(usual="gelu_tanh", gelu_pytorch_tanh="gelu_tanh"),
)
_SQUARE = "4*v_n_embd"
ROLES = roles(
    vit.patches("vision_tower.embeddings.patch_embedding"),
    "v.position_embd.weight f32 : positions v_n_embd | hf vision_tower.embeddings.position_embedding.weight",
    siglip.LAST_NORM,
    siglip.BLOCKS,
    roles(
        vit.norm("ln1", "layer_norm1"), vit.attention(), vit.norm("ds_ln", "pre_norm", width=_SQUARE),
        vit.linear("ds_ffn_up", "linear_1", "4*v_n_ff", _SQUARE),
        vit.linear("ds_ffn_down", "linear_2", vit.WIDTH, "4*v_n_ff"),
        under={"gguf": "v.vit_merger.", "hf": "vision_tower.vit_merger."},
    ),
    vit.norm("mm.input_norm", "merger.mlp.0.pre_norm", width=_SQUARE),
    vit.linear("mm.up", "merger.mlp.0.linear_1", _SQUARE, _SQUARE),
    vit.linear("mm.down", "merger.mlp.0.linear_2", "v_projection", _SQUARE),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="minicpmv4_6",
    display_name="MiniCPM-V 4.6, vision encoder",
    hf_classes=("MiniCPMV4_6ForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("minicpmv4_6"),
            drops=(*clip.TEXT, Drop("mtp.*", "of drafts, which this file is not for")),
            renames=(("model.merger.", "merger."), *siglip.NAMES),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.insert_layer_id", "what the whole model says wins, also where it is silent"),
                IgnoredKey("merger_times", "squares are merged once more behind the tower", (1,)),
                IgnoredKey("merge_kernel_size vision_config.window_kernel_size", "squares of two by two", ([2, 2],)),
                IgnoredKey("drop_vision_last_layer", "every block is computed", (False,)),
                IgnoredKey("vision_config.image_size image_size patch_size", "the table of positions says it"),
                IgnoredKey("preprocessor.max_slice_nums preprocessor.slice_mode preprocessor.use_image_id "
                         "preprocessor.image_feature_size preprocessor.im_* preprocessor.slice_* "
                         "preprocessor.unk preprocessor.version", "how pictures are cut into tiles"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "minicpmv4_6", "norm": "layer", "ffn": "plain",
        "activation": "gelu_tanh",
    },
)
