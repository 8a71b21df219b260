"""The encoder of a T5 alone, which turns texts into states. Pieces and sources: `_t5`."""

from ggferry.converters.architectures import _t5 as t5
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless
from ggferry.converters.schema.roles import roles

DECODER = Harmless("num_decoder_layers scale_decoder_outputs tie_word_embeddings", "of the decoder, which is not here")

SPEC = Architecture(
    name="t5encoder",
    display_name="T5 encoder",
    hf_classes=("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"),
    hparams=t5.HPARAMS,
    roles=roles(t5.ENDS, t5.ENCODER),
    dialects={
        "hf": Dialect(
            "hf",
            drops=t5.DROPS,
            renames=t5.RENAMES,
            substitutes=t5.SUBSTITUTES,
            remarks=t5.REMARKS,
            harmless=(*t5.HARMLESS, DECODER),
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={"computation": "t5encoder", "norm": "rms"},
    blocks={"enc.blk.": "n_layer"},
)
