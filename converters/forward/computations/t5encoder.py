"""The encoder of a T5 alone: its states are the result."""

from __future__ import annotations

from ggferry.converters.forward.computations.t5 import encode
from ggferry.converters.forward.model import ENCODER_STATES

RESULT = ENCODER_STATES
logits = encode

__all__ = ["RESULT", "encode", "logits"]
