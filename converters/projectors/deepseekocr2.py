"""DeepSeek-OCR 2's tower: what Segment Anything's encoder makes of a picture stands before queries in a Qwen 2, whose
states of the queries one matrix projects; a row ends the picture.

Source: transformers `DeepseekOcr2VisionModel`; llama.cpp `conversion/deepseek.py` (`DeepseekOCR2VisionModel`),
`tools/mtmd/models/deepseekocr2.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _sam as sam
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import roles

_CLASS = "DeepseekOcr2ForConditionalGeneration"
HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    replace(clip.V_PROJECTION, fields={"hf": f"{clip.V_PROJECTION.fields['hf']}|language_config.hidden_size"}),
    replace(
        clip.V_IMAGE_SIZE, fields={"hf": "vision_config.sam_config.image_size|vision_config.image_size"},
        defaults=(Default(1024, sam.CODE, dialect="hf"),),
    ),
    replace(
        clip.V_PATCH_SIZE, fields={"hf": "vision_config.sam_config.patch_size"},
        defaults=(Default(16, sam.CODE, dialect="hf"),),
    ),
    sam.known_at(clip.V_N_EMBD, "hidden_size", theirs="vision_config.width.qwen2-0-5b.dim"),
    sam.known_at(clip.V_N_FF, "intermediate_size"),
    sam.known_at(clip.V_N_LAYER, "num_hidden_layers", 24),
    sam.known_at(clip.V_N_HEAD, "num_attention_heads", 14),
    sam.known_at(
        HParam("v_n_head_kv", "vision.attention.head_count_kv", check="0 < v_n_head_kv"), "num_key_value_heads", 2
    ),
    *clip.COLORS,
    sam.known_at(clip.V_EPS, "rms_norm_eps", 1e-6),
    HParam(
        "v_rope_theta", None, clip.F32, {"hf": f"{sam.ENCODER}.rope_parameters.rope_theta|{sam.ENCODER}.rope_theta"},
        required=False, check="v_rope_theta == 1000000",  # deepseekocr2.cpp knows no other
        defaults=(Default(10000.0, "transformers' default", when=f"hf_class == '{_CLASS}'", dialect="hf"),),
    ),
    HParam(
        "encoder_act", None, clip.STRING, {"hf": f"{sam.ENCODER}.hidden_act"}, words={"silu": "silu"}, required=False,
    ),
    HParam("v_min_tiles", "vision.preproc_min_tiles", fields={"hf": "preprocessor.min_patches"}, derive="2"),
    HParam("v_max_tiles", "vision.preproc_max_tiles", fields={"hf": "preprocessor.max_patches"}, derive="6"),
    *sam.HPARAMS,
)

_AT = "model.qwen2_model."
_SHARED = "v_n_head_kv*(v_n_embd/v_n_head)"
ROLES = roles(
    sam.ROLES,
    vit.blocks(
        f"{_AT}model.model.layers.{{n}}.",
        vit.norm("ln1", "input_layernorm", bias=False),
        vit.linear("attn_q", "self_attn.q_proj", vit.WIDTH, vit.WIDTH),
        vit.linear("attn_k", "self_attn.k_proj", _SHARED, vit.WIDTH),
        vit.linear("attn_v", "self_attn.v_proj", _SHARED, vit.WIDTH),
        vit.linear("attn_out", "self_attn.o_proj", vit.WIDTH, vit.WIDTH, bias=False),
        vit.norm("ln2", "post_attention_layernorm", bias=False),
        vit.gated("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", bias=False),
    ),
    vit.norm("v.post_ln", f"{_AT}model.model.norm", bias=False),
    vit.linear("mm.model.fc", "model.projector.layers", "v_projection", "v_n_embd"),
    roles(
        f"""
        v.resample_query_768.weight f32  : 144 v_n_embd   | hf {_AT}query_768.weight
        v.resample_query_1024.weight f32 : 256 v_n_embd   | hf {_AT}query_1024.weight
        v.view_seperator f32             : 1 v_projection | hf model.view_seperator @row
        """,
        row=Reshape(("1", "v_projection")),
    ),
)
_STRETCHED = Caveat(
    "",
    "of tiles, which are smaller than the picture that the table of positions is of, llama.cpp (b11549) stretches the "
    "table without smoothing; of the whole picture it computes what the model does",
    differs_in="llama.cpp",
)
_READ = Dialect(
    "hf",
    fixed=clip.vision_fixed("deepseekocr2"),
    drops=clip.TEXT,
    nested=sam.NESTED,
    caveats=(_STRETCHED,),
    ignored_keys=(
        *sam.IGNORED_KEYS,
        IgnoredKey(f"{sam.ENCODER}.rope_parameters.rope_type", "every pair turns at its own rate", ("default",)),
        IgnoredKey("vision_config.sam_config.mlp_ratio vision_config.sam_config.scale", "which nothing reads"),
        IgnoredKey(f"{sam.ENCODER}.head_dim", "heads share the width", (None,)),
        IgnoredKey(f"{sam.ENCODER}.sliding_window {sam.ENCODER}.use_sliding_window {sam.ENCODER}.max_window_layers "
                 f"{sam.ENCODER}.layer_types {sam.ENCODER}.max_position_embeddings {sam.ENCODER}.vocab_size "
                 f"{sam.ENCODER}.tie_word_embeddings",
                 "of a text model, which this is not"),
    ),
)
SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="deepseekocr2",
    display_name="DeepSeek-OCR 2, vision encoder",
    hf_classes=("DeepseekOCR2ForCausalLM", _CLASS),
    hparams=HPARAMS,
    roles=ROLES,
    blocks={**clip.VISION_BLOCKS, **sam.BLOCKS},
    dialects=(
        _READ,
        replace(_READ, name="deepseek", names="hf", fields="hf", classes=("DeepseekOCR2ForCausalLM",)),
    ),
    recipe={
        "computation": "projector", "vision": "deepseekocr2", "norm": "rms", "ffn": "gated", "activation": "gelu",
        "rope": "halves",
    },
)
