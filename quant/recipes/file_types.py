"""`general.file_type`: the number that says what a file mostly consists of, and how to find the right one.

Sources: the GGUF specification for 0–18, docs/formats/todays-converter.md for 19–41, 1024 and the mixtures. The `ftype`
of LLaMA-family legacy headers has the same numbers; ggml's own examples number 10–14 differently
(docs/formats/ggml-era.md "Type codes"), which is one more reason to believe a stated number only when the tensors agree
with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache

from ggferry.quant.codec import codecs
from ggferry.support.records import dataclass

GUESSED = 1024
"""LLAMA_FTYPE_GUESSED: no entry describes the file (for instance, all tensors are i32)."""


@dataclass(frozen=True, slots=True)
class FileType:
    """A value of `general.file_type`.

    Attributes:
        id: The number.
        name: As llama-quantize and file names spell it ('Q4_K_M'), without ALL_ or MOSTLY_.
        main: The block types that may dominate such a file, the recipe's own first.
        mixture: Other types that the recipe gives to whole roles; in some architectures they outnumber the main type.
        removed: Whether no current GGUF file can hold it.
    """

    id: int
    name: str
    main: tuple[str, ...]
    mixture: frozenset[str] = frozenset()
    removed: bool = False


_RECIPES = """
    4       Q4_1_SOME_F16  Q4_1
    -5      Q4_2           Q4_2
    -6      Q4_3           Q4_3
    Q2_K    Q2_K           Q2_K     | Q3_K Q4_K
    11      Q3_K_S         Q3_K
    12      Q3_K_M         Q3_K     | Q4_K Q5_K
    13      Q3_K_L         Q3_K     | Q4_K Q5_K
    14      Q4_K_S         Q4_K     | Q5_K
    15      Q4_K_M         Q4_K     | Q5_K Q6_K
    16      Q5_K_S         Q5_K
    17      Q5_K_M         Q5_K     | Q6_K
    IQ2_XXS IQ2_XXS        IQ2_XXS  | Q2_K Q4_K
    IQ2_XS  IQ2_XS         IQ2_XS   | Q2_K Q4_K
    21      Q2_K_S         Q2_K     | Q4_K
    22      IQ3_XS         IQ3_S IQ3_XXS | Q4_K
    IQ3_XXS IQ3_XXS        IQ3_XXS  | IQ3_S IQ2_S Q3_K Q4_K
    IQ1_S   IQ1_S          IQ1_S    | IQ2_XXS Q2_K Q4_K
    IQ4_NL  IQ4_NL         IQ4_NL   | Q5_K
    IQ3_S   IQ3_S          IQ3_S    | Q4_K
    27      IQ3_M          IQ3_S    | Q4_K
    IQ2_S   IQ2_S          IQ2_XS IQ2_S | IQ3_S Q4_K
    29      IQ2_M          IQ2_S    | IQ3_S Q4_K
    IQ4_XS  IQ4_XS         IQ4_XS   | Q5_K
    IQ1_M   IQ1_M          IQ1_M    | IQ2_XXS Q2_K Q4_K
    -33     Q4_0_4_4       Q4_0_4_4
    -34     Q4_0_4_8       Q4_0_4_8
    -35     Q4_0_8_8       Q4_0_8_8
    TQ1_0   TQ1_0          TQ1_0    | Q4_K
    TQ2_0   TQ2_0          TQ2_0    | Q4_K
    MXFP4   MXFP4_MOE      MXFP4    | Q8_0
    Q2_0    Q2_0           Q2_0     | Q4_K
    1024    GUESSED        -
"""
"""Lines `ID NAME MAIN… [| MIXTURE…]` for what is more than a block type and its name.

`-` stands before a removed id; a block type in place of the id means the id that its codec states.
"""


@cache
def file_types() -> Mapping[int, FileType]:
    """Return every file type by id: those of recipes, and that of each block type whose codec has one."""
    own = {one.type.name: one.file_type for one in codecs().values() if one.file_type is not None}
    types = {id: FileType(id, name, (name,)) for name, id in own.items()}
    for line in _RECIPES.strip().splitlines():
        head, _, mixture = line.partition("|")
        number, name, *main = head.split()
        id = own[number] if number in own else abs(int(number))
        types[id] = FileType(id, name, tuple(main), frozenset(mixture.split()), number.startswith("-"))
    return dict(sorted(types.items()))


_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}  # llama-quantize's

Types = Mapping[str, tuple[str, int]]


def file_type_name(id: int) -> str:
    """Return the name of a file type as it stands in file names: 15 → 'Q4_K_M'. An unknown id gives 'TYPE_<id>'."""
    entry = file_types().get(id)
    return f"TYPE_{id}" if entry is None else entry.name


def parse_file_type(text: str) -> int | None:
    """Return the id of a name in any of its spellings ('q4_k_m', 'MOSTLY_Q4_K_M', 'ALL_F32', 'Q4_K'), or None."""
    name = text.strip().upper().removeprefix("LLAMA_FTYPE_").removeprefix("MOSTLY_").removeprefix("ALL_")
    canonical = _ALIASES.get(name, name)
    return next((entry.id for entry in file_types().values() if entry.name == canonical), None)


def file_type_of(types: Types, declared: int | None = None) -> int:
    """Return the `general.file_type` of a file with these tensors: what it contains, not what was asked for.

    Args:
        types: Name in GGUF → (name of the block type, elements), for every tensor with two or more dimensions. (Vectors
            are F32 in every recipe and say nothing.)
        declared: The recipe asked for, or the ftype of the source's header. It is kept only when the tensors agree with
            it, because it distinguishes what types alone cannot (Q4_K_S and Q4_K_M). Without any tensor it is kept as
            it is.

    Returns:
        The number; 0 without tensors and without a stated one.
    """
    counts: Counter[str] = Counter()
    for block_type, elements in types.values():
        counts[block_type] += elements
    if declared is not None and _borne_out(declared, types, counts):
        return declared
    if not counts:
        return 0
    for block_type, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        meant = _meaning(block_type, types)
        if meant is not None:
            return meant
    return GUESSED


def _meaning(block_type: str, types: Types) -> int | None:
    """Return which id a dominant block type means when nothing was stated.

    A recipe that shares its main type with a plainer one (IQ2_M, IQ3_M, Q2_K_S, Q4_1_SOME_F16 …) is never derived: the
    plainer one describes the file just as well.
    """
    if block_type in _SHARED:
        return _SHARED[block_type](types)
    one = codecs().get(block_type)
    return None if one is None else one.file_type


def _borne_out(declared: int, types: Types, counts: Mapping[str, int]) -> bool:
    entry = file_types().get(declared)
    if entry is None or entry.removed or declared == GUESSED:
        return False
    if not counts:
        return True
    if declared == 4 and "F16" not in counts:
        return False
    main = max(counts.get(name, 0) for name in entry.main)
    above = {name for name, elements in counts.items() if elements > main}
    # In GPT-NeoX the Q2_K recipe gives Q3_K to the fused qkv, the attention output and ffn_down: two thirds of the
    # weights. Such a file is what every llama.cpp calls Q2_K; its main type keeps the ffn_up third.
    return main > 0 and (not above or (above <= entry.mixture and 4 * main >= sum(counts.values())))


def _q3_k(types: Types) -> int:
    found = Counter(block_type for name, (block_type, _) in types.items() if ".ffn_down" in name)
    if found["Q5_K"] > found["Q4_K"]:
        return 13
    return 12 if found["Q4_K"] or found["Q5_K"] else 11


def _with_q6_k(medium: int, small: int) -> Callable[[Types], int]:
    """Return a function that chooses between an _M recipe and its _S recipe.

    The _M recipes give Q6_K to half of the attn_v (or fused qkv) and ffn_down tensors; the _S ones never do.
    """
    roles = (".attn_v.", ".attn_qkv.", ".ffn_down")

    def choose(types: Types) -> int:
        more = any(kind == "Q6_K" and any(role in name for role in roles) for name, (kind, _) in types.items())
        return medium if more else small

    return choose


_SHARED: Mapping[str, Callable[[Types], int]] = {
    "Q3_K": _q3_k,
    "Q4_K": _with_q6_k(15, 14),
    "Q5_K": _with_q6_k(17, 16),
}
"""Types for which no recipe is the plain one."""
