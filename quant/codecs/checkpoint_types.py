"""Plain number types that training checkpoints hold and for which ggml has no id.

Integers and booleans are masks, token counts and packed quantized weights. The two 8-bit floats are those of
arXiv:2209.05433: E4M3 in its "FN" form (no infinity, NaN is S.1111.111) as torch.float8_e4m3fn, E5M2 as in IEEE. E8M0,
torch.float8_e8m0fnu, is a power of two (OCP Microscaling Formats 1.0): a scale of 8-bit weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ggferry.quant.codec import Codec
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.types import table
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

_INTEGERS = table(
    """
    BOOL - 1 x:u1
    U8   - 1 x:u1
    U16  - 1 x:u2
    U32  - 1 x:u4
    U64  - 1 x:u8
    """,
    quantized=False,
)
_FLOATS = table(
    """
    F8_E4M3 - 1 x:u1
    F8_E5M2 - 1 x:u1
    F8_E8M0 - 1 x:u1
    """
)
BOOL, U8, U16, U32, U64 = _INTEGERS.values()
F8_E4M3, F8_E5M2, F8_E8M0 = _FLOATS.values()


def _decode_integers(rows: Bytes, columns: int, *, dtype: str) -> Floats:
    """Decode integers; values beyond 2^24 are rounded to the nearest float32, as in every conversion to float32."""
    integers: Any = rows.view(dtype).reshape(len(rows), columns)
    values: Floats = integers.astype(np.float32)
    return values


def _decode_bool(rows: Bytes, columns: int) -> Floats:
    truths: Any = rows.reshape(len(rows), columns) != 0
    values: Floats = truths.astype(np.float32)
    return values


def _decode_byte_floats(rows: Bytes, columns: int, *, values: Callable[[], Floats]) -> Floats:
    decoded: Floats = values()[rows.reshape(len(rows), columns)]
    return decoded


@cache
def _e5m2() -> Floats:
    """Return all 256 values: E5M2 is the upper byte of a float16."""
    halves: Any = np.arange(256, dtype="<u2") << 8
    values: Floats = halves.view("<f2").astype(np.float32)
    return values


@cache
def _e4m3() -> Floats:
    """Return all 256 values: exponent bias 7, subnormals at exponent 0, S.1111.111 is NaN."""
    codes = np.arange(128)
    exponents, mantissas = codes >> 3, (codes & 7) / 8
    values = np.where(exponents == 0, mantissas * 2.0**-6, (1 + mantissas) * 2.0 ** (exponents - 7.0))
    values[127] = np.nan
    both: Floats = np.concatenate([values, -values]).astype(np.float32)
    return both


@cache
def _e8m0() -> Floats:
    """Return all 256 values: an exponent with bias 127 and nothing else; 255 is NaN."""
    values: Floats = np.full(256, np.nan, np.float32)
    values[:255] = np.ldexp(np.float32(1), np.arange(255) - 127)
    return values


_decode_e4m3, _decode_e5m2, _decode_e8m0 = (
    partial(_decode_byte_floats, values=values) for values in (_e4m3, _e5m2, _e8m0)
)

CODECS = (
    Codec(BOOL, _decode_bool),
    Codec(U8, partial(_decode_integers, dtype="u1")),
    Codec(U16, partial(_decode_integers, dtype="<u2")),
    Codec(U32, partial(_decode_integers, dtype="<u4")),
    Codec(U64, partial(_decode_integers, dtype="<u8")),
    Codec(
        F8_E4M3, _decode_e4m3, suspicious={"x": lambda x: x & 0x7F == 0x7F},
        compiled=compiled(F8_E4M3, _decode_e4m3, "decode_plain"),
    ),
    Codec(
        F8_E5M2, _decode_e5m2, suspicious={"x": lambda x: x & 0x7C == 0x7C},
        compiled=compiled(F8_E5M2, _decode_e5m2, "decode_plain"),
    ),
    Codec(F8_E8M0, _decode_e8m0, suspicious={"x": lambda x: x == 0xFF}),  # of scales, too few for a kernel
)
