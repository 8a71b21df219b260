"""Roles of GLM-ASR's audio encoder under two sets of names: transformers' ('hf') and its publisher's ('glm')."""

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import Roles, roles


def stack(values: Values) -> int:
    """Return how many states become one row: as stated, or until they are as wide as the encoder's network."""
    return int(values.get("merge_factor") or values["a_n_ff"] // values["a_n_embd"])


def linear(name: str, rows: str, columns: str, hf: str, glm: str, layout: str = "", bias: bool = True) -> str:
    at = f" @{layout}" if layout else ""
    found = f"{name}.weight : {rows} {columns} | hf {hf}.weight{at} | glm {glm}.weight\n"
    return found + (f"{name}.bias : {rows} | hf {hf}.bias{at} | glm {glm}.bias\n" if bias else "")


def norm(name: str, hf: str, glm: str) -> str:
    return "".join(f"{name}.{x}{f32} : a_n_embd | hf {hf}.{x} | glm {glm}.{x}\n"
                   for x, f32 in (("weight", " f32"), ("bias", "")))


def convolutions() -> Roles:
    lines = "".join(
        f"a.conv1d.{n}.weight plain : a_n_embd {width} 3 | hf conv{n}.weight | glm conv{n}.weight\n"
        f"a.conv1d.{n}.bias f32 : a_n_embd 1 | hf conv{n}.bias @column | glm conv{n}.bias @column\n"
        for n, width in ((1, "a_n_mels"), (2, "a_n_embd"))
    )
    return roles(lines, under={"hf": "audio_tower.", "glm": "audio_encoder.whisper."}, column=encoder.COLUMN)
