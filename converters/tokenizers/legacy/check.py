"""Read a legacy vocabulary as its own runtime did, and compare the converted one with that."""

from __future__ import annotations

from collections.abc import Sequence

from ggferry.converters.tokenizers.building_blocks.byte_level import unspell
from ggferry.converters.tokenizers.building_blocks.merging import Merger
from ggferry.converters.tokenizers.building_blocks.special_tokens import well_formed
from ggferry.converters.tokenizers.compare import TokenizerCheck, compare
from ggferry.converters.tokenizers.legacy.llama import FIRST_BYTE
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import SPACE, Encoder, Tokenizer, TokenType, split_merge
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import VerificationError


class RuntimeEncoder:
    """Encodes the file's own bytes as llama_tokenize of llama.cpp did from GGMF on.

    That is 074bea2eb, 2023-03-20, to 2023-08-21. It knows no types: any entry may come out of merging, a later entry
    replaces an earlier one of the same text, and what is in no entry becomes bytes, which begin at id 3. The space in
    front was the caller's; here it is added.
    """

    def __init__(self, raw: RawVocab, scores: Sequence[float]) -> None:
        self._tokens = raw.tokens
        self._ids = {token: i for i, token in enumerate(raw.tokens)}
        costs = {token: -scores[i] for token, i in self._ids.items() if token}
        # Latin-1 text stands for bytes, so that one merger serves both
        self._merger = Merger(lambda left, right: costs.get((left + right).encode("latin-1")))

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        out = [1] if bos is not False else []
        if not text:
            return out
        signs = [sign.encode().decode("latin-1") for sign in " " + well_formed(text)]
        for symbol in self._merger.merge(signs)[0]:
            data = symbol.encode("latin-1")
            out += [self._ids[data]] if data in self._ids else [byte + FIRST_BYTE for byte in data]
        return out

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        return b"".join(self._tokens[token] for token in ids).removeprefix(b" ")


def check_conversion(raw: RawVocab, converted: Tokenizer, encoder: Encoder) -> TokenizerCheck:
    """Compare `encoder` (of the GGUF as re-read) with the runtime of the time on the vocabulary `raw`.

    The texts are those that mean the same to both: without the names of special tokens, which no legacy runtime looked
    for, and without a literal U+2581, which is a space to SentencePiece but was not to those runtimes. Where `raw` has
    no scores, those of `converted` are used.
    """
    scores = converted.scores if raw.scores is None or not any(raw.scores) else raw.scores
    runtime = RuntimeEncoder(raw, (scores or ())[: len(raw.tokens)])
    kinds = converted.types or ()
    names = {text for text, kind in zip(converted.tokens, kinds, strict=False) if kind in SPECIAL}
    texts = [text for text in TEXTS if SPACE not in text and not any(name in text for name in names)]
    return compare(runtime, encoder, texts)


def check_merges(raw: RawVocab, converted: Tokenizer, rebuilt: bool, path: str | None) -> dict[str, int]:
    """Count the pieces of a byte-level vocabulary that the merges as written put together from single letters.

    They must be all where the merges were `rebuilt` from the vocabulary. Merges that somebody else made may leave a
    piece that no text leads to. Raises VerificationError naming the first such piece of rebuilt merges.
    """
    ranks = {split_merge(merge): rank for rank, merge in reversed([*enumerate(converted.merges or ())])}
    merger = Merger(lambda left, right: ranks.get((left, right)))
    count = remade = 0
    for token, text in enumerate(converted.tokens[: len(raw.tokens)]):
        if converted.type_of(token) != TokenType.NORMAL or unspell(text) is None:
            continue
        found = merger.merge(text)[0]
        if found != [text] and rebuilt:
            raise VerificationError(
                f"the merges do not make token {token}", path=path, found=" ".join(found[:8]), expected=text
            )
        count += 1
        remade += found == [text]
    return {"tokens": count, "remade": remade, "merges": len(converted.merges or ())}


SPECIAL = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
