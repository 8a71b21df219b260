"""Importance matrices from our own forward pass: the squares of what flows into every weight matrix, by column.

File: llama.cpp's GGUF imatrix (tools/imatrix): `NAME.in_sum2` float32 `(matrices, columns)`, `NAME.counts` float32
`(matrices, 1)` = tokens seen, general.type `imatrix`. Chunks: consecutive `chunk_size` tokens of the text, tokenized
whole with its beginning-of-sequence token, whose place the first token of every chunk then takes. Like the original,
only the matrices of blocks count, and the output matrix where it is asked for.

Chunks go through the model in groups, as many as ACTIVATIONS allows, so that the weights are read and decoded once a
group instead of once a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.evaluate import forward, result_of
from ggferry.converters.forward.lockstep import in_lockstep
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.errors import UnsupportedError, UsageError
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.gguf.values import Value, ValueType, array, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import block_type
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = lazy("numpy")
    torch = lazy("torch")

OUTPUT = "output.weight"
HEADS = (OUTPUT, "token_embd.weight")
"""What makes logits of the last block's result: a model that has no output matrix uses its embeddings."""
ACTIVATIONS = 1 << 30
"""Bytes of activations that the chunks of a group may hold between two matrices."""


class Recorder(Weights):
    """Weights that add up, in float64, the squares of every column that is multiplied with them. What makes the logits
    is only looked at: they are zeros."""

    def __init__(self, graph: ModelGraph) -> None:
        super().__init__(graph)
        self.sums: dict[str, dict[int, Any]] = {}
        self.counts: dict[str, dict[int, int]] = {}

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        self._add(name, 0, x)
        if name in HEADS:
            return torch.zeros(1, 1).expand(len(x), self.refs(name)[0].rows)
        return super().linear(name, x)

    def turned_linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        self._add(name, 0, x)
        return super().turned_linear(name, x)

    def item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        self._add(name, item, x)
        return super().item_linear(name, item, x)

    def turned_item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        self._add(name, item, x)
        return super().turned_item_linear(name, item, x)

    def _add(self, name: str, item: int, x: torch.Tensor) -> None:
        squares = x.double().square().sum(0).numpy()
        rows = self.sums.setdefault(name, {})
        rows[item] = rows[item] + squares if item in rows else squares
        counts = self.counts.setdefault(name, {})
        counts[item] = counts.get(item, 0) + len(x)


def chunks_of(tokenizer: Tokenizer, text: str, size: int, most: int | None = None) -> list[list[int]]:
    """The text's ids in chunks of `size`; what does not fill one is left out.

    Raises UsageError for too short a text.
    """
    ids = encoder(tokenizer).encode(text)
    chunks = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)][:most]
    if not chunks:
        raise UsageError("the text is too short", found=f"{len(ids)} tokens", expected=f"at least {size}")
    if tokenizer.flags.get("add_bos") and "bos" in tokenizer.ids:
        chunks = [[tokenizer.ids["bos"], *chunk[1:]] for chunk in chunks]
    return chunks


def measure(
    graph: ModelGraph, chunks: Sequence[Sequence[int]], progress: Callable[[int], None] | None = None
) -> Recorder:
    """Run every chunk through the model; `progress` is called with the tokens of each. Raises UnsupportedError for a
    model that reads more than tokens."""
    if result_of(graph).inputs:
        raise UnsupportedError(
            "an importance matrix is measured on texts, and this model reads more than tokens",
            path=graph.checkpoint.path, found=", ".join(result_of(graph).inputs),
        )  # fmt: skip
    recorder = Recorder(graph)
    size = group_size(graph, max(map(len, chunks)))
    for start in range(0, len(chunks), size):
        group = chunks[start : start + size]
        in_lockstep(recorder, [partial(_run, graph, chunk) for chunk in group])
        if progress:
            progress(sum(map(len, group)))
    return recorder


def _run(graph: ModelGraph, chunk: Sequence[int], weights: Weights) -> None:
    forward(graph, chunk, weights=weights)


def group_size(graph: ModelGraph, tokens: int) -> int:
    """How many chunks of so many tokens go through the model together. A pass that waits holds its residual, what it
    wants multiplied and the result: eight times the widest rows are more."""
    widest = max((max(node.shape[-2:]) for node in graph.nodes if node.role.per_block), default=1)
    return max(1, ACTIVATIONS // (8 * 4 * widest * tokens))


def write_imatrix(
    path: str, recorder: Recorder, chunks: Sequence[Sequence[int]], dataset: str, *, output: bool, force: bool,
    sources: Mapping[Identity, str] | None = None,
) -> int:  # fmt: skip
    """Write the matrix; the number of entries. Raises RefusedError when `path` exists, unless `force`, or is one of the
    `sources`."""
    tensors: list[tuple[str, Any, tuple[int, ...], Any]] = []
    kind = block_type("F32")
    for name in sorted(recorder.sums):
        if not recorder.graph.by_name[name].role.per_block and not (output and name == OUTPUT):
            continue
        shape = recorder.graph.by_name[name].shape
        matrices = shape[-3] if len(shape) > 2 else 1
        columns = shape[-1]
        sums = np.zeros((matrices, columns), "<f4")
        counts = np.zeros((matrices, 1), "<f4")
        for item, row in recorder.sums[name].items():
            sums[item], counts[item] = row, recorder.counts[name][item]
        tensors.append((f"{name}.in_sum2", kind, sums.shape if matrices > 1 else (columns,), sums))
        tensors.append((f"{name}.counts", kind, counts.shape if matrices > 1 else (1,), counts))
    keys: dict[str, Value] = {
        "general.type": string("imatrix"),
        "imatrix.datasets": array(ValueType.STRING, [dataset]),
        "imatrix.chunk_count": u32(len(chunks)),
        "imatrix.chunk_size": u32(len(chunks[0])),
    }
    write_gguf(path, keys, tensors, overwrite=force, sources=sources)
    return len(tensors) // 2
