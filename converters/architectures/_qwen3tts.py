"""What the publisher's class takes where a configuration of Qwen3-TTS says nothing.

Source: qwen-tts 0.1.1 `configuration_qwen3_tts.py`, `Qwen3TTSTalkerConfig.__init__`.
"""

from dataclasses import replace
from typing import Any

from ggferry.converters.schema.architecture import Default, HParam


def by_class(param: HParam, value: Any, when: str = "") -> HParam:
    """Return the hparam with that value as its default; `when`: the condition under which it is taken."""
    return replace(param, defaults=(Default(value, "Qwen3TTSTalkerConfig's default", when, dialect="hf"),))
