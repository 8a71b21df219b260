"""LFM2: short convolutions and attention; of LFM2-VL the text half; embedders, some of which see what follows, with a
matrix behind the pooling or on every token (ColBERT). Sources: `_lfm2`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _lfm2 as lfm2
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

# A centered window of taps has as many on either side.
_CAUSAL = HParam("causal", "attention.causal", common.BOOL, absent=True, check="causal == 1 or n_conv % 2 == 1")
_WIDTH_OUT = HParam("n_embd_out", "embedding_length_out", fields={"hf": "output_size"}, required=False)
_HF = Dialect(
    "hf",
    drops=(*common.DROPS, *half.drop_vision("*vision_tower.*", "*multi_modal_projector.*")),
    caveats=rope.CAVEATS,
    config_section=half.WITHIN,
    renames=half.RENAMES,
    ignored_keys=(
        *lfm2.IGNORED_KEYS,
        embeddings.IGNORED_KEYS,
        half.VISION_KEYS,
        IgnoredKey("downsample_factor projector_* do_image_splitting encoder_patch_size", "of the vision half"),
        IgnoredKey(
            "*_image_tokens *_image_size *_pixels_tolerance *_tiles tile_size use_thumbnail use_image_special_tokens",
            "of the vision half",
        ),
    ),
)
(_STATES,) = half.headless(_HF, "Lfm2Model")
_STATES = replace(_STATES, config_section="", renames=(*half.BARE[:2], ("embedding_norm.", "model.embedding_norm.")))
_BOTH_SIDES = replace(
    _STATES,
    name="both sides",
    classes=("Lfm2BidirectionalModel", "Lfm2BidirectionalForMaskedLM"),
    renames=(("lfm2.", "model."), *_STATES.renames),
    fixed={**_STATES.fixed, "causal": False},
    drops=(*_STATES.drops, *embeddings.language_heads("lm_head.*")),
)
_AUDIO_OUTPUT = ("depthformer.*", "depth_linear.*", "depth_embeddings.*", "audio_embedding.*", "codebook_offsets")
_AUDIO = replace(
    _HF,
    name="audio",
    names="hf",
    fields="hf",
    classes=("Lfm2AudioForConditionalGeneration",),
    config_section="lfm",
    renames=(("lfm.", "model."),),
    drops=(
        *common.DROPS,
        *half.drop_audio("conformer.*", "audio_adapter.*"),
        *half.drop_talker(*_AUDIO_OUTPUT),
        Drop("audio_loss_weights", "used in training only"),
    ),
    ignored_keys=(
        *lfm2.IGNORED_KEYS,
        IgnoredKey("encoder encoder.* preprocessor preprocessor.*", "of the audio encoder, dropped"),
        IgnoredKey("depthformer depthformer.* codebook* semantic_codebook_factor tie_audio_embeddings interleaved_n_*",
                 "of the audio decoder, dropped"),
    ),
)
_LIN = "sentence_transformers_dense.0.linear."
_CODES = replace(
    _STATES,
    name="codes",
    classes=("Lfm25AudioTokenizer",),
    renames=(("lfm.", "model."), ("lin.", _LIN)),
    fixed={**_STATES.fixed, "windowed": True, "no_vocabulary": True},
    drops=(
        *common.DROPS,
        Drop("emb.emb.weight", "the rows of eight codes, whose mean the model reads, six times: llama.cpp's lfm2 is "
             "given it, and has no place for them"),
        Drop("istft.window", "the window of the transform that makes a wave of the spectrum, behind the model"),
    ),
    caveats=(
        *rope.CAVEATS,
        Caveat("n_embd > 0", "it gives magnitudes and phases of a spectrum, half and half: llama.cpp computes these, "
               "and what makes a wave of them is another program's"),
    ),
)

SPEC = Architecture(
    name="lfm2", runtimes=("llama.cpp",),
    display_name="LFM2",
    hf_classes=(
        "Lfm2ForCausalLM",
        "LFM2ForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "Lfm2Model",
        "Lfm2AudioForConditionalGeneration",
    ),
    hparams=(
        lfm2.DECLARED,  # the later of two that say one list words it in a configuration that is written
        *lfm2.WINDOWED,
        *lfm2.WINDOW,
        *lfm2.ADJUSTED,
        _CAUSAL,
        *embeddings.DECODER_POOLING,
        *embeddings.DENSE,
        _WIDTH_OUT,
        common.NO_VOCABULARY,
    ),
    roles=roles(
        lfm2.frame(),
        block(lfm2.mixers(), tensors.gated("feed_forward.", lfm2.FEED_FORWARD)),
        embeddings.dense(2, "n_embd_out", "n_embd", bias=True),
    ),
    dialects=(
        _HF,
        _STATES,
        _BOTH_SIDES,
        _AUDIO,
        _CODES,
    ),
    recipe=lfm2.RECIPE,
)
