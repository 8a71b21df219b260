"""DeepSeek-OCR, DeepSeek-OCR 2 and Unlimited-OCR, the text half: DeepSeek's mixture, LLaMA's attention in halves.

Sources: llama.cpp `src/models/deepseek2{,ocr}.cpp`, `conversion/deepseek.py`; DeepSeek's `modeling_deepseekv2.py`;
transformers `modeling_unlimited_ocr.py`, `modeling_deepseek_ocr2.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._deepseek_ocr import experts_normed
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE,
    HParam("sparse_layers", None, common.BOOL, {"hf": "mlp_layer_types"}, length="n_layer", required=False,
           words={"dense": False, "sparse": True}),
    replace(routed.LISTED_DENSE[0], defaults=(Default(1, "transformers' default", dialect="hf"),)),
    routed.LISTED_DENSE[1], common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    routed.N_SHARED, routed.SCALE,
    HParam("norm_stated", None, common.BOOL, {"hf": "norm_topk_prob"}, required=False),
    HParam("expert_norm", "expert_weights_norm", common.BOOL, derive=experts_normed, absent=False),
    HParam("expert_gating", "expert_gating_func", fields={"hf": "scoring_func"}, words={"softmax": 1},
           defaults=(Default(1, "the class' default"),)),
    HParam("expert_selection", None, common.STRING, {"hf": "topk_method"}, words={"greedy": "greedy"}, required=False),
    HParam("latent", None, common.BOOL, {"hf": "use_mla"}, words={False: False}, required=False),
    common.TIED, common.SILU,
    # Unlimited-OCR's window is of what it writes: a token sees all of the prompt, and so many of those that follow it.
    HParam("written_window", "attention.sliding_window", fields={"hf": "sliding_window_size|sliding_window"},
           required=False),
)

SPARSE = "n_dense <= n"
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        tensors.experts(when=SPARSE),
        tensors.shared_experts("mlp.shared_experts.", width="n_shared*n_ff_exp", when=f"{SPARSE} and n_shared > 0"),
    ),
)

FIXED = Caveat(
    "rope_base != 10000 or n_head_kv != n_head or n_head * head_dim != n_embd or rope_factor != 1",
    "llama.cpp does not run this model: it wants a rotary base of 10000, as it is, as many keys as heads, and heads "
    "together as wide as the model in deepseek2-ocr",
    unsupported_by="llama.cpp",
)

WRITTEN = Caveat(
    "written_window > 0",
    "a token sees all of the prompt and the {written_window} before it of what was written: written, but llama.cpp "
    "lets it see all",
    differs_in="llama.cpp",
)

HF = Dialect(
    "hf",
    drops=(
        *common.DROPS,
        *half.drop_vision("model.sam_model.*", "model.vision_model.*", "model.projector.*", "model.image_newline",
                          "model.qwen2_model.*"),
        Drop("model.view_seperator", "the vision half: this file holds the text model"),
    ),
    caveats=(*rope.CAVEATS, WRITTEN),
    config_section="language_config",
    ignored_keys=(
        common.UNBIASED,
        half.VISION_KEYS,
        IgnoredKey("projector_config projector_config.* tile_tag global_view_pos candidate_resolutions",
                 "of the vision half, dropped"),
        IgnoredKey("n_group topk_group", "one group of experts", (1,)),
        IgnoredKey("kv_lora_rank q_lora_rank", "no low ranks", (None,)),
        IgnoredKey("qk_nope_head_dim qk_rope_head_dim v_head_dim", "of latent attention, which it has not", (0,)),
        IgnoredKey("aux_loss_alpha seq_aux ep_size moe_layer_freq", "of training", (0.001, True, 1)),
        IgnoredKey("lm_head rm_head", "it has one", (True, False)),
        IgnoredKey("layer_types", "the window is of what is written", ("reference_sliding_attention",)),
        IgnoredKey("tie_word_embeddings", "what the whole model says wins", (False, True)),
    ),
)

SPEC = Architecture(
    name="deepseek2-ocr", runtimes=("llama.cpp",),
    display_name="DeepSeek-OCR",
    hf_classes=(
        "DeepseekOCRForCausalLM", "UnlimitedOCRForCausalLM", "UnlimitedOcrForConditionalGeneration",
        "DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="half", names="hf", fields="hf",
            classes=("UnlimitedOcrForConditionalGeneration", "DeepseekOcr2ForConditionalGeneration"),
            config_section=half.WITHIN,
        ),
    ),
    recipe={"rope": "halves"},
    caveats=(FIXED,),
)
