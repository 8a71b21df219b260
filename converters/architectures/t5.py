"""T5, Flan-T5, mT5, UMT5: an encoder and a decoder that share their embedding. Pieces and sources: `_t5`."""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _t5 as t5
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    *t5.HPARAMS,
    HParam("n_layer_dec", "decoder_block_count", fields={"hf": "num_decoder_layers"}, implied="n_layer"),
    HParam("decoder_start", "decoder_start_token_id", fields={"hf": "decoder_start_token_id|pad_token_id"},
           defaults=(Default(0, "T5 starts with its padding token, 0"),), check="decoder_start < n_vocab"),
    HParam("tied", None, common.BOOL, {"hf": "tie_word_embeddings"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    HParam("scale_stated", None, common.BOOL, {"hf": "scale_decoder_outputs"}, required=False, null=False,
           absent="nowhere"),
    HParam("logit_scale", "logit_scale", common.F32, derive=t5.t5_scale, required=False),
)

ROLES = roles(
    t5.ENDS,
    """
    dec.output_norm.weight f32 : n_embd         | hf decoder.final_layer_norm.weight
    output.weight optional     : n_vocab n_embd | hf lm_head.weight
    """,
    t5.ENCODER,
    t5.DECODER,
)

# Since 5 transformers says 'tied' of every T5; then an output layer of its own is known by being there.
_TIED = Drop(
    "lm_head.weight", "tied to the embedding, which it repeats", same_as="token_embd.weight",
    when=f"tied == 1 and scale_stated == 'nowhere' and every_block == 0 and hf_class != '{t5.MT5}'",
)
HF = Dialect(
    "hf", drops=(_TIED, *t5.DROPS), renames=t5.RENAMES, substitutes=t5.SUBSTITUTES,
    ignored_keys=t5.IGNORED_KEYS,
    caveats=(
        *t5.CAVEATS,
        Caveat(
            "n_layer_dec > n_layer",
            "the decoder has more blocks than the encoder, {n_layer_dec} and {n_layer}: llama.cpp makes no "
            "context for such a model (vector::_M_range_check, October 2026)",
        ),
        Caveat(
            "every_block == 1 and logit_scale == 1",
            "the configuration says that the output is not the embedding, so that logits are not scaled; transformers "
            "5.0 to 5.23 multiply those of every UMT5 by the inverse root of the width: which token is likelier stays",
            differs_in="transformers",
        ),
        Caveat(
            "logit_scale != 1",
            "logits are multiplied by {logit_scale}: written as t5.logit_scale, which llama.cpp does not read; "
            "its greedy choice is the same, its temperatures are not",
            differs_in="llama.cpp",
        ),
    ),
)
SPEC = Architecture(
    name="t5", runtimes=("llama.cpp",),
    display_name="T5",
    hf_classes=(
        "T5ForConditionalGeneration", "T5WithLMHeadModel", "MT5ForConditionalGeneration",
        "UMT5ForConditionalGeneration", "UMT5Model",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="headless", names="hf", fields="hf", classes=("UMT5Model",), fixed={"tied": True},
            caveats=(*HF.caveats, half.HEADLESS),
            ignored_keys=(*HF.ignored_keys,
                IgnoredKey("tie_word_embeddings", "there is no output matrix", (False, True))),
        ),
    ),
    recipe={"computation": "t5", "norm": "rms"},
    blocks={"enc.blk.": "n_layer", "dec.blk.": "n_layer_dec"},
)
