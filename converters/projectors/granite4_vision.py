"""Granite 4 Vision's tower: SigLIP, states of several of whose blocks go through a Q-Former each, window by window.

Some projectors average squares of patches for their queries, four take one corner of every square. The rows of each are
added before another block of the text model (`granite.deepstack_mapping` in the other file). Projectors are numbered in
the order of these blocks. Source: transformers `modeling_granite4_vision.py`, `modeling_blip_2.py`; llama.cpp
`conversion/granite.py` (`Granite4VisionMmprojModel`), `tools/mtmd/models/granite4-vision.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _granite_vision as granite
from ggferry.converters.projectors import _llava as llava
from ggferry.converters.projectors import _qformer as qformer
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

INT32 = ValueType.INT32
_CODE = "what transformers' code has"
HPARAMS = (
    clip.PROJECTOR, *clip.VISION,
    # llama.cpp norms what goes into the projectors with the tower's epsilon, the model always with this one
    replace(vit.usual(clip.V_EPS, 1e-6), words={1e-6: 1e-6}),
    HParam("tile", None, derive="v_image_size", check="tile % v_patch_size == 0"),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
    HParam("selected", None, clip.STRING, {"hf": "vision_feature_select_strategy"}, words={"full": "full"},
           required=False),
    HParam("row_pairs", None, clip.F32, {"hf": "deepstack_layer_map"}, length="n_pairs", flat=True, required=False),
    HParam("n_pairs", None, derive=granite.pairs, required=False),
    HParam("corner_states", None, clip.F32, {"hf": "spatial_vision_layer"}, required=False,
           defaults=(Default(-1, _CODE, dialect="hf"),)),
    HParam("corner_blocks", None, fields={"hf": "spatial_target_layers"}, length="n_corners", required=False,
           defaults=(Default((12, 15, 18, 21), _CODE, dialect="hf"),)),
    HParam("n_corners", None, derive=granite.corner_count, required=False),
    HParam("averaging_first", None, derive=granite.averaging_first, length="n_proj", required=False),
    HParam("corners_first", None, derive=granite.corners_first, length="n_proj", required=False),
    HParam("v_feature_layer", "vision.feature_layer", INT32, derive=granite.states, length="n_proj"),
    HParam("v_corners", "vision.projector.spatial_offsets", INT32, derive=granite.corners, length="n_proj", least=-1),
    HParam("n_proj", None, derive=granite.count),
    HParam("downsample_rate", None, clip.STRING, {"hf": "downsample_rate"}, required=False),
    HParam("v_query_side", "vision.projector.query_side", derive=granite.query_side, check="0 < v_query_side"),
    HParam("v_window_side", "vision.projector.window_side", derive=granite.window_side,
           check="v_window_side == 2*v_query_side and v_image_size//v_patch_size % v_window_side == 0"),
    HParam("grid_sizes", None, fields={"hf": "image_grid_pinpoints"}, length="n_edges", flat=True, required=False),
    HParam("n_edges", None, derive=llava.size_count),
    HParam("v_grid_sizes", "vision.image_grid_pinpoints", INT32, derive=llava.sizes, length="n_edges"),
    HParam("n_inner", None),
    # of the Q-Formers: llama.cpp has no key for these, and takes them for granted
    HParam("query_layers", None, fields={"hf": "qformer_config.num_hidden_layers"}, required=False,
           check="query_layers == 1"),
    HParam("query_cross", None, fields={"hf": "qformer_config.cross_attention_frequency"}, required=False,
           check="query_cross == 1"),
    HParam("query_act", None, clip.STRING, {"hf": "qformer_config.hidden_act"}, words={"gelu": "gelu"}, required=False),
    HParam("query_eps", None, clip.F32, {"hf": "qformer_config.layer_norm_eps"}, words={1e-12: 1e-12}, required=False),
    HParam("query_heads", None, derive="v_n_embd//64", check="query_heads*64 == v_n_embd"),
)

_AT = "projectors.{n}."
ROLES = roles(
    vit.patches("vision_tower.embeddings.patch_embedding"), vit.table("vision_tower.embeddings.position_embedding"),
    siglip.BLOCKS,
    "v.image_newline f32 : v_projection | hf image_newline",
    roles(
        """
        img_pos f32   : 1 v_window_side*v_window_side v_n_embd | hf image_positions
        query f32     : 1 v_query_side*v_query_side v_n_embd   | hf query
        """,
        vit.norm("norm", "norm"),
        vit.norm("post_norm", "qformer.layernorm"),
        vit.linear("linear", "out_linear", "v_projection", vit.WIDTH),
        under={"gguf": "v.proj_blk.{n}.", "hf": _AT},
    ),
    qformer.blocks("v.proj_blk.{n}.", f"{_AT}qformer.encoder.layer.0.", vit.WIDTH, vit.WIDTH, "n_inner"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="granite4_vision",
    display_name="Granite 4 Vision, vision encoder",
    hparams=HPARAMS,
    roles=ROLES,
    blocks={**clip.VISION_BLOCKS, "v.proj_blk.": "n_proj"},
    dialects=(
        Dialect(
            "hf",
            classes=("Granite4VisionForConditionalGeneration",),
            config_section="vision_config",
            types=("siglip_vision_model",),
            fixed=clip.vision_fixed("granite4_vision"),
            drops=(
                *clip.TEXT,
                Drop("vision_tower.head.*", "it pools a picture into one vector, which nothing reads"),
                Drop("vision_tower.post_layernorm.*", "a norm behind the last block, whose states are read before it"),
            ),
            renames=(
                *siglip.NAMES,
                ("model.layerwise_projectors.", "layerwise_projectors."),
                ("model.spatial_projectors.", "spatial_projectors."),
                ("model.image_newline", "image_newline"),
            ),
            renumbered=(
                ("layerwise_projectors.", "averaging_first", "projectors."),
                ("spatial_projectors.", "corners_first", "projectors."),
            ),
            nested=("vision_config", "qformer_config"),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.vision_use_head", "of the part that pools, which is dropped"),
                IgnoredKey("projector_hidden_act", "of LLaVA's network, which no projector here is"),
                IgnoredKey("vision_feature_layer", "the pairs of blocks say which states are read"),
                IgnoredKey("qformer_config.hidden_size qformer_config.encoder_hidden_size "
                           "qformer_config.num_attention_heads",
                           "the class takes the tower's width, and heads of 64"),
                IgnoredKey("qformer_config.*_dropout_prob qformer_config.initializer_range", "used in training only"),
                IgnoredKey("qformer_config.vocab_size qformer_config.max_position_embeddings "
                           "qformer_config.position_embedding_type qformer_config.use_qformer_text_input",
                           "of the part of a Q-Former that reads, which this one lacks"),
                IgnoredKey("qformer_config.intermediate_size", "the tensors say it"),
                IgnoredKey("preprocessor.image_grid_pinpoints preprocessor.downsample_rate "
                           "preprocessor.vision_feature_select_strategy", "repeats config.json"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "granite4_vision", "norm": "layer", "ffn": "plain",
        "activation": "gelu_tanh",
    },
)
