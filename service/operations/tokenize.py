"""Encode texts by a model's own vocabulary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

from ggferry.converters.conversion.options import Kind, option
from ggferry.formats.errors import UsageError
from ggferry.formats.files.named_texts import lines_of
from ggferry.service.operation import FollowRedirects, StrPath, argument, declare, library_function, open_source
from ggferry.support.records import dataclass

_PATH = argument("A model or vocabulary file, or a folder; a path or a URL.")
_SPECIAL = declare(Kind.FLAG, "Encode the text of a control token as that token.")


@dataclass(frozen=True, slots=True)
class VocabularyOptions:
    """Where the vocabulary comes from."""

    _: KW_ONLY
    arch: Annotated[str | None, option("arch")] = None
    tokenizer_model: Annotated[StrPath | None, option("tokenizer_model")] = None
    pre: Annotated[str | None, option("pre")] = None


@dataclass(frozen=True, slots=True)
class TokenizeRequest(VocabularyOptions):
    """A text to encode."""

    path: Annotated[StrPath, _PATH]
    text: Annotated[str, declare(Kind.TEXT, "Any text.", longest=100_000)]
    _: KW_ONLY
    bos: Annotated[
        bool | None, "Whether the beginning-of-sequence token comes first; None: as the file says."
    ] = None
    special: Annotated[bool, _SPECIAL] = False


@dataclass(frozen=True, slots=True)
class TokenizeCommand(VocabularyOptions):
    """Encode text by the file's own vocabulary: one JSON list of ids a line."""

    path: Annotated[StrPath, _PATH]
    _: KW_ONLY
    texts: Annotated[Sequence[str], declare(Kind.TEXTS, "Text to encode; repeatable.", "--text")] = ()
    text_file: Annotated[StrPath | None, declare(Kind.TEXT, "Encode each line of this UTF-8 file.", "--file",
            metavar="FILE")] = None
    bos: Annotated[
        bool, declare(Kind.FLAG, "Without the beginning-of-sequence token.", "--no-bos", negated=True)
    ] = True
    special: Annotated[bool, _SPECIAL] = False
    follow_redirects: FollowRedirects = False


def run(request: TokenizeRequest) -> list[int]:
    """Encode a text with a model's own vocabulary.

    For many texts, open the model once (`open_model`).

    Returns:
        Token ids.

    Raises:
        RefusedError: The file has no vocabulary.
        GgferryError: As `open_model`.

    Example:
        >>> ggferry.tokenize("new.gguf", "The cat")[0]
        1
    """
    from ggferry.service.library.models import open_model

    with open_model(request.path, **_options(request)) as model:
        return model.tokenize(request.text, bos=request.bos, special=request.special)


def encode_all(request: TokenizeCommand) -> Iterator[list[int]]:
    """Yield the token ids of each text of a command. Raises UsageError without a text, and as `run`."""
    from ggferry.service.library.models import open_model

    texts = [*request.texts, *(lines_of(os.fspath(request.text_file)) if request.text_file is not None else ())]
    if not texts:
        raise UsageError("nothing to encode", hint="--text TEXT or --file FILE")
    with open_source(request.path, tensors=False) as path, open_model(path, **_options(request)) as model:
        for text in texts:
            yield model.tokenize(text, bos=None if request.bos else False, special=request.special)


def _options(request: VocabularyOptions) -> Any:
    """Return the options of `open_model`."""
    return {"arch": request.arch, "tokenizer_model": request.tokenizer_model, "pre": request.pre}


tokenize = library_function("tokenize", TokenizeRequest, run)
