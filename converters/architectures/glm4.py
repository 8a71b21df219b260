"""GLM-4 (0414, Z1): norms before and behind both branches, gate and up in one matrix, half of each head turned, in
pairs. Where it also sees (GLM-4.1V, GLM-OCR), GGUF has the turned rows in halves: `rope.dimension_sections` says so.

Sources: llama.cpp `src/models/glm4.cpp`, `conversion/glm.py`; transformers `modeling_glm4.py`, `modeling_glm4v.py`,
`modeling_glm_ocr.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, IgnoredKey
from ggferry.converters.schema.layouts.order import rotary_pairs_to_halves
from ggferry.converters.schema.roles import block, roles, varied

_VISION_ENCODERS = tuple(Default((8, 12, 12), "transformers' default", dialect=one) for one in ("seeing", "ocr"))
HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.HALF_ROPE, replace(rope.SECTIONS_DECLARED, defaults=_VISION_ENCODERS),
    replace(rope.SECTIONS, required=False), common.TIED, common.ATTENTION_BIAS, common.SILU,
)

ROLES = varied(
    roles(
        tensors.embedding(),
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            tensors.attention(bias="attention_bias == 1"),
            tensors.norm("post_attention_norm", "post_self_attn_layernorm"),
            tensors.norm("ffn_norm", "post_attention_layernorm"),
            tensors.linear("ffn_up", "2*n_ff n_embd", "mlp.gate_up_proj"),
            tensors.linear("ffn_down", "n_embd n_ff", "mlp.down_proj"),
            tensors.norm("post_ffw_norm", "post_mlp_layernorm"),
        ),
    ),
    "seeing",
    "hf",
    """
    blk.{n}.attn_q.weight model.layers.{n}.self_attn.q_proj.weight @q
    blk.{n}.attn_k.weight model.layers.{n}.self_attn.k_proj.weight @k
    blk.{n}.attn_q.bias   model.layers.{n}.self_attn.q_proj.bias @q
    blk.{n}.attn_k.bias   model.layers.{n}.self_attn.k_proj.bias @k
    """,
    q=rotary_pairs_to_halves("n_head"),
    k=rotary_pairs_to_halves("n_head_kv"),
)

SEEING = Dialect(
    "seeing",
    conventions={"rope": "pairs"},
    fields="hf",
    classes=("Glm4vForConditionalGeneration",),
    fixed={"attention_bias": True},  # modeling_glm4v.py has them whatever is stated, modeling_glm_ocr.py never
    drops=(routed.NEXT_TOKENS, *common.DROPS, *half.drop_vision("model.visual.*", "visual.*")),
    caveats=rope.CAVEATS,
    config_section=half.WITHIN,
    renames=half.RENAMES,
    ignored_keys=(
        routed.NEXT_COUNT,
        half.VISION_KEYS,
        IgnoredKey("tie_word_embeddings", "what the whole model says wins", (False, True)),
    ),
)
SPEC = Architecture(
    name="glm4", runtimes=("llama.cpp",),
    display_name="GLM-4",
    hf_classes=("Glm4ForCausalLM", "Glm4vForConditionalGeneration", "GlmOcrForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "pairs"},
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            fixed={"rope_sections_stated": None},  # modeling_glm4.py reads none: its neighbors turn together
        ),
        SEEING,
        replace(
            SEEING, name="ocr", names="seeing", classes=("GlmOcrForConditionalGeneration",),
            fixed={"attention_bias": False},
        ),
    ),
    recipe={"rope": "by_axes", "ffn": "fused"},
)
SPEC = half.with_base(SPEC, "Glm4Model")
