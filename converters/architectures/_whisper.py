"""Roles of Whisper's blocks, of encoder and decoder, in OpenAI's names and transformers', and its mel filters."""

import math
from collections.abc import Sequence

from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import Roles, roles
from ggferry.formats.limits import MAX_WIDTH

MEL_BINS = 201


def attention(name: str, hf: str, openai: str, width: str) -> Roles:
    """Return one attention with the norm before it: to the stack itself, or of the decoder to the encoder. Keys have no
    bias. `name`: GGUF's."""
    return roles(f"""
        {name}_norm.weight f32 : {width}         | hf {hf}_layer_norm.weight | openai {openai}_ln.weight
        {name}_norm.bias       : {width}         | hf {hf}_layer_norm.bias   | openai {openai}_ln.bias
        {name}_q.weight        : {width} {width} | hf {hf}.q_proj.weight     | openai {openai}.query.weight
        {name}_q.bias          : {width}         | hf {hf}.q_proj.bias       | openai {openai}.query.bias
        {name}_k.weight        : {width} {width} | hf {hf}.k_proj.weight     | openai {openai}.key.weight
        {name}_v.weight        : {width} {width} | hf {hf}.v_proj.weight     | openai {openai}.value.weight
        {name}_v.bias          : {width}         | hf {hf}.v_proj.bias       | openai {openai}.value.bias
        {name}_output.weight   : {width} {width} | hf {hf}.out_proj.weight   | openai {openai}.out.weight
        {name}_output.bias     : {width}         | hf {hf}.out_proj.bias     | openai {openai}.out.bias
        """)


def feed_forward(width: str, inner: str) -> Roles:
    """Return the plain network, `inner` wide, with the norm before it."""
    return roles(f"""
        ffn_norm.weight f32 : {width}         | hf final_layer_norm.weight | openai mlp_ln.weight
        ffn_norm.bias       : {width}         | hf final_layer_norm.bias   | openai mlp_ln.bias
        ffn_up.weight       : {inner} {width} | hf fc1.weight              | openai mlp.0.weight
        ffn_up.bias         : {inner}         | hf fc1.bias                | openai mlp.0.bias
        ffn_down.weight     : {width} {inner} | hf fc2.weight              | openai mlp.2.weight
        ffn_down.bias       : {width}         | hf fc2.bias                | openai mlp.2.bias
        """)


def mel_filters(values: Values) -> Sequence[float]:
    """What Whisper multiplies a power spectrum by, `(n_mels, 201)` in rows: triangles over the 201 frequencies of a
    window of 400 samples at 16 kHz, their corners evenly spaced in mels from 0 to 8000 Hz, each of area 1.

    Mels are Slaney's: linear below 1000 Hz (15 = 1000 Hz), from there 27 to a factor of 6.4 (Auditory Toolbox, 1998;
    librosa.filters.mel, from which OpenAI's mel_filters.npz was made; transformers `mel_filter_bank`).
    """
    count = values["n_mels"]
    if not 0 < count <= MAX_WIDTH:
        raise ValueError(f"{count} mel channels")
    top = 15 + 27 * math.log(8) / math.log(6.4)
    corners = [_hertz(top * i / (count + 1)) for i in range(count + 2)]
    bins = [8000 * i / (MEL_BINS - 1) for i in range(MEL_BINS)]
    return [
        max(0.0, min((f - low) / (middle - low), (high - f) / (high - middle))) * 2 / (high - low)
        for low, middle, high in zip(corners, corners[1:], corners[2:], strict=False)
        for f in bins
    ]


def _hertz(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000 * math.exp(math.log(6.4) / 27 * (mel - 15))
