"""The encoder of a T5 alone, which turns texts into states. Pieces and sources: `_t5`.

llama.cpp's endpoint for embeddings hides what follows each token unless the file says that nothing is hidden, which
convert_hf_to_gguf does not write.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _t5 as t5
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

DECODER = IgnoredKey("num_decoder_layers scale_decoder_outputs tie_word_embeddings",
    "of the decoder, which is not here")

SPEC = Architecture(
    name="t5encoder", runtimes=("llama.cpp",),
    display_name="T5 encoder",
    hf_classes=("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"),
    hparams=(
        *t5.HPARAMS, *embeddings.POOLING, encoder.BOTH_SIDES,
        # Such an encoder would be a decoder without an encoder, with attention to what is not there.
        HParam("decoder", None, common.BOOL, {"hf": "is_decoder"}, words={False: False}, required=False),
    ),
    roles=roles(t5.ENDS, t5.ENCODER),
    dialects=(
        Dialect(
            "hf",
            drops=t5.DROPS,
            fixed={"causal": False},
            renames=t5.RENAMES,
            substitutes=t5.SUBSTITUTES,
            caveats=t5.CAVEATS,
            ignored_keys=(*t5.IGNORED_KEYS, DECODER, embeddings.IGNORED_KEYS),
        ),
    ),
    recipe={"computation": "t5encoder", "norm": "rms"},
    blocks={"enc.blk.": "n_layer"},
)
