"""Gemma 3, the text model: normed queries and keys, five blocks with a sliding window to one without, each kind with
its own rotary base; only the blocks without a window are stretched.

Source: llama.cpp `src/models/gemma3.cpp`, transformers `modeling_gemma3.py`. Of a vision model the text half is
taken. A Gemma3TextModel that sees what follows is `gemma_embedding`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma as gemma
from ggferry.converters.architectures import _gemma3 as shared
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, IgnoredKey

_VISION = "the vision half: this file holds the text model"
VISION_KEYS = IgnoredKey("vision_config mm_tokens_per_image image_seq_length", "of the vision half, which is dropped")
VISION = (Drop("*vision_tower.*", _VISION), Drop("*multi_modal_projector.*", _VISION))

SPEC = Architecture(
    name="gemma3", runtimes=("llama.cpp",),
    display_name="Gemma 3",
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    hparams=shared.HPARAMS,
    roles=shared.ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions=gemma.CONVENTIONS,
            drops=(*common.DROPS, *VISION),
            caveats=(
                common.NO_WINDOW,
                common.ERF,
                common.biased_output("gemma3"),
                *rope.CAVEATS,
                gemma.scaled_differently(62),
            ),
            config_section="text_config",
            ignored_keys=(common.UNBIASED, gemma.PATTERN, VISION_KEYS),
            renames=(
                ("language_model.model.", "model."),
                ("model.language_model.", "model."),
                ("language_model.lm_head.", "lm_head."),
            ),
        ),
    ),
    recipe=gemma.RECIPE,
)
SPEC = half.with_base(SPEC, "Gemma3TextModel")
SPEC = replace(
    SPEC, hf_classes=SPEC.hf_classes[:-1],
    dialects=(*SPEC.dialects[:-1], replace(SPEC.dialects[-1], unless="use_bidirectional_attention")),
)
