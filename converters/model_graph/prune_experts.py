"""Drop experts of a GGUF model: rows of its routers and matrices of its stacked experts, before anything is planned.

A choice of experts is explicit ('0:3,5;1:2,8': experts 3 and 5 of block 0, 2 and 8 of block 1), or a number of the
least used ones ('16', '25%'), or the unused ones ('unused'); the counts of an importance matrix say which these are.
llama.cpp has one `expert_count` for all blocks (llama-hparams.h), so that every block loses as many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ggferry.converters.model_graph.gguf_edits import architecture_name
from ggferry.formats.checkpoint import Checkpoint, Dropped, Span, TensorRef
from ggferry.formats.errors import InconsistentError, UnsupportedError, UsageError
from ggferry.formats.gguf.values import Value, string
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.support.records import dataclass

OPTION = "--prune-experts"
PRUNED = "ggferry.pruned_experts"
"""Key of the output: the experts that were dropped, by block, in the numbers of the source."""
UNUSED = "unused"

_ROUTER = re.compile(r"blk\.(\d+)\.ffn_gate_inp\.weight", re.ASCII)
_EXPERTS = re.compile(r"blk\.(\d+)\.(?:ffn_\w+_exps|ffn_gate_inp|exp_probs_b)(?:\.\w+)*", re.ASCII)
_UNSTACKED = re.compile(r"blk\.\d+\.ffn_(?:gate|up|down)\.\d+\.weight", re.ASCII)
_FIXED = re.compile(r"blk\.\d+\.ffn_(?:gate_tid2eid|\w+_chexps)\b", re.ASCII)
"""Experts that a table of token ids names, and groups that share experts: numbers of experts that stay in the model."""
_COUNTED = ("ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_BLOCK = re.compile(r"(\d{1,6}):(\d{1,6}(?:,\d{1,6})*)", re.ASCII)
_COUNT = re.compile(r"(\d{1,6})(%?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PrunedExperts:
    """A checkpoint without some of its experts.

    Attributes:
        checkpoint: The checkpoint.
        kept: The experts that stay of each tensor that lost some, by its name, ascending.
        note: What was dropped, for the user.
    """

    checkpoint: Checkpoint
    kept: Mapping[str, tuple[int, ...]]
    note: str


def prune_experts(checkpoint: Checkpoint, text: str, imatrix: Imatrix | None) -> PrunedExperts:
    """Return a GGUF checkpoint without some experts, its router rows and `expert_count` corrected.

    Args:
        checkpoint: The source.
        text: The choice, as the module's docstring has it.
        imatrix: Where a number or 'unused' is given, the counts: tokens that each expert was given.

    Raises:
        UsageError: A choice that cannot be understood, or leaves fewer experts than a token is given to, or none is
            unused, or the counts are missing.
        UnsupportedError: A model without experts, or whose experts are stored one by one or named by a table of tokens.
        InconsistentError: A router of another size than `expert_count` says.
    """
    name = architecture_name(checkpoint)
    routers, count, groups = _routed(checkpoint, name)
    dropped = _chosen(text, sorted(routers), count, groups, imatrix)
    sizes = {len(experts) for experts in dropped.values()}
    left = count - max(sizes)
    if len(sizes) != 1:
        raise UsageError(f"{OPTION}: every block must lose as many", found=text, expected="one number for all blocks")
    _check_left(checkpoint, name, left, groups, dropped, count)
    return _without(checkpoint, dropped, count, left, imatrix)


def explicit_choice(checkpoint: Checkpoint, text: str, imatrix: Imatrix | None) -> str:
    """Return a choice of experts by their numbers, so that nobody needs the importance matrix again.

    Raises as `prune_experts`.
    """
    routers, count, groups = _routed(checkpoint, architecture_name(checkpoint))
    return _listed(_chosen(text, sorted(routers), count, groups, imatrix))


def _routed(checkpoint: Checkpoint, name: str) -> tuple[dict[int, TensorRef], int, int]:
    """Return the routers by block, the number of experts, and that of groups of experts."""
    routers = _routers(checkpoint)
    count = _number(checkpoint, f"{name}.expert_count") or 0
    for ref in routers.values():
        if ref.shape[0] != count:
            found = f"{ref.shape[0]} rows of {ref.name}"
            raise InconsistentError("router and expert_count", path=checkpoint.path, found=found, expected=count)
    return routers, count, max(1, _number(checkpoint, f"{name}.expert_group_count") or 1)


def _listed(dropped: Mapping[int, Sequence[int]]) -> str:
    return ";".join(f"{block}:{','.join(map(str, each))}" for block, each in sorted(dropped.items()))


def _routers(checkpoint: Checkpoint) -> dict[int, TensorRef]:
    found = {int(match[1]): ref for name, ref in checkpoint.tensors.items() if (match := _ROUTER.fullmatch(name))}
    for name in checkpoint.tensors:
        if _UNSTACKED.fullmatch(name):
            hint = "ggferry quantize IN OUT copy stacks them"
            raise UnsupportedError(f"{OPTION}: experts stored one by one", path=checkpoint.path, found=name, hint=hint)
        if _FIXED.match(name):
            raise UnsupportedError(f"{OPTION}: a tensor of the model names experts", path=checkpoint.path, found=name)
    if not found:
        raise UnsupportedError(f"{OPTION}: the model has no experts", path=checkpoint.path)
    return found


def _number(checkpoint: Checkpoint, key: str) -> int | None:
    value = checkpoint.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, Value) or not isinstance(value.data, int):
        raise UnsupportedError(f"{OPTION}: {key} is not one number", path=checkpoint.path)
    return value.data


def _is_explicit(text: str) -> bool:
    return ":" in text


def _chosen(
    text: str, blocks: Sequence[int], count: int, groups: int, imatrix: Imatrix | None
) -> dict[int, tuple[int, ...]]:
    if _is_explicit(text):
        return _explicit(text, blocks, count)
    match = _COUNT.fullmatch(text)
    if match is None and text != UNUSED:
        raise UsageError(OPTION, found=text, expected="a number, a percentage, 'unused', or BLOCK:E,E;BLOCK:E,E")
    if imatrix is None:
        raise UsageError(f"{OPTION} {text} needs counts of how often each expert was used", hint="--imatrix FILE")
    counts = {block: _counts(imatrix, block, count) for block in blocks}
    if match is None:
        number = min(_unused(each, groups) for each in counts.values()) * groups
        if not number:
            block = min(blocks, key=lambda block: _unused(counts[block], groups))
            raise UsageError(
                f"{OPTION} {text}: no expert is unused in every block",
                found=f"block {block}, whose least used expert had {min(counts[block])} tokens",
            )
    else:
        number = int(match[1]) * count // 100 if match[2] else int(match[1])
        number -= number % groups if match[2] else 0
    if not 0 < number < count or number % groups:
        many = f", a multiple of the {groups} groups" if groups > 1 else ""
        raise UsageError(f"{OPTION}: number of experts", found=number, expected=f"1 to {count - 1}{many}")
    return {block: _least_used(each, number // groups, groups) for block, each in counts.items()}


def _explicit(text: str, blocks: Sequence[int], count: int) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for part in text.split(";"):
        match = _BLOCK.fullmatch(part.strip())
        if match is None or int(match[1]) in found:
            raise UsageError(OPTION, found=part, expected="BLOCK:EXPERT,EXPERT;BLOCK:…, each block once")
        experts = sorted({int(number) for number in match[2].split(",")})
        if experts[-1] >= count:
            raise UsageError(f"{OPTION}: no such expert in block {match[1]}", found=experts[-1], expected=f"< {count}")
        found[int(match[1])] = tuple(experts)
    if set(found) != set(blocks):
        odd = min(set(found) ^ set(blocks))
        raise UsageError(
            f"{OPTION}: block {odd} " + ("has no experts" if odd in found else "is not named"),
            expected=f"the blocks with experts: {', '.join(map(str, blocks[:20]))}{'…' if len(blocks) > 20 else ''}",
        )
    return found


def _counts(imatrix: Imatrix, block: int, count: int) -> tuple[int, ...]:
    for name in _COUNTED:
        entry = imatrix.entries.get(f"blk.{block}.{name}.weight")
        if entry is not None and len(entry.counts) == count:
            return entry.counts
    hint = "an importance matrix in GGUF counts tokens for each expert"
    raise UsageError(f"{OPTION}: the importance matrix has no counts of {count} experts of block {block}", hint=hint)


def _grouped(counts: Sequence[int], groups: int) -> list[range]:
    size = len(counts) // groups
    return [range(start, start + size) for start in range(0, size * groups, size)]


def _unused(counts: Sequence[int], groups: int) -> int:
    """Return how many of every group of experts no token was given to: the least over the groups."""
    return min(sum(counts[number] == 0 for number in group) for group in _grouped(counts, groups))


def _least_used(counts: Sequence[int], number: int, groups: int) -> tuple[int, ...]:
    chosen = [
        expert
        for group in _grouped(counts, groups)
        for expert in sorted(group, key=lambda expert: (counts[expert], -expert))[:number]
    ]
    return tuple(sorted(chosen))


def _check_left(
    checkpoint: Checkpoint, name: str, left: int, groups: int, dropped: Mapping[int, Sequence[int]], count: int
) -> None:
    used = max(1, _number(checkpoint, f"{name}.expert_used_count") or 1)
    if left < used:
        raise UsageError(
            f"{OPTION}: a token is given to {used} experts", found=f"{left} would stay", expected=f"≥ {used}"
        )
    if groups > 1:
        size = count // groups
        for block, experts in dropped.items():
            lost = [sum(expert // size == group for expert in experts) for group in range(groups)]
            if len(set(lost)) != 1:
                expected = f"as many of each of the {groups} groups"
                raise UsageError(
                    f"{OPTION}: experts of block {block}", found=f"{lost} of the groups", expected=expected
                )


def _without(
    checkpoint: Checkpoint, dropped: Mapping[int, Sequence[int]], count: int, left: int, counts: Imatrix | None
) -> PrunedExperts:
    tensors, gone, kept = dict(checkpoint.tensors), list(checkpoint.dropped), dict[str, tuple[int, ...]]()
    for name, ref in checkpoint.tensors.items():
        match = _EXPERTS.fullmatch(name)
        if match is None or int(match[1]) not in dropped:
            continue
        if not ref.shape or ref.shape[0] != count:
            raise InconsistentError(
                f"experts of {name}", path=checkpoint.path, found=ref.shape, expected=f"{count} × …"
            )
        lost = dropped[int(match[1])]
        kept[name] = tuple(number for number in range(count) if number not in set(lost))
        tensors[name] = _selected(ref, kept[name])
        listed = ", ".join(map(str, lost))
        gone.append(Dropped(replace(_selected(ref, lost), name=f"{name}[{listed}]"), "experts dropped as requested"))
    key = f"{architecture_name(checkpoint)}.expert_count"
    metadata = dict(checkpoint.metadata)
    metadata[key] = replace(metadata[key], data=left)
    former = metadata.get(PRUNED)  # of a model that was pruned before: its numbers are of that time
    metadata[PRUNED] = string(f"{former.data} {_listed(dropped)}" if isinstance(former, Value) else _listed(dropped))
    pruned = replace(checkpoint, tensors=tensors, metadata=metadata, dropped=tuple(gone))
    return PrunedExperts(pruned, kept, _note(dropped, count, counts))


def _note(dropped: Mapping[int, Sequence[int]], count: int, imatrix: Imatrix | None) -> str:
    each = len(next(iter(dropped.values())))
    note = f"{each} of {count} experts dropped in each of {len(dropped)} blocks ({PRUNED} names them): another model"
    if imatrix is None:
        return note
    try:
        tokens = {block: _counts(imatrix, block, count) for block in dropped}
    except UsageError:  # experts that the user named need no counts
        return note
    lost = sum(tokens[block][expert] for block, experts in dropped.items() for expert in experts)
    every = sum(sum(found) for found in tokens.values())
    share = f"{lost / every:.2%}" if every else "none"
    return f"{note}; they had {share} of the tokens that {imatrix.path} counted"


def _selected(ref: TensorRef, numbers: Sequence[int]) -> TensorRef:
    """Return the tensor with these entries of its first axis alone; neighbors are one piece."""
    (span,) = ref.spans
    size = ref.nbytes // ref.shape[0]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    pieces = tuple(Span(span.file, span.offset + first * size, (last - first, *span.shape[1:])) for first, last in runs)
    return replace(ref, shape=(len(numbers), *ref.shape[1:]), spans=pieces, axis=0 if len(ref.shape) > 1 else -1)
