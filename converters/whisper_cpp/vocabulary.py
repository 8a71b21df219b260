"""The vocabulary of a whisper.cpp file: the bytes of every ordinary token; the special ones follow from their number.

whisper.cpp computes the ids of its special tokens from `n_vocab` alone (`whisper_vocab` in its whisper.cpp). What has
them elsewhere would be decoded as another model, and is refused.
"""

from __future__ import annotations

from ggferry.converters.tokenizers.building_blocks.byte_level import unspell
from ggferry.converters.tokenizers.legacy.whisper_names import LANGUAGES, special_names
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import MissingError, UnsupportedError

_ENGLISH = 51864
"""Tokens of the models that know English alone; every other has at least one more."""
END, START = "<|endoftext|>", "<|startoftranscript|>"


def special_ids(rows: int, path: str | None = None) -> dict[str, int]:
    """Return the special tokens with the ids that whisper.cpp takes for them in a model of `rows` tokens.

    Raises UnsupportedError for a number of tokens by which it finds other ids, or none.
    """
    end = 50256 + (rows > _ENGLISH)
    names = special_names(end, rows) if rows >= _ENGLISH else []
    if end + len(names) != rows:
        sizes = [_ENGLISH + more for more in range(2 + len(LANGUAGES) - 99)]
        raise UnsupportedError(
            "whisper.cpp computes the ids of special tokens from the number of tokens, which must be a Whisper's",
            path=path,
            found=rows,
            expected=", ".join(map(str, sizes)),
        )
    return {name: end + place for place, name in enumerate(names)}


def tokens_in_file(tokenizer: Tokenizer | None, rows: int, path: str | None = None) -> list[bytes]:
    """Return the bytes of the tokens before <|endoftext|>, which the file holds.

    Raises MissingError without a vocabulary, and UnsupportedError for one that whisper.cpp would misread.
    """
    if tokenizer is None:
        raise MissingError(
            "whisper.cpp's files hold the vocabulary, and the source has none",
            path=path,
            hint="--tokenizer DIR: the model's tokenizer files",
        )
    if tokenizer.model != "gpt2":
        raise UnsupportedError(
            "whisper.cpp reads byte-level vocabularies alone", path=path, found=tokenizer.model, expected="gpt2"
        )
    expected = special_ids(rows, path)
    places = {text: token for token, text in enumerate(tokenizer.tokens)}
    for name, token in expected.items():
        if places.get(name, token) != token:
            raise UnsupportedError(
                f"whisper.cpp takes another id for {name} in a model of {rows} tokens",
                path=path,
                found=places[name],
                expected=token,
            )
    if len(tokenizer.tokens) < expected[END]:
        raise UnsupportedError(
            "the vocabulary has fewer tokens than whisper.cpp takes for ordinary ones",
            path=path,
            found=len(tokenizer.tokens),
            expected=expected[END],
        )
    return [_bytes_of(tokenizer, token) for token in range(expected[END])]


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    text, kind = tokenizer.tokens[token], tokenizer.type_of(token)
    if kind == TokenType.UNUSED:
        return b""
    plain = unspell(text) if kind in (TokenType.NORMAL, TokenType.UNKNOWN) else None
    return text.encode("utf-8", "surrogateescape") if plain is None else plain
