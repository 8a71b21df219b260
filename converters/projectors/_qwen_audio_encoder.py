"""Roles and hparams of the audio encoders of Qwen's models of everything: Qwen2.5-Omni's, Qwen3-Omni's and Qwen3-ASR's.

Source: transformers `modeling_qwen2_5_omni.py`, `modeling_qwen3_omni_moe.py`; llama.cpp `conversion/qwenvl.py`,
`conversion/qwen3vl.py`. No checkpoint holds their positions, which are sines and cosines.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import roles
from ggferry.formats.limits import MAX_WIDTH

MEMBERS = ("audio_config", "thinker_config.audio_config")
"""Where transformers' own checkpoints and Qwen's describe the audio encoder."""
LENGTH = 1500
"""Rows of the table of positions, as llama.cpp's converter makes it: Whisper's."""


def positions(values: Values) -> Sequence[float]:
    """Return the table of positions, `(a_n_ctx, a_n_embd)` in rows: sines, then cosines, of ever lower frequencies.

    Angles are rounded to float32 as torch rounds them (transformers `SinusoidsPositionEmbedding`).
    """
    count, width = values["a_n_ctx"], values["a_n_embd"]
    if not (0 < count <= MAX_WIDTH and 2 < width <= MAX_WIDTH and width % 2 == 0):
        raise ValueError(f"{count} positions of {width} columns")
    step = array("f", [math.log(10000) / (width // 2 - 1)])[0]
    slow = array("f", map(math.exp, array("f", [-step * i for i in range(width // 2)])))
    table = array("f")
    for place in range(count):
        angles = array("f", [place * rate for rate in slow])
        table.extend(map(math.sin, angles))
        table.extend(map(math.cos, angles))
    return table


def hparams(*more: HParam) -> tuple[HParam, ...]:
    """Return the hparams of one of these audio encoders, and `more`."""
    windows = HParam("a_window", None, fields={"hf": "audio_config.n_window"}, required=False)
    length = Default(LENGTH, "Whisper's, as llama.cpp has it", dialect="hf")
    known = replace(encoder.N_CTX, fields={}, defaults=(length,))
    columns = (*clip.AUDIO, clip.A_EPS, encoder.N_CTX, encoder.ACTIVATION)
    variant = (known if one is encoder.N_CTX else one for one in columns)
    return encoder.under(MEMBERS, *variant, windows, *more)


DROPS = (
    *clip.TEXT,
    Drop("thinker.model.*", "of the text model"),
    Drop("thinker.language_model.*", "of the text model"),
    Drop("thinker.lm_head.*", "of the text model"),
)
TALKER = tuple(Drop(name, "of the audio decoder") for name in ("talker.*", "token2wav.*", "code2wav.*"))
IGNORED_KEYS = (
    *encoder.ignored_in(*MEMBERS),
    IgnoredKey(" ".join(f"{member}.{key}" for member in MEMBERS for key in ("output_dim",)),
             "repeats the width of the text model", follows="a_projection"),
    IgnoredKey(" ".join(f"{member}.{key}" for member in MEMBERS
                      for key in ("max_source_positions", "max_position_embeddings", "conv_chunksize")),
             "how much is computed at a time"),
)

EARLIER = roles(
    encoder.convolutions(),
    "a.position_embd.weight f32 : a_n_ctx a_n_embd | hf =positions",
    encoder.last_norm("ln_post"),
    encoder.blocks(),
    """
    mm.a.fc.weight : a_projection a_n_embd | hf audio_tower.proj.weight
    mm.a.fc.bias   : a_projection          | hf audio_tower.proj.bias
    """,
    positions=positions,
)

_SHAPED = Reshape(("a_wide", "1", "1"), back=("a_wide",))
LATER = roles(
    roles(
        """
        a.conv2d.1.weight plain : a_wide 1 3 3      | hf conv2d1.weight
        a.conv2d.1.bias f32     : a_wide 1 1        | hf conv2d1.bias @shaped
        a.conv2d.2.weight plain : a_wide a_wide 3 3 | hf conv2d2.weight
        a.conv2d.2.bias f32     : a_wide 1 1        | hf conv2d2.bias @shaped
        a.conv2d.3.weight plain : a_wide a_wide 3 3 | hf conv2d3.weight
        a.conv2d.3.bias f32     : a_wide 1 1        | hf conv2d3.bias @shaped
        a.conv_out.weight       : a_n_embd a_wide*((((a_n_mels+1)//2+1)//2+1)//2) | hf conv_out.weight
        """,
        under={"hf": "audio_tower."},
        shaped=_SHAPED,
    ),
    "a.position_embd.weight f32 : a_n_ctx a_n_embd | hf =positions",
    encoder.last_norm("ln_post"),
    encoder.blocks(key_bias=True),
    """
    mm.a.mlp.1.weight : a_n_embd a_n_embd     | hf audio_tower.proj1.weight
    mm.a.mlp.1.bias   : a_n_embd              | hf audio_tower.proj1.bias
    mm.a.mlp.2.weight : a_projection a_n_embd | hf audio_tower.proj2.weight
    mm.a.mlp.2.bias   : a_projection          | hf audio_tower.proj2.bias
    """,
    positions=positions,
)
WIDE = HParam("a_wide", None, fields={"hf": "audio_config.downsample_hidden_size"})
"""Channels of the convolutions of the later ones."""
SEEN_AT_ONCE = HParam("a_window_infer", None, fields={"hf": "audio_config.n_window_infer"}, required=False)
"""Frames within which the later ones attend; llama.cpp has one window for all."""

WINDOWS = (
    "its attention sees windows of {a_window_infer} frames, ten milliseconds each; llama.cpp's sees a recording of up "
    "to thirty seconds at once"
)


def thinking(*hparams: HParam) -> tuple[HParam, ...]:
    """Return the hparams as configurations of models of everything state them, all under thinker_config."""
    return tuple(
        replace(one, fields={name: _deeper(place, "|") for name, place in one.fields.items()}) for one in hparams
    )


def thought(*ignored: IgnoredKey) -> tuple[IgnoredKey, ...]:
    """Return the harmless keys of such configurations."""
    return tuple(replace(one, keys=_deeper(one.keys, " ")) for one in ignored)


def _deeper(words: str, between: str) -> str:
    return between.join(
        f"thinker_config.{word}" if word.startswith(("vision_config.", "audio_config.")) else word
        for word in words.split(between)
    )
