"""Which source tensor fills which role: names matched against the patterns of a dialect, accounted for both ways."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ggferry.converters.model_graph.tensor_numbers import is_zero
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, From, Role
from ggferry.converters.schema.expressions import holds, verdict
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.parts import Transpose
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.checkpoint_folder.modules import DENSE
from ggferry.formats.errors import (
    DuplicateError,
    MissingError,
    OutOfRangeError,
    UnexpectedTensorError,
    UnsupportedError,
)
from ggferry.formats.limits import MAX_LAYERS
from ggferry.support.records import dataclass

# No leading zeros and no more digits than any model has blocks: 'layers.007.' is another name, not block 7.
_NUMBER = r"(?:0|[1-9]\d{0,4})"
_NUMBERED = re.compile(r"(?<=\.)\d+(?=\.|$)")
Assigned = Mapping[tuple[str, int | None], tuple[TensorRef, ...]]


@dataclass(frozen=True, slots=True)
class Slot:
    """A role in one block, and the tensors found for it.

    Attributes:
        role: The role.
        n: The block; None for a role of the whole model.
        refs: The source tensors, in the order of the layout's inputs.
        origin: Where the dialect keeps the role.
    """

    role: Role
    n: int | None
    refs: tuple[TensorRef, ...]
    origin: From

    @property
    def name(self) -> str:
        """Name of the tensor in GGUF."""
        return self.role.name.format(n=self.n)


Place = tuple[tuple[str, int | None], tuple[int, int]]
"""((role name, block), (expert, number of the pattern))."""


@dataclass(frozen=True, slots=True)
class _Matcher:
    pattern: str
    role: Role
    number: int


def origin_of(role: Role, dialect: Dialect) -> From | None:
    """Return where `dialect` keeps `role`; None where it has no such tensor.

    GGUF keeps each role under its own name.
    """
    return From((role.name,), SAME) if dialect.name == "gguf" else role.sources.get(dialect.column)


@lru_cache(maxsize=1024)
def pattern_regex(pattern: str) -> re.Pattern[str]:
    """Return a name pattern with {n} and {e} as a regular expression with groups of those names."""
    text = re.escape(pattern)
    for group in "ne":
        text = text.replace(rf"\{{{group}\}}", rf"(?P<{group}>{_NUMBER})")
    return re.compile(text)


def spelled(name: str, dialect: Dialect) -> str:
    """Return `name` as the dialect's patterns spell it."""
    for prefix, replacement in dialect.renames:
        match = pattern_regex(prefix).match(name)
        if match:
            return replacement.format(**match.groupdict()) + name[match.end() :]
    return name


def assign(
    checkpoint: Checkpoint, architecture: Architecture, dialect: Dialect, values: Mapping[str, Any]
) -> tuple[Assigned, list[Dropped]]:
    """Return the tensors of every (role name, block), in the order of the layout's inputs, and the dropped tensors.

    `values` are the hparams known before any tensor, for drops that depend on them. Raises UnexpectedTensorError,
    DuplicateError, and MissingError for a gap among parts or experts.
    """
    index, drops = _index(architecture, dialect), _drops(architecture, dialect)
    found: dict[tuple[str, int | None], dict[tuple[int, int], TensorRef]] = defaultdict(dict)
    dropped: list[tuple[TensorRef, Drop]] = []
    names = _base_names(checkpoint, architecture, dialect, index)
    meant = _behind(names.values(), dialect) | _substitutes(set(names.values()), dialect)
    for ref in checkpoint.tensors.values():
        whole = names[ref.name]
        name = _renumbered(meant.get(whole) or spelled(whole, dialect), dialect, values)
        drop = _dropped(name, drops, values, early=True)
        places = [] if drop else _places(name, index, values)
        drop = drop or (None if places else _dropped(name, drops, values, early=False))
        if drop:
            dropped.append((ref, drop))
        elif not places:
            dropped.append((ref, _of_zeros(checkpoint, ref, name, architecture, index)))
        for key, place in places:
            if place in found[key]:
                raise DuplicateError(
                    "several tensors for one role", path=checkpoint.path, found=ref.name, expected=key[0]
                )
            found[key][place] = ref
    origins = {role.name: origin_of(role, dialect) for role in architecture.roles}
    patterns = {name: origin.patterns for name, origin in origins.items() if origin is not None}
    assigned = {(name, n): _in_order(checkpoint, patterns[name], n, places) for (name, n), places in found.items()}
    return assigned, [_explained(ref, drop, assigned) for ref, drop in dropped]


def _of_zeros(
    checkpoint: Checkpoint, ref: TensorRef, name: str, architecture: Architecture, index: Mapping[str, list[_Matcher]]
) -> Drop:
    """Return why a tensor without a role is dropped: it is a bias of zeros.

    Raises UnsupportedError for another bias of a matrix that has a role, UnexpectedTensorError for any other tensor.
    """
    matrix = f"{name.removesuffix('bias')}weight" if name.endswith(".bias") else ""
    role = next((role for role, _, _ in _named(matrix, index)), None) if matrix else None
    if role is not None and is_zero(checkpoint, ref):
        return replace(ZEROS, pattern=name)
    offset = ref.spans[0].offset if ref.spans else None
    if role is None or checkpoint.container == "gguf":
        raise UnexpectedTensorError(
            f"tensor has no role in a {architecture.name} model", path=checkpoint.path, offset=offset, found=ref.name
        )
    raise UnsupportedError(
        f"nonzero bias of {role.name}: GGUF's {architecture.name} has no place for it",
        path=checkpoint.path,
        offset=offset,
        found=ref.name,
        hint="no runtime would add it",
    )


def count_of_role(role: str, checkpoint: Checkpoint, architecture: Architecture, dialect: Dialect) -> int:
    """Return how many tensors of a checkpoint have the role of that name ('blk.{n}.attn_q.weight')."""
    origins = [origin_of(each, dialect) for each in architecture.roles if each.name == role]
    patterns = [pattern_regex(pattern) for origin in origins if origin for pattern in origin.patterns]
    names = _base_names(checkpoint, architecture, dialect, _index(architecture, dialect)) if patterns else {}
    meant = _behind(names.values(), dialect)
    spellings = (meant.get(name) or spelled(name, dialect) for name in names.values())
    return len({name for name in spellings if any(pattern.fullmatch(name) for pattern in patterns)})


def _base_prefixes(architecture: Architecture, dialect: Dialect) -> list[str]:
    """Return what the names of a base model's tensors may begin with in the model around it ('model.').

    It is the first part of the names of all blocks, where they have one in common, in each spelling of the dialect.
    """
    origins = [origin_of(role, dialect) for role in architecture.roles if role.per_block]
    firsts = {pattern.partition(".")[0] for origin in origins if origin for pattern in origin.patterns}
    if len(firsts) != 1 or dialect.source != "hf":
        return []
    return [f"{first}." for first in dict.fromkeys((*firsts, *(prefix.split(".")[0] for prefix, _ in dialect.renames)))]


def _base_names(
    checkpoint: Checkpoint, architecture: Architecture, dialect: Dialect, index: Mapping[str, list[_Matcher]]
) -> dict[str, str]:
    """Return tensor name → its name in a model around a base model.

    A checkpoint of the base model alone lacks the prefix that its names have there, and transformers loads it into the
    model around (`base_model_prefix`, core_model_loading.py of version 5.23).
    """
    known = [pattern_regex(start) for start, *_ in dialect.appended_blocks]
    others = {other for _, *listed in dialect.substitutes for other in listed}

    def has_place(name: str) -> bool:
        spelling = spelled(name, dialect)
        meant = _NUMBERED.sub("#", spelling) in index or name in others or any(one.match(name) for one in known)
        return meant or any(_drop_regex(drop.pattern).fullmatch(spelling) for drop in dialect.drops)

    prefixes, found = _base_prefixes(architecture, dialect), {name: name for name in checkpoint.tensors}
    for name in found:
        if not has_place(name):
            found[name] = next(filter(has_place, (f"{prefix}{name}" for prefix in prefixes)), name)
    return found


def _behind(names: Collection[str], dialect: Dialect) -> dict[str, str]:
    """Return the names of tensors whose blocks are numbered behind others → the names their numbers give them."""
    found = dict[str, str]()
    counts = dict[str, int]()
    for prefix, other, *rest in dialect.appended_blocks:
        numbered = "{n}" in other
        if numbered and other not in counts:
            both = (
                match
                for name in names
                for each in {name, spelled(name, dialect)}
                if (match := pattern_regex(other).match(each))
            )
            counts[other] = 1 + max((int(match["n"]) for match in both), default=-1)
        for name in names:
            if match := pattern_regex(prefix).match(name):
                number = int(match.groupdict().get("n") or 0) + counts[other] if numbered else 0
                found[name] = spelled(other.format(n=number) + "".join(rest) + name[match.end() :], dialect)
    return found


def _renumbered(name: str, dialect: Dialect, values: Mapping[str, Any]) -> str:
    """Return `name` with the number of its block, where it has that of an item of a list of blocks."""
    for prefix, blocks, *instead in dialect.renumbered:
        match = re.match(rf"{re.escape(prefix)}({_NUMBER})(?=\.|$)", name)
        listed = values.get(blocks) or ()
        if match and int(match[1]) < len(listed):
            return f"{[prefix, *instead][-1]}{listed[int(match[1])]}{name[match.end() :]}"
    return name


def _substitutes(names: Collection[str], dialect: Dialect) -> dict[str, str]:
    """Return the names of tensors that stand for an absent one → the absent one's name."""
    absent = ((name, others) for name, *others in dialect.substitutes if name not in names)
    found = ((next((other for other in others if other in names), ""), name) for name, others in absent)
    return dict(found)


def _index(architecture: Architecture, dialect: Dialect) -> dict[str, list[_Matcher]]:
    """Return matchers by their pattern with all numbers left open: a DeepSeek-V3 has 92 000 tensors and 40 patterns."""
    index = defaultdict(list)
    for role in architecture.roles:
        origin = origin_of(role, dialect)
        for number, pattern in enumerate(origin.patterns if origin else ()):
            opened = _NUMBERED.sub("#", pattern.replace("{n}", "0").replace("{e}", "0"))
            index[opened].append(_Matcher(pattern, role, number))
    return index


def _places(name: str, index: Mapping[str, list[_Matcher]], values: Mapping[str, Any]) -> list[Place]:
    """Return the roles that a tensor fills. Where several have its name, those that its block has not are left out."""
    found = list(_named(name, index))
    if len({role.name for role, _, _ in found}) > 1:
        found = [one for one in found if verdict(one[0].when, {**values, "n": one[1]}) is not False] or found
    return [((role.name, block), place) for role, block, place in found]


def _named(name: str, index: Mapping[str, list[_Matcher]]) -> Iterator[tuple[Role, int | None, tuple[int, int]]]:
    for matcher in index.get(_NUMBERED.sub("#", name), ()):
        match = pattern_regex(matcher.pattern).fullmatch(name)
        groups = match.groupdict() if match else {}
        block = int(groups["n"]) if "n" in groups else None
        if match and verdict(matcher.role.when, {"n": block}) is not False:  # 'n>0' is decided by the name alone
            yield matcher.role, block, (int(groups.get("e") or 0), matcher.number)


BEHIND_POOLING = Drop(
    f"{DENSE}.*",
    "a matrix of sentence-transformers behind the pooling, which llama.cpp has no place for in this architecture: "
    "the vectors of the output are those before it",
)
"""Of every architecture without roles for such matrices."""


def _drops(architecture: Architecture, dialect: Dialect) -> tuple[Drop, ...]:
    able = any(role.name.startswith("dense_2.") for role in architecture.roles)
    return dialect.drops if able else (*dialect.drops, BEHIND_POOLING)


ZEROS = Drop("*.bias", "a bias of zeros, which were read: adding it changes nothing", follows=True)
"""Of biases that GGUF has no place for, or that llama.cpp would not load."""


def _dropped(name: str, drops: Sequence[Drop], values: Mapping[str, Any], early: bool) -> Drop | None:
    for drop in drops:
        if bool(drop.when) == early and (match := _drop_regex(drop.pattern).fullmatch(name)):
            block = {key: int(text) for key, text in match.groupdict().items()}
            if holds(drop.when, {**values, **block}):
                return drop
    return None


def is_dropped(name: str, dialect: Dialect) -> bool:
    """Return whether a drop without a condition names this tensor, as the source spells it."""
    return _dropped(spelled(name, dialect), dialect.drops, {}, early=False) is not None


@lru_cache(maxsize=256)
def _drop_regex(pattern: str) -> re.Pattern[str]:
    pieces = [fnmatch.translate(piece).removesuffix(r"\Z").removesuffix(r"\z") for piece in pattern.split("{n}")]
    return re.compile(rf"(?P<n>{_NUMBER})".join(pieces))


def _in_order(
    checkpoint: Checkpoint, patterns: Sequence[str], n: int | None, places: Mapping[tuple[int, int], TensorRef]
) -> tuple[TensorRef, ...]:
    """Return the tensors of one role and block `n` in the order of its `patterns`, expert by expert."""
    expected = [(e, number) for e in range(1 + max(e for e, _ in places)) for number in range(len(patterns))]
    for e, number in expected:
        if (e, number) not in places:
            raise MissingError(f"tensor {patterns[number].format(n=n, e=e)!r} missing", path=checkpoint.path)
    return tuple(places[place] for place in expected)


def _explained(ref: TensorRef, drop: Drop, assigned: Assigned) -> Dropped:
    same = assigned.get((drop.same_as, None), ())
    return Dropped(ref, drop.reason, same[0] if same else None, drop.follows or not ref.elements)


def slots(checkpoint: Checkpoint, architecture: Architecture, dialect: Dialect, assigned: Assigned) -> list[Slot]:
    """Return every role the dialect can have, in writing order: those of the whole model first, then block by block.

    Raises MissingError for an absent role that every such model has, OutOfRangeError for too many blocks.
    """
    wide: list[tuple[Role, int | None]] = [(role, None) for role in architecture.roles if not role.per_block]
    deep = []
    for series, blocks in _counted(architecture, assigned).items():
        if blocks > MAX_LAYERS:
            place = f"below {MAX_LAYERS}"
            raise OutOfRangeError("block number", path=checkpoint.path, found=blocks - 1, expected=place)
        deep += [(role, n) for n in range(blocks) for role in architecture.roles if role.series == series]
    found = []
    for role, n in (*wide, *deep):
        origin = origin_of(role, dialect)
        if origin is not None:
            refs = assigned.get((role.name, n), ())
            found.append(Slot(role, n, refs, _as_linear(origin, refs)))
    _require(checkpoint, [slot for slot in found if not slot.role.when])
    return found


def _as_linear(origin: From, refs: Collection[TensorRef]) -> From:
    """Return where a role is kept: as it is where a program that quantizes has transposed a Conv1D already."""
    if origin.layout == Transpose() and any(ref.derived is not None and ref.derived.linear for ref in refs):
        return replace(origin, layout=SAME)
    return origin


def _counted(architecture: Architecture, assigned: Assigned) -> dict[str, int]:
    """Return the number of blocks in each series, from the highest number found."""
    counts = {role.series: 0 for role in architecture.roles if role.per_block}
    series = {role.name: role.series for role in architecture.roles}
    for name, n in assigned:
        if n is not None:
            counts[series[name]] = max(counts[series[name]], n + 1)
    return counts


_FLAG = re.compile(r"(?:^|\band )(\w+) == 1(?= and\b|$)")
"""A flag that is one of the conditions of a role."""


def disown(found: Sequence[Slot], denied: Mapping[str, str]) -> tuple[list[Slot], list[Dropped]]:
    """Return the slots without biases that the configuration says the model does not have, and these as dropped.

    transformers loads such a checkpoint, and leaves out what its class has no place for. Of a weight, that would be
    another model; such a checkpoint is refused.

    Args:
        found: All slots.
        denied: Flags that are stated as false → where.
    """
    kept, dropped = list[Slot](), list[Dropped]()
    for slot in found:
        flags = _FLAG.findall(slot.role.when) if slot.refs and slot.role.name.endswith(".bias") else ()
        where = next((denied[flag] for flag in flags if flag in denied), None)
        kept.append(slot if where is None else replace(slot, refs=()))
        if where is not None:
            reason = f"{where} is false: a bias that transformers' class does not have, and leaves out"
            dropped += [Dropped(ref, reason) for ref in slot.refs]
    return kept, dropped


def unneeded_zeros(
    checkpoint: Checkpoint, found: Sequence[Slot], flags: Collection[str]
) -> tuple[list[Slot], list[Dropped], set[str]]:
    """Return the slots without the biases of flags all of whose biases are zeros, these as dropped, and such flags.

    Args:
        checkpoint: The model, of which these biases are read.
        found: All slots.
        flags: Names of flags of biases that llama.cpp has no place for (`HParam.nonzero`).
    """
    own = {flag: [slot for slot in found if slot.refs and is_bias_of(slot.role, flag)] for flag in flags}
    zeros = {flag for flag, biases in own.items() if biases and all(_zeros(checkpoint, slot) for slot in biases)}
    return *_without(found, {slot.name for flag in zeros for slot in own[flag]}), zeros


def denied_zeros(
    checkpoint: Checkpoint, found: Sequence[Slot], values: Mapping[str, Any]
) -> tuple[list[Slot], list[Dropped]]:
    """Return the slots without biases of zeros that a model with these hparams does not have, and these as dropped."""
    denied = (
        slot
        for slot in found
        if slot.refs
        and slot.role.when
        and slot.role.name.endswith(".bias")
        and verdict(slot.role.when, values if slot.n is None else {**values, "n": slot.n}) is False
    )
    return _without(found, {slot.name for slot in denied if _zeros(checkpoint, slot)})


def is_bias_of(role: Role, flag: str) -> bool:
    """Return whether the role is a bias that a model has where this flag is true."""
    return role.name.endswith(".bias") and flag in _FLAG.findall(role.when)


def _without(found: Sequence[Slot], names: Collection[str]) -> tuple[list[Slot], list[Dropped]]:
    kept = [replace(slot, refs=()) if slot.name in names else slot for slot in found]
    return kept, [Dropped(ref, ZEROS.reason, follows=True) for slot in found if slot.name in names for ref in slot.refs]


def _zeros(checkpoint: Checkpoint, slot: Slot) -> bool:
    return all(is_zero(checkpoint, ref) for ref in slot.refs)


def check_conditions(
    checkpoint: Checkpoint, found: list[Slot], values: Mapping[str, Any], unsaid: Mapping[str, str]
) -> None:
    """Check that conditional roles are present where their condition holds, and absent where it does not.

    Args:
        checkpoint: The model.
        found: All slots.
        values: The hparams by short name.
        unsaid: Flags that the configuration does not state → the key in which it could.

    Raises MissingError or UnexpectedTensorError.
    """
    due = []
    for slot in (slot for slot in found if slot.role.when):
        decided = verdict(slot.role.when, values if slot.n is None else {**values, "n": slot.n})
        if decided is False and slot.refs:
            raise UnexpectedTensorError(
                f"tensor belongs only to a model with {slot.role.when}",
                path=checkpoint.path,
                offset=slot.refs[0].spans[0].offset if slot.refs[0].spans else None,
                found=slot.refs[0].name,
                hint=_how_to_say(slot.role, unsaid),
            )
        if decided:
            due.append(slot)
    _require(checkpoint, due)


def _how_to_say(role: Role, unsaid: Mapping[str, str]) -> str | None:
    """Return how the configuration can say whether the model has the biases of this role."""
    flags = _FLAG.findall(role.when) if role.name.endswith(".bias") else ()
    key = next((unsaid[flag] for flag in flags if flag in unsaid), None)
    if key is None:
        return None
    return (
        f'config.json does not say "{key}", and where it is silent transformers leaves such biases out: true, if the '
        "model was trained with them; false, to leave them out of the output"
    )


def _require(checkpoint: Checkpoint, due: list[Slot]) -> None:
    missing = [
        slot.origin.patterns[0].format(n=slot.n, e=0)
        for slot in due
        if not slot.refs and not slot.role.optional and not slot.origin.computed
    ]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MissingError(f"tensor {missing[0]!r}{more} missing", path=checkpoint.path)
