"""From a recording in a file to a spectrum, `(bins, frames)`, as Whisper's feature extractor makes it.

Source: transformers `feature_extraction_whisper.py`, `audio_utils.py` (Slaney's mel scale).
"""

from __future__ import annotations

import math
import wave
from collections.abc import Mapping

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.formats.errors import CorruptError, UnsupportedError, UsageError
from ggferry.formats.files.local_files import Named, open_file
from ggferry.support.heavy import np

RATE, WINDOW, HOP = 16000, 400, 160
LONGEST = 30
"""Seconds of a recording that Whisper's kind hears at once."""
MOST_SECONDS = 3600
WHOLE, AS_LONG = True, False
PROJECTORS: Mapping[str, bool] = {
    **dict.fromkeys(("voxtral", "qwen2a", "musicflamingo", "ultravox", "meralion", "glma"), WHOLE),
    **dict.fromkeys(("qwen2.5o", "qwen3a", "qwen3vl_merger+qwen3a"), AS_LONG),
}
"""Projector → whether a recording is filled up with silence to thirty seconds, or stays as long as it is."""
_LINEAR = 200.0 / 3
"""Hertz a mel below 1000 Hz."""
_KNEE, _STEP = 1000.0, math.log(6.4) / 27
"""Above them, the step of its logarithm a mel."""
_STARTS = _KNEE / _LINEAR


def spectrum_of_file(path: str, graph: ModelGraph, bins: int) -> tuple[np.ndarray, str]:
    """Return what an audio encoder reads of a recording, and what was left out of it, or ''.

    Args:
        path: A WAV file of numbers (PCM) at 16 kHz; channels are averaged.
        graph: The mmproj file, or the audio part of a checkpoint.
        bins: How many bins a frame has.

    Returns:
        float32 `(bins, frames)`.

    Raises:
        UnsupportedError: The family's spectra are made otherwise.
        CorruptError: The file is no such recording.
        UsageError: It is empty, or longer than an hour.
    """
    whole = PROJECTORS.get(graph.architecture.projector)
    if whole is None:
        raise UnsupportedError(
            "how this family makes a spectrum is not computed here",
            path=graph.checkpoint.path,
            found=graph.architecture.projector,
            hint="--mel X.npy takes a spectrum, bins × frames",
        )
    samples, left_out = _samples(path), ""
    if whole:
        if len(samples) > LONGEST * RATE:
            left_out = f"the first {LONGEST} seconds of the recording were heard"
        samples = np.pad(samples[: LONGEST * RATE], (0, max(0, LONGEST * RATE - len(samples))))
    if len(samples) < WINDOW:
        raise UsageError("a recording of so few samples", path=path, found=len(samples), expected=f"{WINDOW} or more")
    return log_mel(samples, bins), left_out


def log_mel(samples: np.ndarray, bins: int) -> np.ndarray:
    """Return Whisper's spectrum of samples at 16 kHz: float32 `(bins, frames)`, a frame for every hop of 160."""
    window = np.hanning(WINDOW + 1)[:-1]
    filled = np.pad(samples.astype(np.float64), WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(filled, WINDOW)[::HOP][:-1]
    bank, parts = mel_filters(bins), []
    for first in range(0, len(frames), 1000):
        power = np.abs(np.fft.rfft(frames[first : first + 1000] * window)) ** 2
        parts.append(np.log10(np.maximum(power @ bank, 1e-10)))
    found = np.concatenate(parts).T
    kept: np.ndarray = ((np.maximum(found, found.max() - 8) + 4) / 4).astype(np.float32)
    return kept


def mel_filters(bins: int) -> np.ndarray:
    """Return triangles over the frequencies of a frame, float64 `(201, bins)`, each of area 1 in Slaney's norm."""
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    edges = _hertz(np.linspace(0, _mels(RATE / 2), bins + 2))
    slopes = edges[None, :] - frequencies[:, None]
    rising, falling = -slopes[:, :-2] / np.diff(edges)[:-1], slopes[:, 2:] / np.diff(edges)[1:]
    found: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))
    return found


def _mels(hertz: float) -> float:
    return float(_STARTS + np.log(hertz / _KNEE) / _STEP) if hertz >= _KNEE else hertz / _LINEAR


def _hertz(mels: np.ndarray) -> np.ndarray:
    return np.where(mels >= _STARTS, _KNEE * np.exp(_STEP * (mels - _STARTS)), _LINEAR * mels)


def _samples(path: str) -> np.ndarray:
    """Return the samples of a WAV file from -1 to 1, float32, its channels averaged. Raises as `spectrum_of_file`."""
    try:
        with open(open_file(Named(path)), "rb") as file, wave.open(file) as sound:
            rate, channels, wide, count = (
                sound.getframerate(),
                sound.getnchannels(),
                sound.getsampwidth(),
                sound.getnframes(),
            )
            if rate != RATE:
                raise UnsupportedError(
                    "a recording at another rate",
                    path=path,
                    found=f"{rate} Hz",
                    expected=f"{RATE} Hz",
                    hint=f"ffmpeg -i IN -ar {RATE} OUT.wav",
                )
            if count > MOST_SECONDS * RATE:
                raise UsageError("a recording", path=path, found=f"{count / RATE:.0f} s", expected="an hour or less")
            data = sound.readframes(count)
    except (OSError, EOFError, wave.Error, ValueError, ArithmeticError) as error:
        raise CorruptError(f"not a WAV file of samples (PCM): {str(error)[:80]}", path=path) from None
    data = data[: len(data) // (wide * channels) * wide * channels]
    if wide == 1:  # without a sign
        flat = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    else:
        bytes_of = np.frombuffer(data, np.uint8).reshape(-1, wide)
        top = np.zeros((len(bytes_of), 4), np.uint8)
        top[:, 4 - wide :] = bytes_of[:, -4:]
        flat = (top.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    averaged: np.ndarray = flat.reshape(-1, channels).mean(-1, dtype=np.float32)
    return averaged
