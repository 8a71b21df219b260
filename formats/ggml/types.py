"""Which block layout a tensor-type code means: it depends on the container, its version and the era.

Source: docs/formats/ggml-era.md "Type codes" and "Block eras". The bytes behind codes 2, 3, 6, 7 and 8 changed while
the numbers stayed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ggferry.formats.reader import HeaderLayout

Version = tuple[str, int | None]

_PLAIN = {0: "F32", 1: "F16"}
_V1_4BIT = {2: "Q4_0_V1", 3: "Q4_1_V1"}
_V1 = _V1_4BIT | {4: "Q4_2", 5: "Q4_3", 6: "Q5_0_V1", 7: "Q5_1_V1", 8: "Q8_0_V1"}
_V2 = {2: "Q4_0_V2", 3: "Q4_1_V2", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0_V1"}
_TODAY = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"}
_K = {10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}

TYPE_CODES: Mapping[Version, Mapping[int, str]] = {
    ("ggml", None): _PLAIN | _V1_4BIT,
    ("ggmf", 1): _PLAIN | _V1_4BIT,
    ("ggjt", 1): _PLAIN | _V1,
    ("ggjt", 2): _PLAIN | _V2,
    ("ggjt", 3): _PLAIN | _TODAY | _K,
    ("ggcc", 10): _PLAIN | _TODAY | _K,
}
"""The type codes by version of the container: LLaMA, ggllm.cpp and llm-rs."""

QUANTIZATION: tuple[Mapping[int, str], ...] = (_PLAIN | _V1, _PLAIN | _V2, _PLAIN | _TODAY | _K)
"""The type codes by GGML_QNT_VERSION, which the ggml examples multiply by 1000 and add to ftype.

It is 0 until 14 May 2023, 1 until 20 May, 2 since then (ggml.h, GGML_QNT_VERSION).
"""

MAX_FTYPE = 19
"""Cap on ftype without its version: GGML_FTYPE goes to 14, LLAMA_FTYPE to 18 (docs/formats/ggml-era.md)."""

PLANAR = {"Q4_0_V1": "Q4_0_PLANAR", "Q4_1_V1": "Q4_1_PLANAR"}
"""The same byte sizes, stored row by row in planes: unversioned GGML until 904d2a8d6, 17 March 2023."""

SMALL_K = {code: f"{name}_64" for code, name in _K.items()}
"""The k-quant blocks of builds with LLAMA_QKK_64 (from 26 June 2023).

Nothing in the file says so (llama.cpp 6769e944c).
"""

ALTERNATIVES: Mapping[Version, tuple[tuple[Mapping[int, str], str], ...]] = {
    ("ggjt", 1): (({6: "Q8_0_V1"}, "type code 6 is Q8_0, as quantize wrote it on 25 and 26 April 2023"),),
    ("ggjt", 3): ((SMALL_K, "k-quant blocks of 64: a build with LLAMA_QKK_64, which the file does not record"),),
}
"""Other meanings of the codes, tried when the walk under the usual one does not end at the last byte.

Block sizes differ, so the walk ends there under one meaning at most.
"""


def meanings(version: Version, layout: HeaderLayout, ftype: int) -> list[tuple[Mapping[int, str], str]]:
    """Return what the type codes may mean, the likeliest meaning first, each with a note for the user.

    `ftype` is the header's field. Raises ValueError for a value that no program wrote.
    """
    if layout.codes and version[1] is not None:
        return [(layout.codes[version[1]], "")]
    if layout.quantization is None or version[0] != "ggml":
        usual = TYPE_CODES[version]
        _check_ftype(ftype % 1000 if layout.quantization is not None else ftype)
        others = ALTERNATIVES.get(version, ()) if layout.quantization is None else ()
        return [(usual, ""), *(({**usual, **codes}, note) for codes, note in others)]
    declared, number = divmod(ftype, 1000)
    _check_ftype(number)
    if declared >= len(QUANTIZATION):
        raise ValueError(f"quantization version {declared}")
    first = declared or layout.quantization
    quantized = number > 1
    found = [(QUANTIZATION[first], _UNSTATED.format(first) if quantized and first and not declared else "")]
    # Block sizes changed with version 2 only: a walk that ends with the others proves them.
    other = 2 if first < 2 else 0
    if not declared:
        found.append((QUANTIZATION[other], _BY_SIZE.format(ftype, other)))
    return found


_UNSTATED = (
    "ftype states no quantization version, as the first quantizers of this family did not: {0} is taken, what they had"
)
_BY_SIZE = "ftype {0} states no quantization version; the block sizes are those of version {1}"


def _check_ftype(number: int) -> None:
    if not 0 <= number <= MAX_FTYPE:
        raise ValueError(f"ftype {number}")


ERAS: tuple[tuple[Version, frozenset[str], str], ...] = (
    # The era is that of the first line whose version matches and whose types intersect the file's (empty: any).
    (("ggml", None), frozenset({"Q4_0_PLANAR"}), "10–11 March 2023, planar Q4_0 rows (llama.cpp before 007a8f6f4)"),
    (("ggml", None), frozenset({"Q4_1_PLANAR"}), "10–17 March 2023, planar Q4_1 rows (llama.cpp before 904d2a8d6)"),
    (("ggml", None), frozenset({"Q4_0_V1"}), "11–20 March 2023 (llama.cpp 007a8f6f4..074bea2eb)"),
    (("ggml", None), frozenset({"Q4_1_V1"}), "17–20 March 2023 (llama.cpp 904d2a8d6..074bea2eb)"),
    (("ggml", None), frozenset(), "10–20 March 2023 (llama.cpp before 074bea2eb)"),
    (("ggmf", 1), frozenset(), "20–30 March 2023 (llama.cpp 074bea2eb..78ca9838e)"),
    (("ggjt", 1), frozenset({"Q4_3"}), "20–28 April 2023 (llama.cpp e0305ead3..36d19a603)"),
    (("ggjt", 1), frozenset({"Q4_2"}), "18 April – 12 May 2023 (llama.cpp 77a73403c..b9fd7eee5)"),
    (("ggjt", 1), frozenset({"Q5_0_V1", "Q5_1_V1"}), "26 April – 12 May 2023 (llama.cpp 574406dc7..b9fd7eee5)"),
    (("ggjt", 1), frozenset({"Q8_0_V1"}), "25 April – 12 May 2023 (llama.cpp 7a32fcb3b..b9fd7eee5)"),
    (("ggjt", 1), frozenset({"Q4_0_V1", "Q4_1_V1"}), "30 March – 12 May 2023 (llama.cpp 78ca9838e..b9fd7eee5)"),
    (("ggjt", 1), frozenset(), "30 March – 21 August 2023 (convert.py wrote v1 until GGUF)"),
    (("ggjt", 2), frozenset(), "12–19 May 2023 (llama.cpp b9fd7eee5..2d5db4837)"),
    (("ggjt", 3), frozenset(SMALL_K.values()), "26 June – 21 August 2023, built with LLAMA_QKK_64"),
    (("ggjt", 3), frozenset(_K.values()), "5 June – 21 August 2023 (llama.cpp 99009e72f..6381d4e11)"),
    (("ggjt", 3), frozenset(), "19 May – 21 August 2023 (llama.cpp 2d5db4837..6381d4e11)"),
)


VERSION_ERAS = (
    "before 14 May 2023 (quantization version 0)",
    "14–20 May 2023 (quantization version 1)",
    "since 20 May 2023 (quantization version 2)",
)
CONTAINER_ERAS: Mapping[Version, str] = {
    ("ggcc", 10): "June – August 2023 (ggllm.cpp)",
    ("ggmf", 1): "June 2023 (falcon_convert.py of ggllm.cpp, meant for its falcon_quantize)",
    ("ggmf", 100): "until 27 May 2023 (rwkv.cpp)",
    ("ggmf", 101): "since 27 May 2023 (rwkv.cpp)",
    ("ggjt", 3): "since May 2023 (llm-rs)",
}


def era_of(version: Version, types: frozenset[str], layout: HeaderLayout, ftype: int = 0) -> str:
    """Return when such bytes were written, in words. `ftype` is the header's field."""
    if layout.quantization is None and not layout.codes and version[0] != "ggcc":
        return next((words for v, some, words in ERAS if v == version and (not some or some & types)), "unknown era")
    if version in CONTAINER_ERAS:
        return CONTAINER_ERAS[version]
    if ftype >= 1000:
        return VERSION_ERAS[ftype // 1000]
    fitting = [words for codes, words in zip(QUANTIZATION, VERSION_ERAS, strict=True) if types <= set(codes.values())]
    return fitting[0] if len(fitting) == 1 else "2023 or later (nothing in it tells more)"
