"""A tokenizer of another distribution: toy.vocab has a word a line, and a text is its words, one space between them."""

from __future__ import annotations

from collections.abc import Sequence

from ggferry.converters.tokenizers.files.sidecar_settings import Source, TokenizerInputs
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenizerKind
from ggferry.formats.checkpoint_folder.sidecars import SidecarFile
from ggferry.formats.files.local_files import read_text

NAME = "toy.vocab"
UNKNOWN = 0


class ToyEncoder:
    """Reference encoder of a 'toy' vocabulary. The first word stands for all that are not in it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._words = tokenizer.tokens
        self._ids = {word: number for number, word in enumerate(tokenizer.tokens)}

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        return [self._ids.get(word, UNKNOWN) for word in text.split()]

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        return " ".join(self._words[number] for number in ids).encode()


def load(inputs: TokenizerInputs) -> Tokenizer:
    """toy.vocab: one word a line, the line's number its id."""
    return Tokenizer("toy", tuple(read_text(inputs.sidecars.files[NAME]).splitlines()))


SPEC = TokenizerKind("toy", ("toy",), ToyEncoder)
SOURCE = Source("toy", 900, NAME, lambda sidecars: sidecars.path(NAME) is not None, load)
SIDECARS = (SidecarFile(NAME, (NAME,), tokenizer=True, vocabulary=True),)
