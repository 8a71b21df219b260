"""GGML-era headers of the families beside LLaMA (facts/legacy-other.md §1)."""

from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

GGML = (("ggml", None), ("ggjt", 1), ("ggjt", 2), ("ggjt", 3))
"""ggml's examples, and llm-rs, which also wrote them as GGJT."""

GPT2 = HeaderLayout(
    name="gpt2",
    containers=GGML,
    header=Struct(
        "GPT-2 header",
        """
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of model/wte
        n_ctx    i32  1..            positions, and rows of model/wpe
        n_embd   i32  1..MAX_WIDTH   columns of model/wte
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        ftype    i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("model/wte", "model/h*/attn/c_attn/w"),
    vocab=VocabLayout("again", pre="gpt-2"),
    quantisation=0,
)

GPTJ = HeaderLayout(
    name="gptj",
    containers=GGML,
    header=Struct(
        "GPT-J header",
        """
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_ctx    i32  1..            positions
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   rotated part of a head
        ftype    i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("transformer.h.*.attn.q_proj.weight",),
    vocab=VocabLayout("again", pre="gpt-2"),
    quantisation=0,
)

NEOX = HeaderLayout(
    name="gptneox",
    containers=GGML,
    header=Struct(
        "GPT-NeoX header",
        """
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_ctx    i32  1..            positions
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   rotated part of a head
        par_res  i32  0..1           both branches of a block read its input
        ftype    i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("gpt_neox.layers.*",),
    vocab=VocabLayout(pre="olmo"),
    quantisation=0,
)
NEOX_OLD = HeaderLayout(
    name="gptneox-2023-04",
    containers=GGML[:1],
    header=Struct(
        "GPT-NeoX header of April and May 2023",
        """
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_ctx    i32  1..            positions
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   rotated part of a head
        ftype    i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("gpt_neox.layers.*",),
    vocab=VocabLayout(pre="olmo"),
    quantisation=0,
)

MPT = HeaderLayout(
    name="mpt",
    containers=GGML,
    header=Struct(
        "MPT header",
        """
        n_embd         i32  1..MAX_WIDTH   columns of the embedding
        n_ctx          i32  1..            longest sequence it was trained on
        n_head         i32  1..MAX_HEADS   query heads
        n_layer        i32  1..MAX_LAYERS  blocks
        n_vocab        i32  1..MAX_VOCAB   tokens, and rows of the embedding
        alibi_bias_max f32  0..1e6         largest slope of the biases, as a power of two
        clip_qkv       f32  0..1e30        limit of queries, keys and values; 0: none
        ftype          i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("transformer.blocks.*",),
    vocab=VocabLayout(texts="twice", pre="mpt"),
    quantisation=1,
)
REPLIT = HeaderLayout(
    name="replit",
    containers=GGML,
    header=Struct(
        "Replit header",
        """
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_ctx    i32  1..            longest sequence it was trained on
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of the embedding
        ftype    i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("transformer.blocks.*",),
    vocab=VocabLayout(scored=True, texts="unigram"),
    quantisation=1,
)

BLOOM = HeaderLayout(
    name="bloom",
    containers=GGML,
    header=Struct(
        "BLOOM header",
        """
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of tok_embeddings
        n_embd   i32  1..MAX_WIDTH   columns of tok_embeddings
        n_mult   i32  1..MAX_WIDTH   1: left over from LLaMA
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        ftype    i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("layers.*.attention.query_key_value.*",),
    vocab=VocabLayout(pre="bloom"),
    quantisation=0,
    planar=("Q4_1_V1",),
)

FALCON = HeaderLayout(
    name="falcon",
    containers=(("ggml", None), ("ggmf", 1)),
    header=Struct(
        "Falcon header",
        """
        n_vocab      i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_embd       i32  1..MAX_WIDTH   columns of the embedding
        n_head       i32  1..MAX_HEADS   query heads
        n_head_kv    i32  1..MAX_HEADS   key and value heads
        n_layer      i32  1..MAX_LAYERS  blocks
        falcon_type  i32  1..MAX_LAYERS  7 or 40, from a key that newer configurations lack; the tensors decide
        ftype        i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("transformer.h.*.self_attention.query_key_value.weight",),
    vocab=VocabLayout(pre="falcon"),
    quantisation=0,
)
GGCC = HeaderLayout(
    name="falcon-ggcc",
    containers=(("ggcc", 10),),
    header=Struct(
        "GGCC header",
        """
        n_vocab      i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_embd       i32  1..MAX_WIDTH   columns of the embedding
        n_head       i32  1..MAX_HEADS   query heads
        n_head_kv    i32  1..MAX_HEADS   key and value heads
        n_layer      i32  1..MAX_LAYERS  blocks
        falcon_type  i32  1..MAX_LAYERS  7 or 40; the tensors decide
        ftype        i32  0..19          LLAMA_FTYPE; the tensors' own types decide
        n_merges     i32  0..MAX_VOCAB   merges behind the vocabulary
        """,
    ),
    names=FALCON.names,
    vocab=VocabLayout(pre="falcon"),
)
FALCON_5 = HeaderLayout(
    name="falcon-2023-06-05",
    containers=(("ggml", None),),
    header=Struct(
        "Falcon header of 5 June 2023",
        """
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        ftype    i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=FALCON.names,
    vocab=VocabLayout(pre="falcon"),
    quantisation=0,
)
FALCON_6 = HeaderLayout(
    name="falcon-2023-06-10",
    containers=(("ggml", None),),
    header=Struct(
        "Falcon header of 10 June 2023",
        """
        n_vocab    i32  1..MAX_VOCAB   tokens, and rows of the embedding
        n_embd     i32  1..MAX_WIDTH   columns of the embedding
        n_head     i32  1..MAX_HEADS   query heads
        n_head_kv  i32  1..MAX_HEADS   key and value heads
        n_layer    i32  1..MAX_LAYERS  blocks
        ftype      i32  0..            quantisation version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=FALCON.names,
    vocab=VocabLayout(pre="falcon"),
    quantisation=0,
)

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

ALL = (GPT2, GPTJ, NEOX, NEOX_OLD, MPT, REPLIT, BLOOM, FALCON, GGCC, FALCON_5, FALCON_6, WHISPER)
