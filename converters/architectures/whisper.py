"""Whisper: an encoder of log-mel spectra and a decoder of text, OpenAI's checkpoints and transformers'.

Sources: the GGUF specification's "Whisper" for the keys it names; openai/whisper `model.py` and transformers
`modeling_whisper.py` for the graph; docs/legacy/whisper.md for what GGML-era files hold. No specification and no
runtime names the tensors: the names are ours, in the style of llama.cpp's T5 (docs/whisper.md).
"""

from ggferry.converters.architectures import _whisper as whisper
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.fields import Struct
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.reader import HeaderLayout, VocabLayout

F32, STRING = ValueType.FLOAT32, ValueType.STRING


HPARAMS = (
    HParam("n_vocab", "vocab_size", fields={"hf": "vocab_size", "openai": "n_vocab", "ggml": "n_vocab"}),
    HParam("n_mels", "encoder.mels_count", fields={"hf": "num_mel_bins", "openai": "n_mels", "ggml": "n_mels"},
           check="0 < n_mels"),
    HParam("n_ctx_enc", "encoder.context_length",
           fields={"hf": "max_source_positions", "openai": "n_audio_ctx", "ggml": "n_audio_ctx"}),
    HParam("n_embd_enc", "encoder.embedding_length",
           fields={"hf": "d_model", "openai": "n_audio_state", "ggml": "n_audio_state"}),
    HParam("n_layer_enc", "encoder.block_count",
           fields={"hf": "encoder_layers", "openai": "n_audio_layer", "ggml": "n_audio_layer"}),
    HParam("n_ff_enc", "encoder.feed_forward_length", fields={"hf": "encoder_ffn_dim"}),
    HParam("n_head_enc", "encoder.attention.head_count",
           fields={"hf": "encoder_attention_heads", "openai": "n_audio_head", "ggml": "n_audio_head"},
           check="0 < n_head_enc and n_embd_enc % n_head_enc == 0"),
    HParam("n_ctx", "decoder.context_length",
           fields={"hf": "max_target_positions", "openai": "n_text_ctx", "ggml": "n_text_ctx"}),
    HParam("n_embd", "decoder.embedding_length",
           fields={"hf": "d_model", "openai": "n_text_state", "ggml": "n_text_state"},
           check="n_embd == n_embd_enc"),
    HParam("n_layer", "decoder.block_count",
           fields={"hf": "decoder_layers", "openai": "n_text_layer", "ggml": "n_text_layer"}),
    HParam("n_ff", "decoder.feed_forward_length", fields={"hf": "decoder_ffn_dim"}),
    HParam("n_head", "decoder.attention.head_count",
           fields={"hf": "decoder_attention_heads", "openai": "n_text_head", "ggml": "n_text_head"},
           check="0 < n_head and n_embd % n_head == 0"),
    HParam("eps", "attention.layer_norm_epsilon", F32,
           defaults=(Default(1e-5, "torch.nn.LayerNorm's, which both implementations use"),)),
    HParam("decoder_start", "decoder_start_token_id", fields={"hf": "decoder_start_token_id"}, required=False),
    HParam("activation", None, STRING, {"hf": "activation_function"}, words={"gelu": "gelu"}, required=False),
    # Embeddings multiplied by the root of the width: no published Whisper, and GGUF has no key for it.
)

_ENDS = roles(
    roles(
        """
        conv1.weight           : n_embd_enc n_mels 3     | hf,openai conv1.weight
        conv1.bias             : n_embd_enc              | hf,openai conv1.bias
        conv2.weight           : n_embd_enc n_embd_enc 3 | hf,openai conv2.weight
        conv2.bias             : n_embd_enc              | hf,openai conv2.bias
        position_embd.weight   : n_ctx_enc n_embd_enc    | hf embed_positions.weight | openai positional_embedding
        output_norm.weight f32 : n_embd_enc              | hf layer_norm.weight | openai ln_post.weight
        output_norm.bias       : n_embd_enc              | hf layer_norm.bias | openai ln_post.bias
        """,
        under={"gguf": "enc.", "hf": "model.encoder.", "openai": "encoder."},
    ),
    "token_embd.weight : n_vocab n_embd | hf model.decoder.embed_tokens.weight | openai decoder.token_embedding.weight",
    roles(
        """
        position_embd.weight   : n_ctx n_embd | hf embed_positions.weight | openai positional_embedding
        output_norm.weight f32 : n_embd       | hf layer_norm.weight | openai ln.weight
        output_norm.bias       : n_embd       | hf layer_norm.bias | openai ln.bias
        """,
        under={"gguf": "dec.", "hf": "model.decoder.", "openai": "decoder."},
    ),
    "mel_filters.weight f32 : n_mels 201 | hf,openai =mel_filters",
    mel_filters=whisper.mel_filters,
)
_ENCODER = block(
    whisper.attention("attn", "self_attn", "attn", "n_embd_enc"),
    whisper.feed_forward("n_embd_enc", "n_ff_enc"),
    name="enc.blk.{n}.",
    layer={"hf": "model.encoder.layers.{n}.", "openai": "encoder.blocks.{n}."},
)
_DECODER = block(
    whisper.attention("attn", "self_attn", "attn", "n_embd"),
    whisper.attention("cross_attn", "encoder_attn", "cross_attn", "n_embd"),
    whisper.feed_forward("n_embd", "n_ff"),
    name="dec.blk.{n}.",
    layer={"hf": "model.decoder.layers.{n}.", "openai": "decoder.blocks.{n}."},
)

# whisper.cpp's files: OpenAI's names, the filters of the spectrum, and convolutions' biases as columns.
ROLES = varied(
    roles(_ENDS, _ENCODER, _DECODER), "ggml", "openai",
    """
    mel_filters.weight mel_filters
    enc.conv1.bias     encoder.conv1.bias @column
    enc.conv2.bias     encoder.conv2.bias @column
    """,
    column=Reshape(("n_embd_enc",), back=("n_embd_enc", 1)),
)

HEADER = HeaderLayout(
    name="whisper",
    containers=(("ggml", None),),
    header=Struct(
        "Whisper header",
        """
        n_vocab        i32  1..MAX_GGML_VOCAB  tokens, and rows of the embedding
        n_audio_ctx    i32  1..MAX_WIDTH   positions of the encoder
        n_audio_state  i32  1..MAX_WIDTH   width of the encoder
        n_audio_head   i32  1..MAX_HEADS   its heads
        n_audio_layer  i32  1..MAX_LAYERS  its blocks
        n_text_ctx     i32  1..MAX_WIDTH   positions of the decoder
        n_text_state   i32  1..MAX_WIDTH   width of the decoder
        n_text_head    i32  1..MAX_HEADS   its heads
        n_text_layer   i32  1..MAX_LAYERS  its blocks
        n_mels         i32  1..MAX_WIDTH   mel bands
        ftype          i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("encoder.conv1.weight", "decoder.token_embedding.weight"),
    vocab=VocabLayout("own", texts="whisper", pre="gpt-2"),
    matrix="mel_filters",
    quantization=0,
    axes=3,
)

_TIED = "the same as the token embedding: Whisper's output is always tied to it"
_OURS = (
    "the names of the tensors are ggferry's (docs/whisper.md): the GGUF specification names Whisper's keys and none of "
    "its tensors, and whisper.cpp reads its own .bin files only, which --to whisper.cpp writes"
)

SPEC = Architecture(
    name="whisper",
    display_name="Whisper",
    hf_classes=("WhisperForConditionalGeneration", "WhisperModel"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(Drop("proj_out.weight", _TIED, same_as="token_embd.weight"),),
            renames=(("encoder.", "model.encoder."), ("decoder.", "model.decoder.")),
            ignored_keys=(
                IgnoredKey("is_encoder_decoder tie_word_embeddings", "as every Whisper", (True,)),
                IgnoredKey("num_hidden_layers", "repeats encoder_layers", follows="n_layer_enc"),
                IgnoredKey("apply_spec_augment mask_*", "used in training only"),
                IgnoredKey("use_weighted_layer_sum", "of heads for classes"),
                IgnoredKey("scale_embedding", "transformers multiplies nothing by it"),
                IgnoredKey("median_filter_width", "how times of words are smoothed"),
            ),
        ),
        Dialect("openai", header="dims", required_tensors=("encoder.conv1.weight", "decoder.token_embedding.weight")),
        Dialect("ggml"),
    ),
    recipe={"computation": "whisper", "norm": "layer", "ffn": "plain", "activation": "gelu"},
    blocks={"enc.blk.": "n_layer_enc", "dec.blk.": "n_layer"},
    runtimes=(),
    headers=(HEADER,),
    caveats=(Caveat("", _OURS),),
)
