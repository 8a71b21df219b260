"""The relative RMS error that rounding to a type causes in ordinary weights, where nothing is wrong.

The numbers are measured, not derived, and tests/quant/accuracy/test_expected_error.py measures them again. The lower
end of a
band is the error of normally distributed rows. The upper end is that of rows with heavy tails (Student's t with three
degrees of freedom) or, where it is larger, of such rows under an importance matrix that spans decades. Ternary and
binary types are for models trained that way, and their band is that of such weights: only the rounding of the scale to
float16. Each codec holds its own numbers.
"""

from __future__ import annotations

from ggferry.quant.codec import codec

TOLERANCE = 1.2
"""How far above the band an error must be to concern the tensor as a whole, not a few blocks of a small tensor."""

CORRECTED = 2.0
"""How many times as far corrections for the errors of earlier columns (`quant.rounding.feedback`) may move a tensor:
1.3 to 1.5 times is usual, 2.1 times was met where a few inputs are a thousand times as large as the others."""


def band_of(kind: str) -> tuple[float, float] | None:
    """Return the least and the greatest relative RMS error of the type; None where nothing is rounded.

    Raises BlockError.
    """
    return codec(kind).accuracy.band


def beyond_band(kind: str, relative_rms: float) -> bool:
    """Return whether the error is larger than rounding to the type explains for ordinary weights.

    False for a type without a band.
    """
    band = band_of(kind)
    return band is not None and relative_rms > TOLERANCE * band[1]
