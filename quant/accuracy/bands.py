"""What rounding to a type costs where nothing is wrong: the relative RMS error of ordinary weights.

Measured, not derived (tests/quant/accuracy/test_bands.py measures again). The lower end is that of normally distributed
rows, the upper one that of rows with heavy tails (Student's t of three degrees of freedom) or, where it costs more, of
such rows under an importance matrix that spans decades. Ternary and binary types are for models trained that way, and
their band is that of such weights: nothing but the scale's rounding to float16. The numbers stand with each codec.
"""

from __future__ import annotations

from ggferry.quant.codec import codec

TOLERANCE = 1.2
"""How far above its band an error is that of a tensor of its own kind, and not that of a small one's few blocks."""


def band_of(kind: str) -> tuple[float, float] | None:
    """Return the least and most relative RMS error of the type, None where it rounds nothing. Raises BlockError."""
    return codec(kind).accuracy.band


def beyond_band(kind: str, relative_rms: float) -> bool:
    """Whether the error is larger than the type's rounding explains for ordinary weights. False for a type without a
    band."""
    band = band_of(kind)
    return band is not None and relative_rms > TOLERANCE * band[1]
