"""Roles and hparams of audio encoders of the Whisper kind, under the names of transformers, which several projectors
share.

Source: llama.cpp `conversion/ultravox.py`; what clip.cpp asks of such a file.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import Roles, block, roles

NAMES = (
    ("model.audio_tower.", "audio_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("thinker.audio_tower.", "audio_tower."),
)
"""The prefixes of several versions of transformers (`Dialect.renames`)."""
_PART = "audio_config."
COLUMN = Reshape(("a_n_embd", "1"), back=("a_n_embd",))
"""A bias as one column, so that the runtime adds it to every frame."""
N_CTX = HParam(
    "a_n_ctx", None, fields={"hf": "audio_config.max_source_positions|audio_config.max_position_embeddings"},
    defaults=(Default(1500, "Whisper's, thirty seconds", dialect="hf"),), check="0 < a_n_ctx",
)
"""Rows of the table of positions."""
ACTIVATION = HParam(
    "a_activation", None, clip.STRING, {"hf": "audio_config.activation_function|audio_config.hidden_act"},
    words={"gelu": "gelu"}, required=False,
)
WHISPER = (clip.PROJECTOR, *clip.AUDIO, clip.A_EPS, N_CTX, ACTIVATION)
"""Hparams of a Whisper encoder before a projector."""
STACK = HParam("a_stack", "audio.projector.stack_factor", check="0 < a_stack")
"""How many states become one row."""
_SPECTRUM = (
    "chunk_length n_samples nb_max_frames min_length padding_* mel_filters mel_norm mel_scale max_audio_len audio_* "
    "default_transcription_prompt feature_extractor_type feature_size n_mels return_attention_mask n_window"
)


def spectrum(**values: float | str | None) -> tuple[IgnoredKey, ...]:
    """Return the keys of a feature extractor that say how sound becomes a spectrum.

    Runtimes compute a spectrum of their own for each projector: a key of `values` changes nothing only with its one
    value there, and every other value is named as unread. Source: clip.cpp `audio_sample_rate`, `audio_n_fft`,
    `audio_window_len` and `audio_hop_len`.
    """
    both = ("preprocessor", "preprocessor.feature_extractor")
    reason = "how sound becomes a spectrum, which the runtime computes in its own way"
    return (
        *(
            IgnoredKey(" ".join(f"{where}.{key}" for where in both), "as the runtime computes it", (value,))
            for key, value in values.items()
        ),
        IgnoredKey(" ".join(f"{where}.{key}" for where in both for key in _SPECTRUM.split()), reason),
    )


IGNORED_KEYS = (
    *clip.IGNORED_KEYS,
    IgnoredKey("audio_config.vocab_size", "an encoder of sound has no vocabulary"),
    IgnoredKey("audio_config.scale_embedding", "a number that the encoder keeps, and multiplies nothing by"),
    IgnoredKey("audio_config.num_hidden_layers audio_config.encoder_layers", "blocks are counted", follows="a_n_layer"),
    IgnoredKey("audio_config.head_dim", "repeats width and heads", follows="a_n_embd/a_n_head"),
    IgnoredKey("preprocessor.feature_size preprocessor.n_mels", "repeats the bins", follows="a_n_mels"),
    *spectrum(sampling_rate=16000, n_fft=400, hop_length=160, dither=0.0),
)


def under(members: tuple[str, ...], *hparams: HParam) -> tuple[HParam, ...]:
    """Return the hparams as configurations state them that call the audio encoder's part one of `members`, not
    audio_config."""
    return tuple(
        replace(one, fields={name: _everywhere(place, members, "|") for name, place in one.fields.items()})
        for one in hparams
    )


def ignored_in(*members: str) -> tuple[IgnoredKey, ...]:
    """Return the harmless keys of such configurations."""
    return tuple(replace(one, keys=_everywhere(one.keys, members, " ")) for one in IGNORED_KEYS)


def _everywhere(words: str, members: tuple[str, ...], between: str) -> str:
    found = (_below(word, member) for word in words.split(between) for member in members)
    return between.join(dict.fromkeys(found))


def _below(word: str, member: str) -> str:
    return f"{member}.{word.removeprefix(_PART)}" if word.startswith(_PART) else word


def convolutions() -> Roles:
    """Return the roles of Whisper's two convolutions."""
    return roles(
        """
        a.conv1d.1.weight plain : a_n_embd a_n_mels 3 | hf conv1.weight
        a.conv1d.1.bias f32     : a_n_embd 1          | hf conv1.bias @column
        a.conv1d.2.weight plain : a_n_embd a_n_embd 3 | hf conv2.weight
        a.conv1d.2.bias f32     : a_n_embd 1          | hf conv2.bias @column
        """,
        under={"hf": "audio_tower."},
        column=COLUMN,
    )


def last_norm(name: str) -> Roles:
    """Return the roles of the norm behind the blocks, which a checkpoint calls `name`."""
    return roles(f"""
        a.post_ln.weight f32 : a_n_embd | hf audio_tower.{name}.weight
        a.post_ln.bias       : a_n_embd | hf audio_tower.{name}.bias
        """)


POSITIONS = roles("a.position_embd.weight f32 : a_n_ctx a_n_embd | hf audio_tower.embed_positions.weight")


def blocks(key_bias: bool = False) -> Roles:
    """Return the roles of the blocks. `key_bias`: whether keys have a bias, as only Qwen 3's do."""
    biased = "attn_k.bias : a_n_embd | hf self_attn.k_proj.bias" if key_bias else ""
    return block(
        f"""
        ln1.weight f32  : a_n_embd          | hf self_attn_layer_norm.weight
        ln1.bias        : a_n_embd          | hf self_attn_layer_norm.bias
        attn_q.weight   : a_n_embd a_n_embd | hf self_attn.q_proj.weight
        attn_q.bias     : a_n_embd          | hf self_attn.q_proj.bias
        attn_k.weight   : a_n_embd a_n_embd | hf self_attn.k_proj.weight
        {biased}
        attn_v.weight   : a_n_embd a_n_embd | hf self_attn.v_proj.weight
        attn_v.bias     : a_n_embd          | hf self_attn.v_proj.bias
        attn_out.weight : a_n_embd a_n_embd | hf self_attn.out_proj.weight
        attn_out.bias   : a_n_embd          | hf self_attn.out_proj.bias
        ln2.weight f32  : a_n_embd          | hf final_layer_norm.weight
        ln2.bias        : a_n_embd          | hf final_layer_norm.bias
        ffn_up.weight   : a_n_ff a_n_embd   | hf fc1.weight
        ffn_up.bias     : a_n_ff            | hf fc1.bias
        ffn_down.weight : a_n_embd a_n_ff   | hf fc2.weight
        ffn_down.bias   : a_n_embd          | hf fc2.bias
        """,
        name="a.blk.{n}.",
        layer="audio_tower.layers.{n}.",
    )


def whisper() -> Roles:
    """Return the roles of a whole Whisper encoder with its table of positions."""
    return roles(convolutions(), POSITIONS, last_norm("layer_norm"), blocks())
