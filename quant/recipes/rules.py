"""One line of a recipe: which tensors get which type, under which conditions.

    attn_v          more              -> Q6_K
    ffn_gate,ffn_up layer>=n/8        -> IQ3_XXS
    blk.*.ffn_down.weight             -> keep

A line consists of patterns joined by commas, conditions that must all hold, and a type. The same text serves the
built-in mixtures and the files that users write (docs/recipes.md).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from ggferry.quant.codec import block_type, codec, types_by_id
from ggferry.quant.types import BlockError
from ggferry.support.records import dataclass

KEEP = "keep"
"""In place of a type: the one the tensor has."""

ROLES: Mapping[str, tuple[str, ...]] = {
    "output": ("=output.weight",),
    "token_embd": ("=token_embd.weight", "=per_layer_token_embd.weight"),
    "attn_v": ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight"),
    "attn_k": ("attn_k.weight",),
    "attn_q": ("attn_q.weight",),
    "attn_output": ("attn_output.weight",),
    "ffn_up": ("ffn_up",),
    "ffn_gate": ("ffn_gate",),
    "ffn_down": ("ffn_down",),
}
"""Role → what the names of its tensors contain (`=`: are). The first match decides.

Source: tensor_get_category of llama-quant.cpp, where the fused attn_qkv and DeepSeek's attn_kv_b count as V.
"""
OTHER, ANY = "other", "any"
_TENSOR_WORDS = {*ROLES, OTHER, ANY}

FLAGS = {
    "more": "in the first or last eighth of the layers, or every third of those between",
    "imatrix": "an importance matrix is given",
    "ragged": "rows are not whole blocks of the recipe's default type",
    "stacked": "a third axis longer than 1: the experts of a layer in one tensor",
    "grouped": "K and V heads are fewer than Q heads",
    "tied": "the model has no output.weight",
}
WORDS = {
    "arch": "general.architecture",
    "type": "the type the lines above arrived at",
    "source": "how the source stores it: fp8, int4, nf4, … of a quantized checkpoint, else its type in lower case",
}
NUMBERS = {
    "count": "tensors of this role the rules decided before, in sorted order",
    "layer": "attn_v and, without experts, ffn_*: count; else the block number",
    "layers": "blocks of the model without those that predict further tokens",
    "gqa": "Q heads per K/V head",
    "experts": "experts per layer, 0 without",
    "columns": "length of a row",
}

_OPERATORS: Mapping[str, Callable[[int, int], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_CONDITION = re.compile(r"(!?)([a-z]+)(?:(<=|>=|!=|<|>|=)(\S+))?")
_AMOUNT = re.compile(r"(\d{1,9})|(\d{0,4})n(?:/([1-9]\d{0,4}))?")
_NAMES = 1 << 12  # answers kept: a plan, its check and its table ask about the same names
_BLOCK = re.compile(r"blk\.(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount: `times` itself or, with `per` > 0, that many times n/per.

    It is rounded down as in C: `7n/8` is (7n) div 8.
    """

    times: int
    per: int = 0

    def of(self, n: int) -> int:
        """Return the amount for this n."""
        return self.times * n // self.per if self.per else self.times

    def __str__(self) -> str:
        if not self.per:
            return str(self.times)
        return f"{self.times if self.times != 1 else ''}n{f'/{self.per}' if self.per != 1 else ''}"


@dataclass(slots=True)
class Subject:
    """What conditions are asked about.

    Attributes:
        name: Name of the tensor.
        roles: One role, or two for a token_embd that is also the output.
        n: What `n` stands for in amounts: the model's layers or, for attn_v, the number of V tensors.
        flags: Whether each flag holds.
        words: The value of each word.
        numbers: The value of each number. One that does not exist (the layer of a tensor outside the blocks) is None
            and fits no condition.
    """

    name: str
    roles: tuple[str, ...]
    n: int
    flags: Mapping[str, bool]
    words: dict[str, str]
    numbers: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Condition:
    """`flag` or `!flag` (`operator` is '' or '!'), `word=a,b` or `word!=a,b`, `number<amount` and the like."""

    name: str
    operator: str = ""
    value: Amount | tuple[str, ...] | None = None

    def holds(self, subject: Subject) -> bool:
        """Return whether the condition holds for this tensor."""
        if isinstance(self.value, Amount):
            number = subject.numbers[self.name]
            return number is not None and _OPERATORS[self.operator](number, self.value.of(subject.n))
        if self.value is not None:
            return (subject.words[self.name] in self.value) == (self.operator == "=")
        return subject.flags[self.name] == (self.operator == "")

    def __str__(self) -> str:
        if self.value is None:
            return self.operator + self.name
        value = str(self.value) if isinstance(self.value, Amount) else ",".join(self.value)
        return f"{self.name}{self.operator}{value}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of a recipe.

    Attributes:
        patterns: Roles, `any`, or globs on the tensor's name.
        when: Conditions that must all hold.
        type: Name of a type, or `keep`.
    """

    patterns: tuple[str, ...]
    when: tuple[Condition, ...]
    type: str

    def concerns(self, roles: tuple[str, ...]) -> bool:
        """Return whether the line can fit a tensor of these roles at all."""
        return any(pattern in roles or pattern == ANY or pattern not in _TENSOR_WORDS for pattern in self.patterns)

    def fits(self, subject: Subject) -> bool:
        """Return whether the line fits this tensor."""
        return any(_matches(pattern, subject) for pattern in self.patterns) and all(
            condition.holds(subject) for condition in self.when
        )

    def __str__(self) -> str:
        return " ".join([",".join(self.patterns), *map(str, self.when), "->", self.type])


@lru_cache(_NAMES)
def role_of(name: str) -> str:
    """Return the role of a tensor by its name in GGUF; 'other' for what no rule of llama-quantize knows."""
    for role, parts in ROLES.items():
        for part in parts:
            if part in name if part[0] != "=" else part[1:] == name:
                return role
    return OTHER


@lru_cache(_NAMES)
def block_of(name: str) -> int | None:
    """Return the number N of a name 'blk.N.…', or None."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def target_type(name: str) -> str:
    """Return the canonical name of a type that weights can be written in.

    Raises BlockError for anything else, such as types for activations, indices or legacy files only.
    """
    upper = name.upper()
    if upper not in target_types():
        block_type(name)  # raises for an unknown name
        raise BlockError(f"{upper} is not a type for weights; those are {', '.join(target_types())}")
    return upper


def target_types() -> tuple[str, ...]:
    """Return the types weights can be written in, by GGUF id.

    Q8_1 and Q8_K are for activations only (ggml-quants.c).
    """
    return tuple(kind.name for kind in types_by_id().values() if codec(kind.name).encode is not None)


def parse_rule(line: str) -> Rule:
    """Return the rule of a line. Raises BlockError saying which word of it is wrong."""
    left, arrow, right = line.partition("->")
    words = left.split()
    if not arrow or not words or len(right.split()) != 1:
        raise BlockError(f"{line.strip()!r} is not 'PATTERN [CONDITION …] -> TYPE'")
    patterns = tuple(words[0].split(","))
    for pattern in patterns:
        if pattern not in _TENSOR_WORDS and not re.search(r"[.*?\[]", pattern):
            raise BlockError(
                f"{pattern!r} is neither a role ({', '.join(ROLES)}, {OTHER}, {ANY}) nor a name pattern (blk.*.weight)"
            )
    kind = right.strip()
    when = tuple(parse_condition(word) for word in words[1:])
    return Rule(patterns, when, KEEP if kind.lower() == KEEP else target_type(kind))


def parse_condition(word: str) -> Condition:
    """Return the condition of a word. Raises BlockError naming what it could be."""
    match = _CONDITION.fullmatch(word)
    if match is None:
        raise BlockError(f"{word!r} is not a condition")
    negated, name, operator, value = match.groups()
    if name in FLAGS and operator is None:
        return Condition(name, negated)
    if name in WORDS and operator in {"=", "!="} and not negated:
        names = tuple(value.split(","))
        return Condition(name, operator, _words(name, names))
    if name in NUMBERS and operator and not negated:
        return Condition(name, operator, _amount(value))
    if name in {*FLAGS, *WORDS, *NUMBERS}:
        raise BlockError(f"{word!r}: {name} is {_usage(name)}")
    raise BlockError(f"{word!r}: unknown condition; known: {', '.join([*FLAGS, *WORDS, *NUMBERS])}")


def _words(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a word is compared with, as the word has it: types in capitals, sources in lower case."""
    if name == "type":
        return tuple(map(target_type, values))
    return tuple(value.lower() for value in values) if name == "source" else values


def more(i: int, n: int) -> bool:
    """Return whether the _M mixtures give layer `i` of `n` more bits (use_more_bits of llama-quant.cpp)."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _usage(name: str) -> str:
    if name in FLAGS:
        return f"a flag: {name} or !{name}"
    return f"compared with words: {name}=… or {name}!=…" if name in WORDS else f"compared with a number: {name}<n/8"


def _amount(text: str) -> Amount:
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise BlockError(f"{text!r} is not a number, nor a share of the layers such as n/8 or 7n/8")
    plain, times, per = match.groups()
    return Amount(int(plain)) if plain else Amount(int(times or 1), int(per or 1))


def _matches(pattern: str, subject: Subject) -> bool:
    if pattern in _TENSOR_WORDS:
        return pattern == ANY or pattern in subject.roles
    return fnmatchcase(subject.name, pattern)
