"""vocab.txt, one WordPiece token a line → 'bert'."""

from __future__ import annotations

from itertools import pairwise

from ggferry.converters.tokenizers.files.sidecar_settings import Source, Wanted
from ggferry.converters.tokenizers.files.tokenizer_json import word_piece
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.errors import CorruptError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.limits import MAX_VOCAB


def load(wanted: Wanted) -> Tokenizer:
    """vocab.txt: one WordPiece token a line, the line's number its id."""
    path = wanted.sidecars.files["vocab.txt"]
    words = read_text(path).split("\n")
    if words and not words[-1]:
        words.pop()
    words = [word.rstrip("\r") for word in words]
    if len(words) > MAX_VOCAB or "[UNK]" not in words:
        raise CorruptError("not a WordPiece vocabulary", path=path, found=f"{len(words)} lines", expected="[UNK] among")
    twice = next((a for a, b in pairwise(sorted(words)) if a == b), None)
    if twice is not None:
        raise CorruptError("a WordPiece token twice", path=path, found=twice)
    return word_piece({word: token for token, word in enumerate(words)}, wanted.sidecars, wanted.added, path)


SOURCE = Source("vocab.txt", 50, "vocab.txt", lambda sidecars: sidecars.path("vocab.txt") is not None, load)
