"""The recording of fixtures/speech, which espeak-ng spoke (tests/helpers/make_speech_fixture.py)."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

SPEECH = Path(__file__).resolve().parents[2] / "fixtures" / "speech" / "fox.wav"


def spoken() -> np.ndarray:
    """Return its samples at 16 kHz as float32 from -1 to 1."""
    with wave.open(str(SPEECH), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
