"""Qwen3-TTS, the talker: Qwen3 with positions along three axes, which reads texts and codes of sound and gives codes.

GGUF has one table of embeddings: those of the text vocabulary as the network before the blocks makes them, then those
of codes; the output has rows of codes alone. Sources: QwenLM/Qwen3-TTS, qwen-tts 0.1.1 of PyPI
(`modeling_qwen3_tts.py`, `configuration_qwen3_tts.py`); llama.cpp b11549 `src/models/{qwen3vl,qwen3tts}.cpp`,
`conversion/qwen3tts.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._qwen3tts import by_class
from ggferry.converters.schema.architecture import (
    Architecture,
    Caveat,
    Dialect,
    Drop,
    From,
    HParam,
    IgnoredKey,
    Role,
)
from ggferry.converters.schema.layouts.projected import Projected
from ggferry.converters.schema.roles import block, roles

CODES = 3072
"""Rows of the output that llama.cpp's loader wants, whatever the file says (`qwen3vl.cpp`, LLAMA_N_VOCAB_OUT)."""

HPARAMS = (
    HParam("n_text", None, fields={"hf": "text_vocab_size"}, required=False),
    by_class(HParam("n_codec", None, fields={"hf": "vocab_size"}), CODES),
    by_class(HParam("n_text_embd", None, fields={"hf": "text_hidden_size"}, required=False), 2048),
    replace(common.N_VOCAB, fields={}, derive="n_text + n_codec"),
    by_class(common.N_CTX, 32768), by_class(common.N_EMBD, 1024), by_class(common.N_LAYER, 20),
    by_class(common.N_FF, 2048), by_class(common.N_HEAD, 16), by_class(common.N_HEAD_KV, 2),
    common.HEAD_DIM, common.HEAD_DIM_V, common.RMS_EPS, *rope.ROPE_OF_AXES, common.SILU, *common.BIASES,
    common.QWEN_WINDOW[1], by_class(common.QWEN_WINDOW[0], 4096, "window_used == 1"), common.QWEN_WINDOW[2],
)

_NETWORK = tuple(f"text_projection.linear_fc{n}.{part}" for n in (1, 2) for part in ("weight", "bias"))
_TABLES = ("model.text_embedding.weight", "model.codec_embedding.weight")
ROLES = roles(
    (Role("token_embd.weight", ("n_vocab", "n_embd"),
          {"hf": From((*_TABLES, *_NETWORK), Projected(("n_text", "n_text_embd"), ("n_codec", "n_embd")))}),),
    tensors.norm("output_norm", "model.norm"),
    tensors.linear("output", "n_codec n_embd", "codec_head"),
    block(tensors.pre_norm(tensors.normed_attention(biased=True), tensors.gated())),
)

_MMPROJ = "of what makes sound of the talker's states, another file in llama.cpp, which is not written"
_DROPS = (
    Drop("code_predictor.*", "the code predictor: this file holds the talker"),
    Drop("speaker_encoder.*", "the speaker encoder: this file holds the talker"),
)
_IGNORED = (
    common.UNBIASED,
    IgnoredKey("tie_word_embeddings", "the output has a matrix of its own", (False,)),
    IgnoredKey("rope_scaling.interleaved rope_scaling.mrope_interleaved",
               "how three axes of position share the frequencies: they are one here"),
    IgnoredKey("codec_*_id spk_id spk_id.* codec_language_id codec_language_id.* pad_token_id",
               "names of codes, which are tokens of the vocabulary"),
    IgnoredKey("spk_is_dialect spk_is_dialect.*", "by which a program chooses a language for a speaker"),
    IgnoredKey("num_code_groups code_predictor_config code_predictor_config.* speaker_encoder_config "
               "speaker_encoder_config.*", _MMPROJ),
    IgnoredKey("layer_types max_window_layers position_id_per_seconds", "the publisher's class does not read it"),
    IgnoredKey("im_start_token_id im_end_token_id tts_pad_token_id tts_bos_token_id tts_eos_token_id",
               "tokens of a prompt, which programs find by their texts"),
    IgnoredKey("tokenizer_type tts_model_size tts_model_type", "what the publisher's program does with the model"),
)
_CAVEATS = (
    *rope.CAVEATS, common.WINDOW, common.biased_output("qwen3tts"),
    Caveat("n_text > 0", "token_embd.weight is computed: rows of texts by the network before the blocks "
           "(text_projection), those of codes as they are; the published ones are not in the file"),
    Caveat("n_text > 0", "this file is the talker, which chooses the first code of a frame: llama.cpp makes sound with "
           "an mmproj file, of the code predictor and the decoder of waves, which is not written"),
)

SPEC = Architecture(
    name="qwen3tts", runtimes=("llama.cpp",),
    display_name="Qwen3-TTS",
    hf_classes=("Qwen3TTSForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", drops=(*_DROPS, common.DROP_BUFFERS), caveats=_CAVEATS, config_section="talker_config",
            renames=(("talker.", ""),), ignored_keys=_IGNORED, nested=("code_predictor_config",),
        ),
    ),
    recipe={"computation": "ggferry.converters.forward.sound.qwen3tts", "rope": "halves"},
    caveats=(
        Caveat(f"n_codec != {CODES}", "llama.cpp does not load this model: it expects an output of 3072 rows, and "
               "there are {n_codec}", unsupported_by="llama.cpp"),
    ),
)
