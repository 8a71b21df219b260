"""GGML-era headers (facts/legacy-other.md §1)."""

from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

WHISPER = HeaderLayout(
    name="whisper",
    containers=(("ggml", None),),
    header=Struct(
        "Whisper header",
        """
        n_vocab        i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_audio_ctx    i32  1..MAX_WIDTH   positions of the encoder
        n_audio_state  i32  1..MAX_WIDTH   width of the encoder
        n_audio_head   i32  1..MAX_HEADS   its heads
        n_audio_layer  i32  1..MAX_LAYERS  its blocks
        n_text_ctx     i32  1..MAX_WIDTH   positions of the decoder
        n_text_state   i32  1..MAX_WIDTH   width of the decoder
        n_text_head    i32  1..MAX_HEADS   its heads
        n_text_layer   i32  1..MAX_LAYERS  its blocks
        n_mels         i32  1..MAX_WIDTH   mel bands
        ftype          i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("encoder.conv1.weight", "decoder.token_embedding.weight"),
    vocab=VocabLayout("own", texts="whisper", pre="gpt-2"),
    matrix="mel_filters",
    quantisation=0,
    axes=3,
)

ALL = (WHISPER,)
