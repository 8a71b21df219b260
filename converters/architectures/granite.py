"""Granite 3 and 4 of attention alone: LLaMA with scales on embeddings, scores, residuals and logits.

Source: llama.cpp `src/models/granite.cpp`, `conversion/granite.py`, transformers `modeling_granite.py` and, for what is
saved as a hybrid without state spaces and experts (Granite 4.0 1B), `modeling_granitemoehybrid.py`. Rows of Q and K as
in GGUF's llama.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _granite as granite
from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles, varied

N_FF = HParam("n_ff", "feed_forward_length", fields={"hf": "shared_intermediate_size|intermediate_size"})
HPARAMS = (
    *(N_FF if size is common.N_FF else size for size in common.SIZES), common.RMS_EPS, *rope.WHOLE_ROPE_WITH_FACTORS,
    replace(granite.ROTATES, defaults=(Default(False, "transformers' default", dialect="hybrid"),)), *granite.SCALES,
    granite.ATTENDS, common.N_EXPERT, *hybrid.USED_WHERE_THERE_ARE_EXPERTS,
    common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS, common.SILU, *granite.PICTURES,
)

ROLES = roles(
    tensors.embedding(),
    rope.FACTORS,
    block(
        tensors.pre_norm(
            tensors.paired_attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
            tensors.gated(bias="mlp_bias == 1"),
        ),
    ),
)
HF = Dialect(
    "hf", conventions={"rope": "halves"}, drops=common.DROPS, caveats=(*rope.CAVEATS, rope.FRACTION_UNREAD),
    fixed={"rope_layers": True},  # the hybrid's class alone reads `position_embedding_type`
)

SPEC = Architecture(
    name="granite", runtimes=("llama.cpp",),
    display_name="Granite",
    hf_classes=(
        "GraniteForCausalLM", "GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration",
        "Granite4VisionForConditionalGeneration",
    ),
    hparams=HPARAMS,
    roles=varied(ROLES, "hybrid", "hf", granite.FUSED, gate=granite.GATE, up=granite.UP),
    dialects=(
        HF,
        *half.of(HF, "granite", "granite4_vision_text"),
        replace(
            HF, name="hybrid", fields="hf", conventions={"rope": "halves", "ffn": "fused"},
            classes=("GraniteMoeHybridForCausalLM",), forbidden_tensors=("*.mamba.*", "*.block_sparse_moe.*"),
            ignored_keys=(granite.NOT_MAMBA,), fixed={},
        ),
    ),
    recipe={"logit_scale": "divide"},
)
SPEC = half.with_base(SPEC, "GraniteModel")
