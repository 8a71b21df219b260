"""Merge adapters into a model while it is read: its changed tensors become ones that are computed row by row.

What PEFT's `merge_and_unload` makes is made here of the base's tensors and the adapter's, without ever holding a large
matrix. Everything after it (types, proof, forward pass) sees one model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.adapters.merge_experts import expert_changes
from ggferry.converters.adapters.merge_parts import Change, Parts, read_parts
from ggferry.converters.adapters.merge_vocabulary import (
    EMBEDDINGS,
    HEAD,
    check_tokens,
    is_of_vocabulary,
    other_tokenizer,
    tokenizer_files,
    vocabulary_size,
    with_vocabulary_size,
)
from ggferry.converters.adapters.merged_rows import Bias, Factor, Merged, Product, Rows, Stored, TokenRows
from ggferry.converters.adapters.merged_rows import Change as RowChange
from ggferry.converters.model_graph.graph import Node
from ggferry.converters.model_graph.rows import CHUNK
from ggferry.converters.prequantized.dequantized_rows import Dequantized, reshaped
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.parts import Transpose
from ggferry.formats.checkpoint import AdapterFile, Checkpoint, Derivation, TensorRef
from ggferry.formats.errors import ShapeError, UnexpectedTensorError, UnsupportedError
from ggferry.formats.files.digesting import digesting
from ggferry.quant.codec import block_type
from ggferry.support.printable import printable

_CONV1D_TYPES = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
_CONV1D = ("c_attn", "c_proj", "c_fc", "q_attn")
_SHOWN = 6


class Changed:
    """A tensor of the model on its way: its rows so far, what is done to them, and by whom."""

    def __init__(self, ref: TensorRef, rows: Rows) -> None:
        self.ref, self.rows = ref, rows
        self.changes: list[RowChange] = []
        self.titles: list[str] = []
        self.moved = False
        """Whether its rows so far are an adapter's, in another order than that stores them in."""


class Model:
    """The tensors of a base to which adapters are applied."""

    def __init__(self, base: Checkpoint) -> None:
        self.base = base
        self.files = list(base.files)
        self.tensors: dict[str, TensorRef] = dict(base.tensors)
        self.made: dict[str, Changed] = {}
        self.notes: list[str] = []
        self.metadata: Mapping[str, Any] = base.metadata
        self.sidecars = base.sidecars

    def tensor(self, name: str) -> Changed:
        if name not in self.made:
            ref = self.tensors[name]
            self.made[name] = Changed(ref, Stored(self.base, ref))
        return self.made[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def apply(self, file: AdapterFile) -> None:
        """Apply one adapter. Raises UnexpectedTensorError and ShapeError for what does not fit the base."""
        checkpoint = replace(file.checkpoint, files=digesting(file.checkpoint.files))
        parts = replace(read_parts(file), checkpoint=checkpoint)
        offset = len(self.files)
        self.files += checkpoint.files
        changed, replaced = self.carry_out(parts, offset)
        self.notes.append(_summary(parts, changed, replaced))

    def carry_out(self, parts: Parts, offset: int) -> tuple[int, list[str]]:
        """Do what an adapter does, whose files begin at `offset`; return how much is changed, and what is replaced."""
        parts, names = self._tied(parts, {name: self._found(name, parts) for name in parts.changes})
        untied = self._untie(parts, set(names.values()))
        replaced, resized = [], False
        for name, change in parts.changes.items():
            target = names[name]
            whole = change.a if change.whole else change.beneath
            if whole is not None:
                is_resized = whole.shape != self.shape(target)
                resized |= is_resized
                if is_resized and target == untied:  # to which the output was tied when it was resized
                    self._replace(HEAD, whole, parts, offset)
                self._replace(target, whole, parts, offset)
                replaced.append(target)
            if not change.whole:
                made = self.tensor(target)
                made.changes.append(self._change(target, change, parts))
                made.titles.append(parts.title)
        shapes = {name: ref.shape for name, ref in self.tensors.items()} if parts.experts else {}
        joined = [each for pair in parts.experts for each in expert_changes(pair, parts, shapes)]
        for target, product in joined:
            made = self.tensor(target)
            made.changes.append(product)
            made.titles.append(parts.title)
        self._take_tokenizer(parts, resized)
        return sum(not change.whole for change in parts.changes.values()) + len(joined), replaced

    def _found(self, name: str, parts: Parts) -> str:
        """Return the base's name of a tensor: the same, or without or with the part that holds all blocks."""
        if name in self.tensors:
            return name
        short = name.partition(".")[2]
        found = [short] if short in self.tensors else [own for own in self.tensors if own.partition(".")[2] == name]
        if len(found) == 1:
            return found[0]
        if name == HEAD and self._embedding() is not None:
            return name
        raise UnexpectedTensorError(
            "the adapter changes a tensor that the base does not have", path=parts.checkpoint.path, found=name
        )

    def _embedding(self) -> str | None:
        """Return the name of the embedding to which the missing output matrix is tied."""
        if HEAD in self.tensors or not _ties(self.metadata):
            return None
        found = [name for name in self.tensors if name.endswith(EMBEDDINGS)]
        return found[0] if len(found) == 1 else None

    def _tied(self, parts: Parts, names: Mapping[str, str]) -> tuple[Parts, Mapping[str, str]]:
        """Leave out what `ensure_weight_tying` has PEFT save of the output beside the embedding, where it is the same.

        Else they are two: where PEFT (0.21) ties them, which it does not for every model, it saves both.
        """
        embedding = self._embedding()
        if not parts.tied or embedding is None:
            return parts, names
        own, other = ([name for name, target in names.items() if target == each] for each in (HEAD, embedding))
        if not own or not other or not _are_same(parts, parts.changes[own[0]], parts.changes[other[0]]):
            return replace(parts, tied=False), names
        rest = {name: change for name, change in parts.changes.items() if name != own[0]}
        return replace(parts, changes=rest), {name: target for name, target in names.items() if name != own[0]}

    def _untie(self, parts: Parts, changed: set[str]) -> str | None:
        """Give the output matrix its own tensor where an adapter changes it or the embedding to which it is tied.

        Return the embedding if it was untied and is changed alone. Rows of single tokens stay tied, as in PEFT
        (`BaseTuner._set_trainable`), unless the output has its own.
        """
        embedding = self._embedding()
        if embedding is None or parts.tied or not changed & {HEAD, embedding}:
            return None
        if HEAD not in changed and all(
            change.tokens for name, change in parts.changes.items() if name.endswith(EMBEDDINGS)
        ):
            return None
        if embedding in self.made:
            raise UnsupportedError(
                "an adapter before this one changed the tied embedding", path=parts.checkpoint.path, found=embedding
            )
        self.tensors[HEAD] = replace(self.tensors[embedding], name=HEAD)
        self.metadata = _untied(self.metadata)
        self.notes.append(f"{parts.title} changes one of the tied matrices {embedding} and {HEAD}: they are two now")
        return None if HEAD in changed else embedding

    def _replace(self, name: str, found: TensorRef, parts: Parts, offset: int) -> None:
        grown = is_of_vocabulary(name) and found.shape[1:] == self.shape(name)[1:] and len(found.shape) == 2
        if found.shape != self.shape(name) and not grown:
            raise does_not_fit(name, found.shape, self.shape(name), parts)
        spans = tuple(replace(span, file=span.file + offset) for span in found.spans)
        self.tensors[name] = replace(found, name=name, spans=spans)
        self.made[name] = Changed(self.tensors[name], Stored(parts.checkpoint, found))

    def _take_tokenizer(self, parts: Parts, resized: bool) -> None:
        """Take the tokenizer of an adapter that resized the vocabulary; else say where it has another one."""
        own = parts.checkpoint.sidecars
        if resized:
            rows = vocabulary_size(self.tensors, parts.checkpoint.path)
            self.metadata = with_vocabulary_size(self.metadata, rows)
            taken = tokenizer_files(self.sidecars, own)
            source = "its tokenizer is taken" if taken else "its folder has no tokenizer, and the base's is taken"
            self.notes.append(f"{parts.title} has a vocabulary of another size, {rows} tokens: {source}")
            self.sidecars = taken or self.sidecars
        elif other := other_tokenizer(self.sidecars, own):
            self.notes.append(
                f"{parts.title}: its {printable(other)} is another than the base's, whose tokenizer is taken; "
                "--tokenizer takes the adapter's"
            )

    def _change(self, name: str, change: Change, parts: Parts) -> RowChange:
        shape, a = self.shape(name), change.a
        if change.tokens:
            if len(shape) != 2 or a.shape != (len(change.tokens), shape[1]):
                raise does_not_fit(name, a.shape, (len(change.tokens), *shape[1:]), parts)
            check_tokens(parts.checkpoint, name, change.tokens, shape[0])
            return TokenRows(_factor(parts, a, SAME, a.shape), change.tokens)
        if change.added:
            if len(shape) != 1 or a.shape != shape:
                raise does_not_fit(name, a.shape, shape, parts)
            return Bias(_factor(parts, a, SAME, (1, shape[0])), change.scale)
        assert change.b is not None
        left, right = oriented(change)
        conv1d = not change.embedding and self._is_conv1d(name, (left.shape[0], right.shape[1]), parts)
        if conv1d:
            left, right = right.transpose(), left.transpose()
        if shape != (left.shape[0], right.shape[1]):
            raise does_not_fit(name, (left.shape[0], right.shape[1]), shape, parts)
        magnitude, of_columns = None, False
        if change.magnitude is not None:
            of_columns = conv1d or (change.embedding and not change.reversed)  # MLX has one for each token
            magnitude = self._magnitude(name, change.magnitude, of_columns, parts)
        return Product(left.factor(parts), right.factor(parts), change.scale, magnitude, of_columns)

    def _magnitude(self, name: str, ref: TensorRef, of_columns: bool, parts: Parts) -> Factor:
        rows, columns = self.shape(name)
        length = columns if of_columns else rows
        if ref.elements != length:
            raise does_not_fit(f"{name} (DoRA's magnitudes)", ref.shape, (length,), parts)
        return _factor(parts, ref, SAME, (1, length) if of_columns else (length, 1))

    def _is_conv1d(self, name: str, found: tuple[int, ...], parts: Parts) -> bool:
        """Return whether the base stores a weight as transformers' Conv1D, `(in, out)`."""
        shape = self.shape(name)
        if found != shape or shape[0] != shape[-1]:
            return len(found) == 2 and found != shape and found[::-1] == shape
        if (derived := self.tensors[name].derived) is not None and derived.linear:
            return False
        if self.metadata.get("model_type") in _CONV1D_TYPES:
            return name.split(".")[-2] in _CONV1D
        return parts.conv1d

    def merged(self) -> Checkpoint:
        """Return the model with its changed tensors as computed ones."""
        source, number = Dequantized(self.base.path), len(self.files)
        tensors = dict(self.tensors)
        for name, made in self.made.items():
            if made.changes or made.moved:
                ref = self.tensors[name]
                natural = ref.derived.natural if ref.derived else ref.type
                natural = block_type("F16") if natural.quantized else natural
                title = f"{ref.name} + {' + '.join(dict.fromkeys(made.titles))}"
                rows = Merged(made.rows, ref.rows, ref.columns, tuple(made.changes))
                linear = ref.derived is not None and ref.derived.linear
                derived = Derivation(title, natural, form=natural.name.lower(), merged=title, linear=linear)
                tensors[name] = source.add(name, ref.shape, rows, number, derived)
        return replace(
            self.base,
            files=(*self.files, source),
            tensors=tensors,
            metadata=self.metadata,
            sidecars=self.sidecars,
            notes=(*self.base.notes, *self.notes),
            adapters=(),
        )


class Side:
    """One of the two matrices of a product, as a tensor and whether it is transposed."""

    def __init__(self, ref: TensorRef, transposed: bool) -> None:
        self.ref, self.transposed = ref, transposed

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the product."""
        return self.ref.shape[::-1] if self.transposed else self.ref.shape

    def transpose(self) -> Side:
        """Return it transposed."""
        return Side(self.ref, not self.transposed)

    def factor(self, parts: Parts) -> Factor:
        """Return what reads it."""
        return _factor(parts, self.ref, Transpose() if self.transposed else SAME, self.shape)


def oriented(change: Change) -> tuple[Side, Side]:
    """Return the two matrices of a product, `(rows, r)` and `(r, columns)` of a Linear or of an embedding."""
    assert change.b is not None
    if change.reversed:  # MLX: x·a·b, and a row of a for every token of an embedding
        a, b = Side(change.a, False), Side(change.b, False)
        return (a, b) if change.embedding else (b.transpose(), a.transpose())
    a, b = Side(change.a, False), Side(change.b, False)
    return (a.transpose(), b.transpose()) if change.embedding else (b, a)


def _are_same(parts: Parts, one: Change, other: Change) -> bool:
    """Return whether two changes are the same, value by value."""
    both = [(Side(each.a, False),) if each.b is None else oriented(each) for each in (one, other)]
    if (one.scale, one.whole, len(both[0])) != (other.scale, other.whole, len(both[1])):
        return False
    for left, right in zip(*both, strict=True):
        if left.shape != right.shape:
            return False
        first, second = left.factor(parts), right.factor(parts)
        step = max(1, CHUNK // (8 * left.shape[1]))
        ranges = ((at, min(at + step, left.shape[0])) for at in range(0, left.shape[0], step))
        if not all((first.rows(*rows) == second.rows(*rows)).all() for rows in ranges):
            return False
    return True


def _factor(parts: Parts, ref: TensorRef, layout: Layout, shape: tuple[int, ...]) -> Factor:
    if layout == SAME and ref.shape != shape:
        ref = reshaped(ref, shape)
    return Factor(parts.checkpoint, Node(ref.name, Role(ref.name, (), {}), shape, (ref,), layout))


def _ties(metadata: Mapping[str, Any]) -> bool:
    inner = metadata.get("text_config")
    declared = [place.get("tie_word_embeddings") for place in (metadata, inner) if isinstance(place, Mapping)]
    return next((value is True for value in declared if value is not None), True)


def _untied(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    found = {**metadata, "tie_word_embeddings": False}
    if isinstance(inner := metadata.get("text_config"), Mapping):
        found["text_config"] = {**inner, "tie_word_embeddings": False}
    return found


def does_not_fit(name: str, found: Sequence[int], expected: Sequence[int], parts: Parts) -> ShapeError:
    return ShapeError(
        f"the adapter's change of {name!r} does not fit the base",
        path=parts.checkpoint.path,
        found=" × ".join(map(str, found)),
        expected=" × ".join(map(str, expected)),
        hint="it is of another base, or added tokens, which are merged into the model in Hugging Face's form alone",
    )


def _summary(parts: Parts, changed: int, replaced: Sequence[str]) -> str:
    beside = (
        f"; not used, since PEFT does not load them: {', '.join(map(printable, parts.unused))}" if parts.unused else ""
    )
    more = f" and {len(replaced) - _SHOWN} more" if len(replaced) > _SHOWN else ""
    own = f"; taken from it whole: {', '.join(replaced[:_SHOWN])}{more}" if replaced else ""
    return f"merged {parts.title}: {changed} tensors changed{own}{beside}"


def merged_into(model: Model, checkpoint: Checkpoint) -> Checkpoint:
    """Return a model with the adapters of `checkpoint` applied."""
    for file in checkpoint.adapters:
        model.apply(file)
    return model.merged()
