"""Recipes: names, shapes and a few facts of the model go in, the type of each tensor comes out.

`recipe('q4_k_m')` and the other names of llama-quantize give its choices tensor for tensor; `copy` and `keep` leave
everything as it is; `recipes.text.parse_recipe` reads recipes that users write. No files, no tensor data.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

from ggferry.quant.codec import block_type
from ggferry.quant.recipes.file_types import file_type_of, file_types, parse_file_type
from ggferry.quant.recipes.mixtures import (
    ALSO_NEEDS_IMATRIX,
    FALLBACKS,
    needing_imatrix,
    never_quantized,
    recipe_ids,
    rules_of,
)
from ggferry.quant.recipes.rules import KEEP, Rule, Subject, block_of, more, role_of, target_type
from ggferry.quant.types import BlockError
from ggferry.support.records import dataclass

PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as a recipe sees it.

    Attributes:
        name: Name in GGUF.
        shape: Elements along each axis, outermost first.
        type: Name of the type it has now, or would be written in without a recipe.
        fixed: Whether no recipe changes that, unless a pattern names it.
        source: How its source stores it, in lower case: its type, or 'fp8', 'int4', … of a quantized checkpoint; ''
            where that is `type`.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    fixed: bool = False
    source: str = ""

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.shape[-1] if self.shape else 1

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def axes(self) -> int:
        """Number of axes as ggml_n_dims counts them, at least one.

        Outer axes of length 1 do not count, so (1, 4096) is a vector.
        """
        outer = next((i for i, size in enumerate(self.shape[:-1]) if size != 1), len(self.shape) - 1)
        return max(1, len(self.shape) - outer)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What mixtures ask of a model; each field names its key in GGUF.

    Attributes:
        architecture: `general.architecture`.
        n_layer: `{arch}.block_count`.
        n_head: `{arch}.attention.head_count`, of layer 0 where it is an array.
        n_head_kv: `{arch}.attention.head_count_kv`, of layer 0 where it is an array; defaults to `n_head`.
        n_expert: `{arch}.expert_count`; 0 where it is absent.
        n_layer_nextn: `{arch}.nextn_predict_layers`: how many of the blocks predict further tokens.
    """

    architecture: str
    n_layer: int
    n_head: int = 0
    n_head_kv: int = 0
    n_expert: int = 0
    n_layer_nextn: int = 0

    @property
    def gqa(self) -> int:
        """Query heads for each key/value head, rounded down; 0 without key/value heads (llama_hparams::n_gqa)."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rules that give each tensor a type.

    Attributes:
        name: Name of the recipe.
        default: The type of a weight that no rule mentions; 'keep': the type it has.
        rules: The last rule that fits a tensor decides.
        file_type: The `general.file_type` by which it is known; None for a recipe that a user wrote.
        needs_imatrix: Types that must not be made without an importance matrix, except in token_embd and output.
    """

    name: str
    default: str
    rules: tuple[Rule, ...] = ()
    file_type: int | None = None
    needs_imatrix: frozenset[str] = field(default_factory=needing_imatrix)


@dataclass(frozen=True, slots=True)
class Choice:
    """The type of one tensor, and why.

    Attributes:
        type: Name of the type.
        why: The reason, in words.
        needs_imatrix: Whether it must not be made without an importance matrix.
        ragged: Whether its rows are not whole blocks of the type it was to have, so that another type is used.
    """

    type: str
    why: str
    needs_imatrix: bool = False
    ragged: bool = False


def recipe(name: str) -> Recipe:
    """Return the recipe of a llama-quantize name, alias or number, in any case, or of 'copy' or 'keep'.

    Raises BlockError, listing the names, for any other.
    """
    word = name.strip()
    if word.lower() in {"copy", KEEP}:
        return Recipe(word.lower(), KEEP)
    ids = recipe_ids()
    number = int(word) if re.fullmatch("[0-9]{1,4}", word) else parse_file_type(word)
    for known, file_type in ids.items():
        if file_type == number:
            default = file_types()[file_type].main[0]
            needs = needing_imatrix() | ALSO_NEEDS_IMATRIX.get(known, frozenset())
            return Recipe(known, default, rules_of(known), file_type, needs)
    raise BlockError(f"unknown quantization {name!r}; known: {', '.join([*ids, 'COPY', 'KEEP'])}")


def sorted_names(names: Iterable[str]) -> list[str]:
    """Return names in the order in which llama-quantize decides and writes.

    What is in no block comes first, then block by block, each in alphabetical order (weight_name_comparer of
    llama-model-loader.h).
    """
    return sorted(names, key=_place)


def choose(
    recipe: Recipe,
    tensors: Sequence[TensorInfo],
    facts: ModelFacts,
    *,
    imatrix: bool = False,
    pure: bool = False,
    output_tensor_type: str | None = None,
    token_embedding_type: str | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    leave_output_tensor: bool = False,
    in_given_order: bool = False,
) -> dict[str, Choice]:
    """Return the type of every tensor by name, in llama-quantize's order.

    The options are llama-quantize's; unlike there, all of them also apply to F32, F16, BF16 and copies.

    Args:
        recipe: The recipe.
        tensors: The tensors.
        facts: What mixtures ask of the model.
        imatrix: Whether an importance matrix is given.
        pure: Use the default type, no rules.
        output_tensor_type: Type of output.weight.
        token_embedding_type: Type of the token embeddings.
        tensor_types: Pairs of a regular expression, searched in the name, and a type; the first that matches decides.
        leave_output_tensor: Keep the type of output.weight.
        in_given_order: For --keep-split: positions count in the order of the files.

    Raises:
        BlockError: An unknown type, an invalid pattern, a name that occurs twice, or rows that fit no type.
    """
    options = _Options(
        pure,
        None if output_tensor_type is None else target_type(output_tensor_type),
        None if token_embedding_type is None else target_type(token_embedding_type),
        tuple((compile_pattern(pattern), target_type(kind)) for pattern, kind in tensor_types),
        leave_output_tensor,
    )
    ordered = list(tensors) if in_given_order else sorted(tensors, key=lambda tensor: _place(tensor.name))
    chooser = _Chooser(recipe, ordered, facts, imatrix, options)
    choices = {tensor.name: chooser.choice(tensor) for tensor in ordered}
    if len(choices) != len(ordered):
        name, count = Counter(tensor.name for tensor in ordered).most_common(1)[0]
        raise BlockError(f"tensor {name!r} is listed {count} times")
    return choices


def require_imatrix(
    choices: Mapping[str, Choice], tensors: Iterable[TensorInfo], names: Collection[str] | None
) -> None:
    """Refuse what would come out as garbage.

    A tensor that already has its type is copied and needs nothing.

    Args:
        choices: The type of each tensor.
        tensors: The tensors.
        names: The entries of the importance matrix; None: there is none.

    Raises:
        BlockError: Naming the tensors that need an entry and have none.
    """
    lacking = [
        tensor.name
        for tensor in tensors
        if choices[tensor.name].needs_imatrix
        and choices[tensor.name].type != tensor.type
        and (names is None or tensor.name not in names)
    ]
    if not lacking:
        return
    shown = ", ".join(f"{name} ({choices[name].type})" for name in lacking[:5])
    more_of_them = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
    subject = "an importance matrix is needed for" if names is None else "the importance matrix has no entry for"
    raise BlockError(f"{subject} {shown}{more_of_them}")


def expected_file_type(
    recipe: Recipe, choices: Mapping[str, Choice], tensors: Iterable[TensorInfo], source: int | None = None
) -> int:
    """Return the `general.file_type` of the result.

    That is the recipe's or, for copies, the `source` file's, where the tensors agree with it
    (`file_types.file_type_of`).
    """
    types = {t.name: (choices[t.name].type, t.elements) for t in tensors if t.axes > 1}
    declared = source if recipe.default == KEEP and not recipe.rules else recipe.file_type
    return file_type_of(types, declared)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression on tensor names, compiled. Raises BlockError saying where it is wrong."""
    if len(pattern) > 1000:
        raise BlockError(f"a pattern of {len(pattern)} characters; at most 1000")
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise BlockError(f"{pattern!r} is not a regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class _Options:
    pure: bool
    output: str | None
    embedding: str | None
    patterns: tuple[tuple[re.Pattern[str], str], ...]
    leave_output: bool

    def named(self, name: str) -> tuple[re.Pattern[str], str] | None:
        return next((row for row in self.patterns if row[0].search(name)), None)


class _Chooser:
    """Decide tensor by tensor, counting, as the mixtures do, what rules have decided before."""

    def __init__(
        self, recipe: Recipe, tensors: Sequence[TensorInfo], facts: ModelFacts, imatrix: bool, options: _Options
    ) -> None:
        self.recipe, self.facts, self.imatrix, self.options = recipe, facts, imatrix, options
        self.tied = all(tensor.name != "output.weight" for tensor in tensors)
        self.values = sum(role_of(tensor.name) == "attn_v" for tensor in tensors)
        self.counts: Counter[str] = Counter()
        self.lines_of: dict[tuple[str, ...], list[Rule]] = {}

    def choice(self, tensor: TensorInfo) -> Choice:
        kept = self.kept(tensor)
        if kept is not None:
            return Choice(tensor.type, f"kept: {kept}")
        role = role_of(tensor.name)
        demanded = self.demanded(tensor, role)
        kind, why, ragged = (*demanded, False) if demanded else self.fitting(tensor, *self.requested(tensor, role))
        if tensor.columns % block_type(kind).elements:
            raise BlockError(
                f"{tensor.name}: rows of {tensor.columns} are not whole blocks of {block_type(kind).elements} ({why}:"
                f" {kind}), and there is nothing to fall back to; another type can be named for it"
            )
        exempt = role in {"output", "token_embd"}
        return Choice(kind, why, kind in self.recipe.needs_imatrix and not exempt, ragged)

    def kept(self, tensor: TensorInfo) -> str | None:
        """Return why no recipe changes this tensor; None where one may (tensor_allows_quantization)."""
        if tensor.axes < 2:
            return "a vector"
        if self.options.leave_output and tensor.name == "output.weight":
            return "--leave-output-tensor"
        if tensor.fixed and self.options.named(tensor.name) is None:
            return f"{tensor.type} in every file"
        return never_quantized(tensor.name, self.facts.architecture)

    def demanded(self, tensor: TensorInfo, role: str) -> tuple[str, str] | None:
        """Return what the two options for whole tensors say.

        They take precedence over everything, including the fallbacks.
        """
        options = self.options
        # A large table of its own: the general option yields to a pattern that names it.
        yields = tensor.name == PER_LAYER_EMBEDDING and options.named(tensor.name) is not None
        if role == "token_embd" and options.embedding is not None and not yields:
            return options.embedding, "--token-embedding-type"
        if role == "output" and options.output is not None:
            return options.output, "--output-tensor-type"
        return None

    def requested(self, tensor: TensorInfo, role: str) -> tuple[str, str]:
        """Return what pattern, rules or default say, before the shape is considered."""
        named = self.options.named(tensor.name)
        if named is not None:
            return named[1], f"--tensor-type {named[0].pattern}"
        kind = tensor.type if self.recipe.default == KEEP else self.recipe.default
        if self.options.pure:
            return kind, f"{self.recipe.name}, pure"
        if self.tied and role == "token_embd" and self.options.output is not None:
            return self.options.output, "--output-tensor-type, tied"
        why = f"{self.recipe.name}: default"
        if not self.recipe.rules:
            return kind, why
        subject = self.subject(tensor, role, kind)
        for rule in self.lines(subject.roles):
            if rule.fits(subject):
                subject.words["type"] = tensor.type if rule.type == KEEP else rule.type
                why = f"{self.recipe.name}: {rule}"
        self.counts[role] += 1
        return subject.words["type"], why

    def lines(self, roles: tuple[str, ...]) -> list[Rule]:
        if roles not in self.lines_of:
            self.lines_of[roles] = [rule for rule in self.recipe.rules if rule.concerns(roles)]
        return self.lines_of[roles]

    def fitting(self, tensor: TensorInfo, kind: str, why: str) -> tuple[str, str, bool]:
        """Return the type, or the first of its fallbacks whose blocks fill the rows, and whether it is a fallback."""
        requested = kind
        while tensor.columns % block_type(kind).elements and kind in FALLBACKS:
            kind = FALLBACKS[kind]
        if kind == requested:
            return kind, why, False
        return kind, f"{why}; rows of {tensor.columns} are not whole {requested} blocks", True

    def subject(self, tensor: TensorInfo, role: str, kind: str) -> Subject:
        facts, count = self.facts, self.counts[role]
        by_count = role == "attn_v" or (role.startswith("ffn_") and facts.n_expert < 2)
        layer = count if by_count else block_of(tensor.name)
        n = self.values if role == "attn_v" else facts.n_layer
        default = kind if self.recipe.default == KEEP else self.recipe.default
        flags = {
            "more": layer is not None and more(layer, n),
            "imatrix": self.imatrix,
            "ragged": tensor.columns % block_type(default).elements != 0,
            "stacked": len(tensor.shape) > 2 and tensor.shape[-3] > 1,
            "grouped": facts.n_head != facts.n_head_kv,
            "tied": self.tied,
        }
        numbers = {
            "count": count,
            "layer": layer,
            "layers": facts.n_layer - facts.n_layer_nextn,
            "gqa": facts.gqa,
            "experts": facts.n_expert,
            "columns": tensor.columns,
        }
        roles = (role, "output") if self.tied and role == "token_embd" else (role,)
        words = {"arch": facts.architecture, "type": kind, "source": tensor.source or tensor.type.lower()}
        return Subject(tensor.name, roles, n, flags, words, numbers)


def _place(name: str) -> tuple[int, str]:
    block = block_of(name)
    return (-1 if block is None else block), name
