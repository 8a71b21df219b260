"""SentencePiece unigram ('t5'): from tokenizer.model to GGUF, and the reference encoder (Viterbi)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from ggferry.converters.tokenizers.building_blocks.charsmap import Charsmap
from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import SentencePieceModel
from ggferry.converters.tokenizers.building_blocks.special_tokens import splitters, well_formed
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenizerKind, TokenType, byte_of

UNKNOWN_PENALTY = 10.0  # kUnkPenalty of sentencepiece unigram_model.cc


def from_model(model: SentencePieceModel) -> Tokenizer:
    """Return the GGUF tokenizer of a SentencePiece unigram model."""
    roles = {"bos": model.bos_id, "eos": model.eos_id, "unk": model.unk_id, "pad": model.pad_id}
    ids = {role: token for role, token in roles.items() if token >= 0}
    notes = ["tokenizer.model puts the space after the word; GGUF cannot say so"] if model.suffix_space else []
    return Tokenizer(
        model="t5",
        pre="default",
        tokens=tuple(
            piece.text.replace(SPACE, " ") if piece.type == TokenType.USER_DEFINED else piece.text
            for piece in model.pieces
        ),
        scores=tuple(piece.score for piece in model.pieces),
        types=tuple(piece.type for piece in model.pieces),
        ids=ids,
        flags={
            "add_space_prefix": model.add_dummy_prefix,
            "remove_extra_whitespaces": model.remove_extra_whitespaces,
        },
        charsmap=model.charsmap or None,
        notes=tuple(notes),
        origins=dict.fromkeys(("tokens", "scores", "types", "charsmap", "add_space_prefix", *ids), "tokenizer.model"),
    )


class UnigramEncoder:
    """Reference encoder of a 't5' vocabulary: SentencePiece's normalizer, then the best path by summed scores."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        types = tokenizer.types or (TokenType.NORMAL,) * len(tokenizer.tokens)
        scores = tokenizer.scores or (0.0,) * len(tokenizer.tokens)
        self._types = types
        self._pieces = {
            text: (i, scores[i] if types[i] == TokenType.NORMAL else 0.0)
            for i, text in enumerate(tokenizer.tokens)
            if types[i] in (TokenType.NORMAL, TokenType.USER_DEFINED) and text
        }
        self._lengths = _lengths_by_first(self._pieces)
        normal = [scores[i] for i, kind in enumerate(types) if kind == TokenType.NORMAL]
        self._unknown_score = min(normal, default=0.0) - UNKNOWN_PENALTY
        self._unknown = tokenizer.ids.get("unk", 2)  # llama.cpp's default for this model
        self._bytes = {
            value: i
            for i, text in enumerate(tokenizer.tokens)
            if types[i] == TokenType.BYTE and (value := byte_of(text)) is not None
        }
        self._charsmap = Charsmap(tokenizer.charsmap) if tokenizer.charsmap else None
        self._prefix = tokenizer.flags.get("add_space_prefix", True)
        self._tidy = tokenizer.flags.get("remove_extra_whitespaces", False)
        self._splitters = splitters(tokenizer)

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        flags, ids = self.tokenizer.flags, self.tokenizer.ids
        out: list[int] = []
        if (flags.get("add_bos", False) if bos is None else bos) and "bos" in ids:
            out.append(ids["bos"])
        for part in self._splitters[special].split(text):
            out += [part] if isinstance(part, int) else self._run(part)
        if bos is not False and flags.get("add_eos", True) and "eos" in ids:
            out.append(ids["eos"])
        return out

    def normalize(self, text: str) -> str:
        """Apply replacements, tidy spaces, make them visible, and put one in front (sentencepiece normalizer.cc)."""
        if self._charsmap is not None:
            text = self._charsmap.normalize(text)
        if self._tidy:
            text = " ".join(word for word in text.split(" ") if word)
        if not text:
            return ""
        return ((" " if self._prefix else "") + text).replace(" ", SPACE)

    def in_single(self, text: str) -> list[int]:
        """Return the ids of a text where sums of scores are rounded to float32, as SentencePiece rounds them."""
        parts = self._splitters[False].split(text)
        runs = ([part] if isinstance(part, int) else self._run(part, _to_single) for part in parts)
        return [token for run in runs for token in run]

    def of_normalized(self, text: str) -> list[int]:
        """Return the ids of a text that is normalized, and in which nothing is special."""
        return self._best(text, float)

    def _run(self, text: str, rounded: Callable[[float], float] = float) -> list[int]:
        return self._best(self.normalize(well_formed(text)), rounded)

    def _best(self, text: str, rounded: Callable[[float], float]) -> list[int]:
        """Return the ids on the path with the highest score; neighboring unknown signs are one."""
        count = len(text)
        score = [0.0] + [float("-inf")] * count
        came: list[tuple[int, int]] = [(0, -1)] * (count + 1)
        for start in range(count):
            here, single = score[start], False
            for length in self._lengths.get(text[start], ()):
                piece = self._pieces.get(text[start : start + length])
                if piece is None or start + length > count:
                    continue
                single = single or length == 1
                if here + piece[1] > score[start + length]:
                    score[start + length], came[start + length] = rounded(here + piece[1]), (start, piece[0])
            if not single and here + self._unknown_score > score[start + 1]:
                score[start + 1] = rounded(here + self._unknown_score)
                came[start + 1] = start, self._unknown
        out: list[int] = []
        end = count
        while end:
            start, token = came[end]
            if token != self._unknown:
                out.append(token)
            elif self._bytes:
                out += (self._bytes.get(byte, token) for byte in reversed(text[start:end].encode()))
            elif not out or out[-1] != token or end == count:
                out.append(token)
            end = start
        return out[::-1]

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        out = b"".join(self._bytes_of(token, special) for token in ids)
        return out[1:] if self._prefix and out.startswith(b" ") else out

    def _bytes_of(self, token: int, special: bool) -> bytes:
        text, kind = self.tokenizer.tokens[token], self._types[token]
        if kind == TokenType.CONTROL and not special:
            return b""
        if kind == TokenType.BYTE and (value := byte_of(text)) is not None:
            return bytes([value])
        return (text.replace(SPACE, " ") if kind == TokenType.NORMAL else text).encode("utf-8", "surrogateescape")


def _to_single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _lengths_by_first(pieces: dict[str, tuple[int, float]]) -> dict[str, list[int]]:
    # which lengths are worth trying at a place depends on its first sign: long pieces cost nothing elsewhere
    lengths: dict[str, set[int]] = {}
    for text in pieces:
        lengths.setdefault(text[0], set()).add(len(text))
    return {first: sorted(found) for first, found in lengths.items()}


SPEC = TokenizerKind(name="unigram", models=("t5",), encoder=UnigramEncoder)
