"""Byte-level BPE: the printable letter of every byte, and merges derived from the ranks of the tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise

from ggferry.formats.errors import InconsistentError

PRINTABLE = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))


@cache
def letters() -> tuple[str, ...]:
    """Return the letter of each byte 0…255: printable Latin-1 as itself, the others from U+0100 on in order (GPT-2)."""
    kept = {byte for run in PRINTABLE for byte in run}
    moved = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in kept else chr(next(moved)) for byte in range(256))


def spell(data: bytes) -> str:
    """Spell bytes in letters, as a 'gpt2' vocabulary spells its tokens."""
    return data.decode("latin-1").translate(_TO_LETTERS)


def unspell(text: str) -> bytes | None:
    """Return the bytes that `text` spells, or None when a character is no letter of a byte."""
    try:
        return text.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return None


_TO_LETTERS = dict(enumerate(letters()))
_TO_BYTES = dict.fromkeys(range(256), "Ѐ") | {ord(letter): chr(byte) for byte, letter in enumerate(letters())}
"""Letter → the byte as Latin-1. Characters that are no letter of a byte go beyond Latin-1."""


def split_by_rank(token: bytes, ranks: Mapping[bytes, int], below: int) -> list[bytes]:
    """Return what BPE makes of `token` when only merges of rank < `below` exist.

    If that is two parts, they are the merge that makes the token.
    """
    cuts = list(range(len(token) + 1))
    costs = [ranks.get(token[i : i + 2], below) for i in range(len(token) - 1)]  # of joining part i and its successor
    while costs and (best := min(costs)) < below:
        at = costs.index(best)
        del cuts[at + 1], costs[at]
        if at < len(costs):
            costs[at] = ranks.get(token[cuts[at] : cuts[at + 2]], below)
        if at:
            costs[at - 1] = ranks.get(token[cuts[at - 1] : cuts[at + 1]], below)
    return [token[start:end] for start, end in pairwise(cuts)]


MAX_MERGED = 512  # bytes; the longest merged token known has 256 (a run of blanks in cl100k); beyond it none is tried


def rebuild_merges(ranked: Iterable[tuple[bytes, int]]) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Rebuild the merges of a vocabulary whose tokens are in rank order.

    Also returns the tokens that no merge of two parts explains. The derivation is the one that Hugging Face uses for
    tiktoken files: the parts of a token are what all earlier merges leave of it.

    Args:
        ranked: (token, rank) of each token.
    """
    ranks = dict(ranked)
    merges: list[tuple[bytes, bytes]] = []
    unexplained: list[bytes] = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) < 2:
            continue
        parts = split_by_rank(token, ranks, rank) if len(token) <= MAX_MERGED else []
        if len(parts) == 2 and parts[0] in ranks and parts[1] in ranks:
            merges.append((parts[0], parts[1]))
        else:
            unexplained.append(token)
            del ranks[token]  # no merge leads to it, so none can start from it
    return merges, unexplained


def merges_of_ranks(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the merges by which a runtime joins what tiktoken joins: every two tokens that make a third, by its rank.

    tiktoken knows no merges: it joins any neighbors whose bytes together are a token, lowest rank first. For most
    vocabularies one pair leads to a token (`rebuild_merges`); where tokens were added by hand, several do, or none.
    transformers converts tiktoken files so (`convert_slow_tokenizer.py`, TikTokenConverter).
    """
    found = []
    for token, rank in ranks.items():
        for at in range(1, len(token) if len(token) <= MAX_MERGED else 1):
            left, right = token[:at], token[at:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def merges_by_rank(ranks: Mapping[bytes, int], whole: bool) -> tuple[list[tuple[bytes, bytes]], str]:
    """Return the merges of a vocabulary by rank, and in words how they were found.

    Args:
        ranks: Token → rank.
        whole: Whether runtimes take a word that is a token as it is (ignore_merges), as tiktoken does.

    Raises InconsistentError for bytes that are no token, and for tokens that no merge makes where `whole` is False.
    """
    lone = next(
        (token[at : at + 1] for token in ranks for at in range(len(token)) if token[at : at + 1] not in ranks), None
    )
    if lone is not None:
        raise InconsistentError("tokens contain a byte that has no token of its own", found=lone)
    merges, unexplained = rebuild_merges(ranks.items())
    if not unexplained:
        return merges, "rebuilt from the ranks, each proved"
    if not whole:
        message = f"{len(unexplained)} tokens follow from no merge of earlier ones"
        raise InconsistentError(message, found=unexplained[0], expected="a pre-tokenizer that looks words up first")
    return merges_of_ranks(ranks), "every two tokens that make a third, by its rank"
