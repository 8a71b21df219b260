"""What rounding to a type costs where nothing is wrong: the relative RMS error of ordinary weights.

Measured, not derived (tests/quant/accuracy/test_bands.py measures again). The lower end is that of normally distributed
rows, the upper one that of rows with heavy tails (Student's t of three degrees of freedom) or, where it costs more, of
such rows under an importance matrix that spans decades. Ternary and binary types are for models trained that way, and
their band is that of such weights: nothing but the scale's rounding to float16.
"""

from __future__ import annotations

BANDS: dict[str, tuple[float, float]] = {
    "F16": (0.000207, 0.000209),
    "BF16": (0.00165, 0.00167),
    "Q8_0": (0.00534, 0.00841),
    "Q6_K": (0.0177, 0.0276),
    "Q5_K": (0.0361, 0.0487),
    "Q5_1": (0.0379, 0.0483),
    "Q5_0": (0.0426, 0.0670),
    "Q4_K": (0.0712, 0.0989),
    "Q4_1": (0.0781, 0.1010),
    "Q4_0": (0.0857, 0.1300),
    "IQ4_NL": (0.0761, 0.1050),
    "IQ4_XS": (0.0767, 0.1060),
    "NVFP4": (0.0910, 0.0952),
    "MXFP4": (0.1150, 0.1420),
    "Q3_K": (0.1510, 0.1960),
    "IQ3_S": (0.1660, 0.2170),
    "IQ3_XXS": (0.1810, 0.2500),
    "Q2_K": (0.2950, 0.3520),
    "IQ2_S": (0.2480, 0.3800),
    "IQ2_XS": (0.3000, 0.4120),
    "IQ2_XXS": (0.3440, 0.4980),
    "IQ1_M": (0.4510, 0.5550),
    "IQ1_S": (0.4850, 0.6380),
    "Q1_0": (0.0, 0.0005),
    "Q2_0": (0.0, 0.0005),
    "TQ1_0": (0.0, 0.0005),
    "TQ2_0": (0.0, 0.0005),
}
"""Type → (least, most) relative RMS error."""

TOLERANCE = 1.2
"""How far above its band an error is that of a tensor of its own kind, and not that of a small one's few blocks."""


def beyond_band(kind: str, relative_rms: float) -> bool:
    """Whether the error is larger than the type's rounding explains for ordinary weights. False for a type without a
    band."""
    return kind in BANDS and relative_rms > TOLERANCE * BANDS[kind][1]
