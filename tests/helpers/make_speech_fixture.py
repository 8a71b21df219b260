"""Make fixtures/speech/fox.wav: a sentence spoken by espeak-ng 1.51 (Debian's package), 16 kHz, 16 bits, mono.

    python tests/helpers/make_speech_fixture.py

espeak-ng speaks at 22,050 Hz. The recording is brought to 16,000 Hz by its Fourier transform: both rates are multiples
of 50 Hz, so that frequencies up to 8 kHz stay as they are.
"""

from __future__ import annotations

import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np

SENTENCE = "The quick brown fox jumps over the lazy dog."
RATE = 16000
PLACE = Path(__file__).resolve().parents[2] / "fixtures" / "speech" / "fox.wav"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spoken = Path(folder) / "spoken.wav"
        subprocess.run(["espeak-ng", "-v", "en-us", "-s", "160", "-w", str(spoken), SENTENCE], check=True)
        with wave.open(str(spoken), "rb") as file:
            rate, data = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(data, "<i2").astype(np.float64)
    samples = np.pad(samples, (0, -len(samples) % (rate // 50)))
    length = len(samples) * RATE // rate
    resampled = np.fft.irfft(np.fft.rfft(samples)[: length // 2 + 1], length) * (length / len(samples))
    PLACE.parent.mkdir(exist_ok=True)
    with wave.open(str(PLACE), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.clip(np.round(resampled), -32768, 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    main()
