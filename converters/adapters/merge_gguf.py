"""Merge adapters into a GGUF model: names and orders of rows are those of Hugging Face, and are led to GGUF's.

The architecture's own table says what a tensor is called in GGUF and how its rows stand there. The rows of B, DoRA's
magnitudes and whole tensors are moved like those of the weight; A stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.adapters.bind import row_layout
from ggferry.converters.adapters.merge import Changed, Model, Side, does_not_fit, merged_into, oriented
from ggferry.converters.adapters.merge_experts import ExpertProduct, expert_changes, names_of_experts, of_stack
from ggferry.converters.adapters.merge_parts import Change, ExpertPair, Parts
from ggferry.converters.adapters.merge_vocabulary import check_tokens
from ggferry.converters.adapters.merged_rows import Bias, Factor, LaidOut, Product, TokenRows
from ggferry.converters.adapters.merged_rows import Change as RowChange
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.model_graph.hparams import is_size
from ggferry.converters.model_graph.tensor_roles import Slot, assign, origin_of
from ggferry.converters.prequantized.dequantized_rows import reshaped
from ggferry.converters.prequantized.recognize import dequantized
from ggferry.converters.schema.layouts.base import SAME, Layout, Then
from ggferry.converters.schema.layouts.parts import Stack, Transpose
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import UnexpectedTensorError, UnsupportedError


class GgufModel(Model):
    """The tensors of a GGUF base to which adapters are applied."""

    def __init__(self, base: Checkpoint, graph: ModelGraph) -> None:
        super().__init__(base)
        self.graph = graph
        self.sizes = {name: value for name, value in graph.sizes.items() if is_size(value)}

    def carry_out(self, parts: Parts, offset: int) -> tuple[int, list[str]]:
        """Do what an adapter does; return how much is changed, and what is replaced."""
        changed, replaced = 0, []
        for pair in parts.experts:
            for name, product in self._of_experts(pair, parts).items():
                made = self.tensor(name)
                made.changes.append(product)
                made.titles.append(parts.title)
                changed += 1
        for slot in self._slots(parts):
            (ref,) = slot.refs
            change = parts.changes[ref.name]
            layout = slot.origin.layout.bind(self.sizes if slot.n is None else {**self.sizes, "n": slot.n})
            if slot.name not in self.tensors:
                raise UnexpectedTensorError(
                    f"the adapter changes {slot.name}, which the base does not have",
                    path=parts.checkpoint.path,
                    found=ref.name,
                )
            whole = change.a if change.whole else change.beneath
            if whole is not None:
                self._take(slot, whole, layout, parts)
                replaced.append(slot.name)
            if not change.whole:
                made = self.tensor(slot.name)
                made.changes.append(self._moved(slot, change, layout, parts))
                made.titles.append(parts.title)
                changed += 1
        return changed, replaced

    def _of_experts(self, pair: ExpertPair, parts: Parts) -> dict[str, ExpertProduct]:
        """Return what a pair for all experts of a block changes, by the stacks of their matrices.

        Raises UnsupportedError where the table has no matrix of its own for each expert, else as `expert_changes`.
        """
        for names in names_of_experts(pair, self.sizes.get("n_expert") or 0):
            stacks = self._stacks(names, pair, parts)
            if stacks:
                shapes = {name: self.tensors[stack].shape[1:] for name, stack in stacks.items()}
                changes = expert_changes(pair, parts, shapes)
                return {
                    stacks[name]: of_stack(product, shapes[name][0]) for name, product in changes if not product.expert
                }
        raise UnsupportedError(
            "target_parameters of an adapter for a GGUF model of this architecture",
            path=parts.checkpoint.path,
            found=pair.module,
            hint="merge it into the model in Hugging Face's form",
        )

    def _stacks(self, names: Sequence[str], pair: ExpertPair, parts: Parts) -> dict[str, str]:
        """Return the stacks that hold these matrices of experts, by their names; none where the table knows none."""
        architecture = self.graph.architecture
        dialect = architecture.dialect("hf")
        refs = {name: replace(pair.a, name=name) for name in names}
        checkpoint = replace(parts.checkpoint, tensors=refs, dropped=())
        try:
            assigned, _ = assign(checkpoint, architecture, dialect, self.graph.sizes)
        except UnexpectedTensorError:
            return {}
        found: dict[str, str] = {}
        for (name, n), own in assigned.items():
            origin = origin_of(architecture.role(name), dialect)
            if origin is None or not isinstance(origin.layout, Stack):
                return {}
            full = Slot(architecture.role(name), n, own, origin).name
            if full in self.tensors:
                found |= {ref.name: full for ref in own}
        return found

    def _slots(self, parts: Parts) -> list[Slot]:
        """Return the roles of the tensors that an adapter changes. Raises UnsupportedError for parts of a stack."""
        architecture = self.graph.architecture
        dialect = architecture.dialect("hf")
        refs = {name: replace(change.b or change.a, name=name) for name, change in parts.changes.items()}
        assigned, dropped = assign(
            replace(parts.checkpoint, tensors=refs, dropped=()), architecture, dialect, self.graph.sizes
        )
        if dropped:
            raise UnsupportedError(
                "the adapter changes a tensor that GGUF does not have",
                path=parts.checkpoint.path,
                found=dropped[0].ref.name,
            )
        slots = []
        for (name, n), own in assigned.items():
            role = architecture.role(name)
            origin = origin_of(role, dialect)
            if origin is None or len(own) != 1:
                raise UnsupportedError(
                    f"an adapter on a part of {name} of a GGUF model",
                    path=parts.checkpoint.path,
                    found=own[0].name,
                    hint="merge it into the model in Hugging Face's form",
                )
            slots.append(Slot(role, n, own, origin))
        return slots

    def _take(self, slot: Slot, found: TensorRef, layout: Layout, parts: Parts) -> None:
        """Put an adapter's own tensor in the place of the base's."""
        base = self.tensors[slot.name]
        shape = layout.shape(found.shape)
        if shape != base.shape:
            raise does_not_fit(slot.name, shape, base.shape, parts)
        made = Changed(base, LaidOut(parts.checkpoint, Node(slot.name, slot.role, shape, (found,), layout)))
        made.moved = True
        made.titles.append(f"{parts.title} (whole)")
        self.made[slot.name] = made

    def _moved(self, slot: Slot, change: Change, layout: Layout, parts: Parts) -> RowChange:
        shape = self.tensors[slot.name].shape
        rows = row_layout(layout)
        if rows is None:
            raise UnsupportedError(
                f"LoRA on a weight that becomes {slot.name} by {layout}",
                path=parts.checkpoint.path,
                found=slot.refs[0].name,
            )
        if change.tokens:
            if rows != SAME or len(shape) != 2 or change.a.shape != (len(change.tokens), shape[1]):
                raise does_not_fit(slot.name, change.a.shape, (len(change.tokens), *shape[1:]), parts)
            check_tokens(parts.checkpoint, slot.name, change.tokens, shape[0])
            return TokenRows(self._factor(slot, change.a, SAME, change.a.shape, parts), change.tokens)
        if change.added:
            if change.a.shape != shape:
                raise does_not_fit(slot.name, change.a.shape, shape, parts)
            return Bias(self._factor(slot, change.a, rows, shape, parts), change.scale)
        left, right = oriented(change)
        if len(shape) != 2 or shape != (left.shape[0], right.shape[1]):
            raise does_not_fit(slot.name, (left.shape[0], right.shape[1]), shape, parts)
        magnitude, of_columns = change.magnitude, change.embedding and not change.reversed
        scales = None
        if magnitude is not None:
            extents = (1, shape[1]) if of_columns else (shape[0], 1)
            if magnitude.elements != max(extents):
                raise does_not_fit(f"{slot.name} (DoRA's magnitudes)", magnitude.shape, (max(extents),), parts)
            scales = self._factor(slot, reshaped(magnitude, extents), SAME if of_columns else rows, extents, parts)
        return Product(self._left(slot, left, rows, parts), right.factor(parts), change.scale, scales, of_columns)

    def _left(self, slot: Slot, left: Side, rows: Layout, parts: Parts) -> Factor:
        if not left.transposed:
            return self._factor(slot, left.ref, rows, left.shape, parts)
        transposed = Transpose() if rows == SAME else Then(Transpose(), rows)
        return self._factor(slot, left.ref, transposed, left.shape, parts)

    def _factor(self, slot: Slot, ref: TensorRef, layout: Layout, shape: tuple[int, ...], parts: Parts) -> Factor:
        return Factor(parts.checkpoint, Node(slot.name, slot.role, shape, (ref,), layout))


def merged_gguf(checkpoint: Checkpoint) -> Checkpoint:
    """Return a GGUF model with its `adapters` merged into it. Raises as `merge.with_adapters`."""
    plain = dequantized(replace(checkpoint, adapters=()))
    graph = understand(plain)
    if not graph.architecture.hparams or not any(each.name == "hf" for each in graph.architecture.dialects):
        raise UnsupportedError(
            "--lora onto a GGUF file of an architecture without names of Hugging Face",
            path=checkpoint.path,
            found=graph.architecture.name,
        )
    return merged_into(GgufModel(plain, graph), checkpoint)
