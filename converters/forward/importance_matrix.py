"""Importance matrices from our own forward pass: for each weight matrix, the sum of its squared inputs by column.

The file is llama.cpp's GGUF imatrix (tools/imatrix): `NAME.in_sum2` float32 `(matrices, columns)`, `NAME.counts`
float32 `(matrices, 1)` = tokens seen, general.type `imatrix`. A chunk is `chunk_size` consecutive tokens of the text.
The text is tokenized as a whole; where the tokenizer adds a beginning-of-sequence token, that token then replaces the
first one of every chunk. As in the original, only the matrices of blocks are written, and the output matrix on request.

Chunks pass through the model in groups, as large as ACTIVATIONS allows, so that the weights are read and decoded once
for each group instead of once for each chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ggferry.converters.forward.batched_passes import batched
from ggferry.converters.forward.evaluate import forward, result_of
from ggferry.converters.forward.weights import Factor, Product, Weights, in_a_thread
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.errors import ShapeError, UnsupportedError, UsageError
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.gguf.values import Value, ValueType, array, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.imatrix import Imatrix
from ggferry.quant.codec import block_type
from ggferry.support.heavy import np, torch

OUTPUT = "output.weight"
HEADS = (OUTPUT, "token_embd.weight")
"""The matrices that make the logits: a model without an output matrix uses its embeddings."""
ACTIVATIONS = 1 << 30
"""Bytes of activations that the chunks of a group may hold between two matrices."""

CACHED = 64
"""Rows that are squared at once: as float64 they fit into a core's cache."""


class Recorder(Weights):
    """Weights that sum, in float64, the squares of what is multiplied with each of their columns.

    The matrix that makes the logits is recorded but not multiplied: the logits are zeros.

    Attributes:
        sums: Name → number of the matrix in its stack → float64 `(columns,)`.
        counts: Name → number of the matrix in its stack → tokens seen.
        kept: Names whose entries are written whatever they are, as an earlier matrix has them.
    """

    def __init__(self, graph: ModelGraph) -> None:
        super().__init__(graph)
        self.sums: dict[str, dict[int, Any]] = {}
        self.counts: dict[str, dict[int, int]] = {}
        self.kept: set[str] = set()
        self._squared: tuple[torch.Tensor, Any] | None = None

    def add(self, earlier: Imatrix, chunk_size: int) -> None:
        """Add the sums of an earlier matrix of the same model, as llama-imatrix's --in-file does.

        A .dat file counts chunks instead of tokens, and its sums are means times chunks.

        Raises ShapeError for an entry that is no weight of this model, and UsageError for chunks of another size.
        """
        if earlier.chunk_size not in (0, chunk_size):
            raise UsageError(
                "the earlier matrix was measured on chunks of another size",
                path=earlier.path,
                found=chunk_size,
                expected=earlier.chunk_size,
                hint=f"--chunk-size {earlier.chunk_size}",
            )
        tokens = chunk_size if earlier.legacy else 1
        for name, entry in earlier.entries.items():
            node = self.graph.by_name.get(name)
            matrices, columns = (math.prod(node.shape[-3:-2]), node.shape[-1]) if node else (0, 0)
            if node is None or entry.values != matrices * columns or len(entry.counts) not in (1, matrices):
                raise ShapeError(
                    f"{name!r}: measured on another model",
                    path=earlier.path,
                    offset=entry.offset,
                    found=f"{entry.values} values",
                    expected=f"{matrices} × {columns}",
                )
            self.kept.add(name)
            sums = earlier.sums(name).astype(np.float64).reshape(matrices, columns) * tokens
            for item in range(matrices):
                count = entry.counts[item if len(entry.counts) > 1 else 0] * tokens
                if count:
                    self._plus(name, item, sums[item], count)

    def product(self, factor: Factor, x: torch.Tensor) -> Product:
        """Return the product, and add what is multiplied to the sums."""
        add = partial(self._add, factor.name, factor.item or 0, x)
        if factor.name in HEADS:
            zeros = torch.zeros(1, 1, device=x.device).expand(len(x), self.refs(factor.name)[0].rows)
            return Product((add,), zeros)
        product = super().product(factor, x)
        return Product((add, *product.parts), product.result)

    def _add(self, name: str, item: int, x: torch.Tensor) -> None:
        if self._squared is None or self._squared[0] is not x:  # queries, keys and values are made of the same rows
            with in_a_thread():
                squares = [part.double().square().sum(0) for part in torch.split(x, CACHED)]
                self._squared = x, torch.stack(squares).sum(0).cpu().numpy()
        self._plus(name, item, self._squared[1], len(x))

    def _plus(self, name: str, item: int, squares: Any, count: int) -> None:
        rows = self.sums.setdefault(name, {})
        rows[item] = rows[item] + squares if item in rows else squares
        counts = self.counts.setdefault(name, {})
        counts[item] = counts.get(item, 0) + count


def chunks_of(tokenizer: Tokenizer, text: str, size: int, most: int | None = None) -> list[list[int]]:
    """Return the token ids of the text in chunks of `size`, at most `most`; an incomplete last chunk is left out.

    Raises UsageError for a text that does not fill one chunk.
    """
    ids = encoder(tokenizer).encode(text)
    chunks = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)][:most]
    if not chunks:
        raise UsageError("the text is too short", found=f"{len(ids)} tokens", expected=f"at least {size}")
    if tokenizer.flags.get("add_bos") and "bos" in tokenizer.ids:
        chunks = [[tokenizer.ids["bos"], *chunk[1:]] for chunk in chunks]
    return chunks


def measure(
    graph: ModelGraph,
    chunks: Sequence[Sequence[int]],
    progress: Callable[[int], None] | None = None,
    *,
    recorder: Recorder | None = None,
    done: int = 0,
    kept: Callable[[int], None] | None = None,
) -> Recorder:
    """Run every chunk through the model and return the sums.

    Args:
        graph: The model; it reads nothing but tokens.
        chunks: Token ids.
        progress: Called after each group of chunks, with the number of its tokens.
        recorder: What to add the sums to; by default a new one.
        done: How many of the chunks are in it already.
        kept: Called after each group but the last, with the number of chunks that are done.

    Raises UnsupportedError for a model that reads more than tokens.
    """
    if result_of(graph).inputs:
        raise UnsupportedError(
            "an importance matrix is measured on texts, and this model reads more than tokens",
            path=graph.checkpoint.path,
            found=", ".join(result_of(graph).inputs),
        )
    recorder = recorder or Recorder(graph)
    size = group_size(graph, max(map(len, chunks), default=1))
    size = -(-len(chunks) // -(-len(chunks) // size)) if chunks else size  # as many in each group, the last one, too
    for start in range(done, len(chunks), size):
        group = chunks[start : start + size]
        batched([(recorder, [partial(_run, graph, chunk) for chunk in group])])
        if progress:
            progress(sum(map(len, group)))
        if kept and start + size < len(chunks):
            kept(start + size)
    return recorder


def _run(graph: ModelGraph, chunk: Sequence[int], weights: Weights) -> None:
    forward(graph, chunk, weights=weights)


def group_size(graph: ModelGraph, tokens: int) -> int:
    """Return how many chunks of `tokens` tokens pass through the model together, within ACTIVATIONS.

    A waiting pass holds its residual, the rows it wants multiplied and the result: less than eight times the widest
    rows.
    """
    widest = max((max(node.shape[-2:]) for node in graph.nodes if node.role.per_block), default=1)
    return max(1, ACTIVATIONS // (8 * 4 * widest * tokens))


def write_imatrix(
    path: str,
    recorder: Recorder,
    chunks: int,
    chunk_size: int,
    datasets: Sequence[str],
    *,
    output: bool,
    force: bool,
    sources: Mapping[Identity, str] | None = None,
) -> int:
    """Write the importance matrix, and return the number of its entries.

    Args:
        path: The file to write.
        recorder: The sums.
        chunks: How many chunks they were measured on.
        chunk_size: Tokens in each.
        datasets: The names of the texts, for `imatrix.datasets`.
        output: Whether to write the entry of the output matrix.
        force: Whether to replace an existing file.
        sources: Files that must not be replaced.

    Raises RefusedError where `path` exists, unless `force` is given, and where it is one of `sources`.
    """
    tensors: list[tuple[str, Any, tuple[int, ...], Any]] = []
    kind = block_type("F32")
    for name in sorted(recorder.sums):
        recorded = name in recorder.kept or (output and name == OUTPUT)
        if not recorder.graph.by_name[name].role.per_block and not recorded:
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
        "imatrix.datasets": array(ValueType.STRING, list(datasets)),
        "imatrix.chunk_count": u32(chunks),
        "imatrix.chunk_size": u32(chunk_size),
    }
    write_gguf(path, keys, tensors, overwrite=force, sources=sources)
    return len(tensors) // 2
