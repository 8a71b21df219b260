"""Read llama2.c's tokenizer.bin: the length of the longest piece, then score and text of each, to the end of the file.

It was made of a SentencePiece model: spaces for '▁', and the texts of <s> and </s> between line feeds. Types and roles
follow from the positions, as in the GGML era. Source: karpathy/llama2.c `tokenizer.py` (`export`), `run.c`
(`build_tokenizer`).
"""

from __future__ import annotations

from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.legacy.llama import from_raw_vocab
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import CorruptError, OutOfRangeError
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import open_source
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB

NAME = "tokenizer.bin"
CONTROLS = {b"\n<s>\n": b"<s>", b"\n</s>\n": b"</s>"}


def read(path: str) -> RawVocab:
    """Return the pieces and their scores.

    Raises:
        CorruptError: The file is no such vocabulary (TruncatedError, OutOfRangeError), or its longest piece is not as
            long as its beginning says.
    """
    source = open_source(path)
    try:
        cursor = Cursor(source)
        longest = cursor.integer("u32", "the length of the longest piece", 1, MAX_TOKEN_BYTES)
        tokens: list[bytes] = []
        scores: list[float] = []
        while cursor.remaining:
            if len(tokens) == MAX_VOCAB:
                raise cursor.error(OutOfRangeError, "too many pieces", expected=f"at most {MAX_VOCAB}")
            scores.append(float(cursor.number("f32", f"the score of piece {len(tokens)}")))
            size = cursor.integer("u32", f"the length of piece {len(tokens)}", 0, longest)
            tokens.append(cursor.take(size, f"piece {len(tokens)}"))
    finally:
        source.close()
    if max(map(len, tokens), default=0) != longest:
        raise CorruptError(
            "no piece has the length that the header states for the longest", path=path, offset=0, expected=longest
        )
    return RawVocab(tuple(CONTROLS.get(token, token) for token in tokens), tuple(scores))


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the tokenizer of tokenizer.bin."""
    path = inputs.sidecars.files[NAME]
    raw = read(path)
    return from_raw_vocab(raw, model_rows=len(raw.tokens), pre=inputs.pre, path=path)


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path(NAME) is not None


SOURCE = Source("tokenizer.bin", 70, "tokenizer.bin (llama2.c)", _probe, load)
