"""Predictions of a base model as llama-perplexity keeps them (`--kl-divergence-base`), read and written chunk by chunk.

Little-endian: 8 bytes `_logits_`, i32 tokens of a chunk (n), i32 vocabulary (v), i32 chunks, i32 × n × chunks tokens;
then for every chunk n - 1 - n/2 rows, the predictions behind the tokens from n/2 on. A row has f32 scale, f32 least,
and v numbers u16, with one more where v is odd: ln p = scale × number + least. Of what is more than 16 below the
largest logit, ln p is that of 16 below.

Source: llama.cpp b11549, tools/perplexity/perplexity.cpp: `perplexity`, `log_softmax`, `kl_divergence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from ggferry.formats import limits
from ggferry.formats.errors import BadValueError, OutOfRangeError, TrailingBytesError, UnknownFormatError, UsageError
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import LocalFile
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

MAGIC = b"_logits_"
DEPTH = 16.0
"""How far below the largest logit what is kept ends; llama-perplexity leaves ln p of -16 and less out of its sums."""
MAX_CONTEXT = 1 << 24
_HEAD = 20  # bytes before the tokens
_LEVELS = 65535.0


class BaseLogits:
    """A file of predictions, its rows read when they are wanted. Close it, or use it as a context.

    Attributes:
        path: Path of the file.
        context: Tokens of a chunk.
        vocabulary: Number of tokens of the vocabulary.
        chunks: Number of chunks.
        tokens: All of the text.
    """

    def __init__(self, path: str) -> None:
        """Open the file. Raises NotFoundError, or a CorruptError naming place and reason."""
        self._source = LocalFile(path)
        try:
            self._read_head(path)
        except BaseException:
            self._source.close()
            raise

    def _read_head(self, path: str) -> None:
        cursor, self.path = Cursor(self._source), path
        if cursor.remaining < len(MAGIC) or cursor.take(len(MAGIC), "magic") != MAGIC:
            raise UnknownFormatError(
                "not a file of base logits", path=path, expected=MAGIC, hint="llama-perplexity --kl-divergence-base"
            )
        self.context = cursor.integer("i32", "tokens of a chunk", 4, MAX_CONTEXT)
        self.vocabulary = cursor.integer("i32", "size of the vocabulary", 1, limits.MAX_VOCAB)
        self.chunks = cursor.integer("i32", "number of chunks", 1)
        count = self.context * self.chunks
        self._start = _HEAD + 4 * count
        self._row = 4 + self.vocabulary + self.vocabulary % 2  # numbers of 16 bits
        expected = self._start + self.chunks * self._chunk_bytes
        cursor.require(expected - cursor.offset, f"{self.chunks} chunks of {self.context} tokens")
        if self._source.size > expected:
            raise cursor.error(TrailingBytesError, "bytes behind the last chunk", expected)
        tokens = np.frombuffer(self._source.read(_HEAD, 4 * count), "<i4")
        wrong = (tokens < 0) | (tokens >= self.vocabulary)
        if wrong.any():
            at = int(wrong.argmax())
            raise OutOfRangeError(
                f"token {at}",
                path=path,
                offset=_HEAD + 4 * at,
                found=int(tokens[at]),
                expected=f"0..{self.vocabulary - 1}",
            )
        self.tokens: list[int] = tokens.tolist()

    @property
    def rows(self) -> int:
        """Return the number of predictions of a chunk."""
        return predictions(self.context)

    @property
    def _chunk_bytes(self) -> int:
        return 2 * self.rows * self._row

    def chunk(self, number: int) -> Any:
        """Return the packed rows of a chunk, uint16 `(rows, numbers)`.

        Raises BadValueError for a scale or a least that no logits give.
        """
        offset = self._start + number * self._chunk_bytes
        packed = np.frombuffer(self._source.read(offset, self._chunk_bytes), "<u2").reshape(self.rows, self._row)
        heads = np.ascontiguousarray(packed[:, :4]).view("<f4")
        wrong = ~(np.isfinite(heads).all(axis=1) & (heads[:, 0] >= 0) & (heads[:, 0] <= 2 * DEPTH / _LEVELS))
        if wrong.any():
            row = int(wrong.argmax())
            raise BadValueError(
                f"row {row} of chunk {number}",
                path=self.path,
                offset=offset + 2 * row * self._row,
                found=f"scale {heads[row, 0]}, least {heads[row, 1]}",
                expected=f"finite numbers, a scale of at most {2 * DEPTH / _LEVELS:.3g}",
            )
        return packed

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __enter__(self) -> BaseLogits:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def predictions(context: int) -> int:
    """Return how many predictions of a chunk count: those of its second half."""
    return context - 1 - context // 2


def write_head(file: BinaryIO, context: int, vocabulary: int, tokens: Sequence[int]) -> None:
    """Write what stands before the rows; `tokens` are those of whole chunks. Raises UsageError for more than fit."""
    chunks = len(tokens) // context
    if max(context, chunks) >= 1 << 31:
        raise UsageError("the text is too long for a file of base logits", found=f"{len(tokens)} tokens")
    file.write(MAGIC + np.array([context, vocabulary, chunks, *tokens[: chunks * context]], "<i4").tobytes())


def pack(logits: Floats) -> Any:
    """Return rows of logits, float32 `(rows, vocabulary)`, as the file has them, uint16 `(rows, numbers)`.

    Computed in float32, step by step as the original does.
    """
    logits = np.asarray(logits, np.float32)
    largest = logits.max(axis=1, keepdims=True)
    least = np.maximum(logits.min(axis=1, keepdims=True), largest - np.float32(DEPTH))
    total = np.exp(logits - largest).sum(axis=1, keepdims=True, dtype=np.float64)
    scale = (largest - least) / np.float32(_LEVELS)
    packed = np.zeros((len(logits), 4 + logits.shape[1] + logits.shape[1] % 2), "<u2")
    heads = np.concatenate([scale, least - largest - np.log(total).astype(np.float32)], axis=1)
    packed[:, :4] = heads.astype("<f4").view("<u2")
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
    packed[:, 4 : 4 + logits.shape[1]] = np.rint(inverse * (np.maximum(logits, least) - least))
    return packed


def unpack(packed: Any, vocabulary: int) -> Floats:
    """Return ln p, float32 `(rows, vocabulary)`, of packed rows."""
    heads = np.ascontiguousarray(packed[:, :4]).view("<f4").astype(np.float32)
    found: Floats = packed[:, 4 : 4 + vocabulary].astype(np.float32)
    found *= heads[:, :1]
    found += heads[:, 1:]
    return found
