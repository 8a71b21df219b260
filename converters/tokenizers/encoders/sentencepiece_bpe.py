"""SentencePiece BPE ('llama'): from tokenizer.model to GGUF, and the reference encoder that merges by score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from ggferry.converters.tokenizers.building_blocks.merging import Merger
from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import SentencePieceModel
from ggferry.converters.tokenizers.building_blocks.special_tokens import splitters, well_formed
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenizerKind, TokenType, byte_of

WHOLE = (TokenType.NORMAL, TokenType.UNUSED)  # what merging may produce; the rest are SentencePiece's reserved pieces
LONG = 4096
"""Signs of a text from which on its parts are merged one by one: to find out where it parts reads the vocabulary."""


def from_model(model: SentencePieceModel) -> Tokenizer:
    """Return the GGUF tokenizer of a SentencePiece BPE model: texts, scores and types as they are.

    User-defined pieces are written with real spaces: llama.cpp looks for them in the text before it escapes spaces.
    """
    origin = "tokenizer.model"
    roles = {"bos": model.bos_id, "eos": model.eos_id, "unk": model.unk_id, "pad": model.pad_id}
    ids = {role: token for role, token in roles.items() if token >= 0}
    flags = {"add_bos": True, "add_eos": False, "add_space_prefix": model.add_dummy_prefix}
    notes = []
    if model.charsmap:
        notes.append(
            f"the normalizer '{model.normalizer}' of tokenizer.model has no place in GGUF's 'llama' vocabulary: "
            "text is tokenized as it stands"
        )
    if model.remove_extra_whitespaces:
        notes.append("tokenizer.model removes extra whitespace; today's runtimes of a 'llama' vocabulary do not")
    if model.suffix_space:
        notes.append("tokenizer.model puts the space after the word; no runtime of a 'llama' vocabulary does")
    return Tokenizer(
        model="llama",
        pre="default",
        tokens=tuple(
            piece.text.replace(SPACE, " ") if piece.type == TokenType.USER_DEFINED else piece.text
            for piece in model.pieces
        ),
        scores=tuple(piece.score for piece in model.pieces),
        types=tuple(piece.type for piece in model.pieces),
        ids=ids,
        flags=flags,
        notes=tuple(notes),
        origins={"tokens": origin, "scores": origin, "types": origin, "add_bos": "the 'llama' vocabulary's custom"}
        | dict.fromkeys([*ids, "add_space_prefix"], origin),
    )


class SpmEncoder:
    """Reference encoder of a 'llama' vocabulary: SentencePiece's BPE with byte fallback."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        types = tokenizer.types or (TokenType.NORMAL,) * len(tokenizer.tokens)
        scores = tokenizer.scores or (0.0,) * len(tokenizer.tokens)
        self._types = types
        self._pieces = {text: i for i, text in enumerate(tokenizer.tokens) if types[i] in WHOLE}
        costs = {text: -scores[i] for text, i in self._pieces.items()}
        self._bytes = {
            value: i
            for i, text in enumerate(tokenizer.tokens)
            if types[i] == TokenType.BYTE and (value := byte_of(text)) is not None
        }
        self._merger = Merger(lambda left, right: costs.get(left + right))
        self._splitters = splitters(tokenizer)
        self._unknown = tokenizer.ids.get("unk", 0)
        self._known: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})  # token → its bytes; with special ones
        self._prefix = tokenizer.flags.get("add_space_prefix", True)

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        flags, ids = self.tokenizer.flags, self.tokenizer.ids
        out: list[int] = []
        if (flags.get("add_bos", True) if bos is None else bos) and "bos" in ids:
            out.append(ids["bos"])
        after_special = True
        for part in self._splitters[special].split(text):
            if isinstance(part, int):
                out.append(part)
            else:
                out += self._plain(" " + part if self._prefix and after_special else part)
            after_special = isinstance(part, int)
        if bos is not False and flags.get("add_eos", False) and "eos" in ids:
            out.append(ids["eos"])
        return out

    def _plain(self, text: str) -> list[int]:
        text = well_formed(text).replace(" ", SPACE)
        out: list[int] = []
        unknown = False  # SentencePiece joins neighboring unknown symbols into one
        for symbol in self._symbols(text):
            if symbol in self._pieces:
                out.append(self._pieces[symbol])
                unknown = False
            elif self._bytes:
                out += (self._bytes.get(byte, self._unknown) for byte in symbol.encode("utf-8"))
            elif not unknown:
                out.append(self._unknown)
                unknown = True
        return out

    def _symbols(self, text: str) -> Iterable[str]:
        """Return what a text merges into; equal parts of a long one are merged once.

        An UNUSED piece falls apart as it was last put together anywhere in the text, which needs all of it.
        """
        merged = self._merged_by_parts(text) if len(text) >= LONG else None
        return self._settled(*self._merger.merge(text)) if merged is None else merged

    def _merged_by_parts(self, text: str) -> list[str] | None:
        known: dict[str, list[str]] = {}
        out: list[str] = []
        for part in self._parts(text):
            if part not in known:
                known[part], _ = self._merger.merge(part)
                if any(self._types[self._pieces[each]] == TokenType.UNUSED for each in known[part] if len(each) > 1):
                    return None
            out += known[part]
        return out

    def _parts(self, text: str) -> Iterator[str]:
        """Cut a text between any two signs that no piece has side by side: nothing is ever merged across."""
        start = 0
        for at, pair in enumerate(pairwise(text), 1):
            if pair not in self._neighbors:
                yield text[start:at]
                start = at
        yield text[start:]

    @cached_property
    def _neighbors(self) -> set[tuple[str, str]]:
        return {pair for piece in self._pieces for pair in pairwise(piece)}

    def _settled(self, symbols: Iterable[str], halves: dict[str, tuple[str, str]]) -> Iterable[str]:
        # an UNUSED piece takes part in merging but never comes out: it falls apart again
        stack = list(symbols)[::-1]
        while stack:
            symbol = stack.pop()
            token = self._pieces.get(symbol)
            if token is not None and self._types[token] == TokenType.UNUSED and symbol in halves:
                stack += halves[symbol][::-1]
            else:
                yield symbol

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        known = self._known[special]
        for token in set(ids) - known.keys():
            known[token] = self._bytes_of(token, special)
        out = b"".join(map(known.__getitem__, ids))
        starts_plain = next((i for i in ids if self._types[i] != TokenType.CONTROL), None)
        if self._prefix and starts_plain is not None and out.startswith(b" "):
            return out[1:]  # the space that encode put there
        return out

    def _bytes_of(self, token: int, special: bool) -> bytes:
        text, kind = self.tokenizer.tokens[token], self._types[token]
        if kind == TokenType.BYTE:
            value = byte_of(text)
            return b"" if value is None else bytes([value])
        if kind == TokenType.CONTROL and not special:
            return b""
        if kind == TokenType.NORMAL:
            text = text.replace(SPACE, " ")
        return text.encode("utf-8", "surrogateescape")


SPEC = TokenizerKind(name="spm", models=("llama",), encoder=SpmEncoder)
