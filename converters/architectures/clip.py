"""CLIP: an encoder of texts and one of pictures, whose projections lie in one space, as transformers' `CLIPModel`.

Names and keys of GGUF are clip.cpp's since 27 September 2023, whose `ffn_down` is the first matrix of a network and
`ffn_up` the second. Sources: monatis/clip.cpp `models/convert_hf_to_gguf.py` (3484ffc), `models/convert_hf_to_ggml.py`
(a12792d, 8c92e21), `clip.cpp`; transformers `modeling_clip.py`; docs/formats/small-ggml-programs.md.
"""

from ggferry.converters.architectures import _clip as clip
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
_EPS = (Default(1e-5, "ggml's for every norm, which clip.cpp uses; the file does not state it", dialect="ggml"),)

HPARAMS = (
    HParam("has_text", "has_text_encoder", BOOL, required=False),
    HParam("has_vision", "has_vision_encoder", BOOL, required=False),
    HParam("n_vocab", None, fields={"hf": "text_config.vocab_size", "ggml": "n_vocab"}),
    HParam("n_ctx", "text.context_length",
           fields={"hf": "text_config.max_position_embeddings", "ggml": "t_positions"}),
    HParam("n_embd", "text.embedding_length", fields={"hf": "text_config.hidden_size", "ggml": "t_width"}),
    HParam("n_ff", "text.feed_forward_length", fields={"hf": "text_config.intermediate_size", "ggml": "t_inner"}),
    HParam("n_projection", "text.projection_dim", fields={"hf": "projection_dim", "ggml": "t_projection"}),
    HParam("n_head", "text.attention.head_count", fields={"hf": "text_config.num_attention_heads", "ggml": "t_heads"},
           check="0 < n_head and n_embd % n_head == 0"),
    HParam("eps", "text.attention.layer_norm_epsilon", F32, {"hf": "text_config.layer_norm_eps"}, defaults=_EPS),
    HParam("n_layer", "text.block_count", fields={"hf": "text_config.num_hidden_layers", "ggml": "t_layers"}),
    HParam("v_image_size", "vision.image_size", fields={"hf": "vision_config.image_size", "ggml": "v_image"},
           check="0 < v_image_size"),
    HParam("v_patch_size", "vision.patch_size", fields={"hf": "vision_config.patch_size", "ggml": "v_patch"},
           check="0 < v_patch_size"),
    HParam("v_n_positions", None, derive="(v_image_size//v_patch_size)*(v_image_size//v_patch_size)+1",
           check="v_n_positions == (v_image_size//v_patch_size)*(v_image_size//v_patch_size)+1"),
    HParam("v_n_embd", "vision.embedding_length", fields={"hf": "vision_config.hidden_size", "ggml": "v_width"}),
    HParam("v_n_ff", "vision.feed_forward_length",
           fields={"hf": "vision_config.intermediate_size", "ggml": "v_inner"}),
    HParam("v_projection", "vision.projection_dim", fields={"hf": "projection_dim", "ggml": "v_projection"},
           check="v_projection == n_projection"),
    HParam("v_n_head", "vision.attention.head_count",
           fields={"hf": "vision_config.num_attention_heads", "ggml": "v_heads"},
           check="0 < v_n_head and v_n_embd % v_n_head == 0"),
    HParam("v_eps", "vision.attention.layer_norm_epsilon", F32, {"hf": "vision_config.layer_norm_eps"},
           defaults=_EPS),
    HParam("v_n_layer", "vision.block_count", fields={"hf": "vision_config.num_hidden_layers", "ggml": "v_layers"}),
    HParam("v_mean", "vision.image_mean", F32, {"hf": "preprocessor.image_mean"}, length="3", defaults=clip.MEAN),
    HParam("v_std", "vision.image_std", F32, {"hf": "preprocessor.image_std"}, length="3", defaults=clip.STD),
    HParam("use_gelu", "use_gelu", BOOL, {"hf": "vision_config.hidden_act", "ggml": "gelu"}, words=clip.GELU,
           defaults=(Default(False, "clip.cpp's, before its files stated it", dialect="ggml"),)),
    HParam("text_gelu", None, BOOL, {"hf": "text_config.hidden_act"}, words=clip.GELU, derive=clip.as_pictures,
           check="text_gelu == use_gelu", required=False),
    HParam("logit_scale", "logit_scale", F32, tensors="logit_scale", scalar=True, required=False,
           absent=clip.LOG_100),
)

ROLES = roles(
    """
    t.token_embd.weight        : n_vocab n_embd     | hf text_model.embeddings.token_embedding.weight
    t.position_embd.weight     : n_ctx n_embd       | hf text_model.embeddings.position_embedding.weight
    t.post_ln.weight f32       : n_embd             | hf text_model.final_layer_norm.weight
    t.post_ln.bias             : n_embd             | hf text_model.final_layer_norm.bias
    text_projection.weight     : n_projection n_embd | hf text_projection.weight
    """,
    block(clip.layer("n_embd", "n_ff"), name="t.blk.{n}.", layer={"hf": "text_model.encoder.layers.{n}."}),
    roles(
        """
        class_embd f32         : v_n_embd                              | hf class_embedding
        patch_embd.weight plain : v_n_embd 3 v_patch_size v_patch_size | hf patch_embedding.weight
        position_embd.weight   : v_n_positions v_n_embd                | hf position_embedding.weight
        """,
        under={"gguf": "v.", "hf": "vision_model.embeddings."},
    ),
    """
    v.pre_ln.weight f32        : v_n_embd              | hf vision_model.pre_layrnorm.weight
    v.pre_ln.bias              : v_n_embd              | hf vision_model.pre_layrnorm.bias
    v.post_ln.weight f32       : v_n_embd              | hf vision_model.post_layernorm.weight
    v.post_ln.bias             : v_n_embd              | hf vision_model.post_layernorm.bias
    visual_projection.weight   : v_projection v_n_embd | hf visual_projection.weight
    """,
    block(clip.layer("v_n_embd", "v_n_ff"), name="v.blk.{n}.", layer={"hf": "vision_model.encoder.layers.{n}."}),
)

_FIXED = {"has_text": True, "has_vision": True}
SPEC = Architecture(
    name="clip",
    display_name="CLIP",
    hf_classes=("CLIPModel",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            fixed=_FIXED,
            drops=(
                Drop("*.embeddings.position_ids", "the numbers of positions, in order", follows=True),
                Drop("logit_scale", "a key holds it", follows=True),
            ),
            ignored_keys=(
                IgnoredKey("initializer_factor *.initializer_factor *.initializer_range *.attention_dropout *.dropout",
                           "used in training only"),
                IgnoredKey("logit_scale_init_value", "what the tensor logit_scale began with"),
                IgnoredKey("*.projection_dim", "of either half alone; CLIPModel reads that of the whole"),
                IgnoredKey("preprocessor.size preprocessor.crop_size preprocessor.do_resize "
                           "preprocessor.do_center_crop preprocessor.resample preprocessor.do_convert_rgb "
                           "preprocessor.image_processor_type preprocessor.feature_extractor_type "
                           "preprocessor.processor_class",
                           "how a picture becomes a square of that size, which CLIP's readers do in their own way"),
                IgnoredKey("preprocessor.do_normalize preprocessor.do_rescale", "as CLIP's", (True,)),
                IgnoredKey("preprocessor.rescale_factor", "as CLIP's", (1 / 255,)),
                IgnoredKey("vision_config.num_channels", "as CLIP's", (3,)),
                IgnoredKey("text_config_dict vision_config_dict", "a second statement of the halves", (None,)),
            ),
            nested=("text_config", "vision_config"),
        ),
        Dialect("ggml", names="hf", fixed=_FIXED, caveats=clip.WITHOUT_SCALE),
        Dialect("gguf", caveats=clip.WITHOUT_SCALE),
    ),
    recipe={
        "computation": "ggferry.converters.forward.towers.clip",
        "norm": "layer",
        "ffn": "plain",
        "activation": "gelu",
    },
    blocks={"t.blk.": "n_layer", "v.blk.": "v_n_layer"},
    runtimes=(),
    headers=clip.HEADERS,
    caveats=(Caveat("", clip.ONLY_CLIP_CPP),),
)
