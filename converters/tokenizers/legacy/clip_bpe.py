"""CLIP's vocabulary: byte-level BPE in lower case, whose last part of a word ends in '</w>' → 'none'.

No program that reads GGUF but clip.cpp cuts text so, and that one joins the longest tokens it knows, without merges. So
the vocabulary is carried under the model 'none'; `tokenizer.ggml.pre` names what the tokens are. Files of clip.cpp hold
the tokens alone. CLIP's are bytes, bytes that end a word, what each merge makes, in order, and two special ones: the
merges follow (`rebuilt`). Source: openai/CLIP `clip/simple_tokenizer.py`; transformers `tokenization_clip.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ggferry.converters.tokenizers.building_blocks.byte_level import letters
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.legacy.byte_level import MergeSource
from ggferry.converters.tokenizers.legacy.ids_alone import NO_MODEL, has_class, once_each, texts_of_vocab
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import CorruptError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.gguf.values import Value

CLIP, CLASS = "clip", "CLIPTokenizer"
START, END, WORD = "<|startoftext|>", "<|endoftext|>", "</w>"
NOTE = (
    "CLIP's texts are cut into words in a way that no GGUF tokenizer has: tokens and merges are carried, and a program "
    f"must be given ids, from {START} to {END}, as transformers' {CLASS} makes them"
)
LONGEST = 128
"""Letters of a token; beyond, no merge is looked for."""


def clip_bpe(texts: Sequence[str], merges: Sequence[str] | None, origin: str) -> Tokenizer:
    """Return the vocabulary of `texts` in the order of their ids; a text that occurs again is no token.

    Args:
        texts: Tokens, as vocab.json spells them.
        merges: Two tokens each, with a blank between; None: they are rebuilt.
        origin: Where the tokens are from.
    """
    first, again, tokens = once_each(texts)
    types = [
        TokenType.UNUSED if repeated else TokenType.CONTROL if text in (START, END) else TokenType.NORMAL
        for text, repeated in zip(texts, again, strict=True)
    ]
    found = rebuilt(first) if merges is None else merges
    ids = {role: first[text] for role, text in (("bos", START), ("eos", END), ("pad", END)) if text in first}
    made = sum(len(_letters(text)) > 1 for text in first if text not in (START, END))
    count = f"the file holds no merges: {len(found)} rebuilt from the order of tokens, of {made} that merges make"
    return Tokenizer(
        model=NO_MODEL,
        pre=CLIP,
        tokens=tokens,
        types=tuple(map(int, types)),
        merges=tuple(found),
        ids=ids,
        flags={"add_bos": True, "add_eos": True},
        notes=(NOTE, count) if merges is None else (NOTE,),
        origins={"tokens": origin, "merges": MergeSource.REBUILT if merges is None else origin}
        | dict.fromkeys(ids, "the token's name"),
    )


def rebuilt(first: dict[str, int]) -> list[str]:
    """Return the merges of tokens in the order in which they were made: two earlier tokens make each.

    They are what BPE by all earlier merges leaves of the token.
    """
    ranks: dict[tuple[str, str], int] = {}
    for text, token in sorted(first.items(), key=lambda item: item[1]):
        parts = _letters(text)
        if text in (START, END) or not 1 < len(parts) <= LONGEST:
            continue
        while len(parts) > 2:
            rank, at = min((ranks.get(pair, token), at) for at, pair in enumerate(pairwise(parts)))
            if rank == token:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2 and all(part in first for part in parts):
            ranks[parts[0], parts[1]] = token
    return [" ".join(pair) for pair in ranks]


def _letters(text: str) -> list[str]:
    """Return what BPE begins with: letters, the last of which ends the word, where the token does."""
    ended = text.endswith(WORD) and text != WORD
    found = list(text.removesuffix(WORD) if ended else text)
    return [*found[:-1], f"{found[-1]}{WORD}"] if ended else found


def spelled(data: bytes) -> str:
    """Return the token whose letters stand for these bytes, among them the letters of '</w>'."""
    return "".join(letters()[byte] for byte in data)


def of_clip_cpp(metadata: Mapping[str, Value]) -> Tokenizer | None:
    """Return the vocabulary of a GGUF file by clip.cpp, which states tokens and no model; None for another file."""
    tokens, named = metadata.get("tokenizer.ggml.tokens"), metadata.get("general.architecture")
    if named is None or named.data != CLIP or tokens is None or "tokenizer.ggml.model" in metadata:
        return None
    texts = tokens.data if isinstance(tokens.data, tuple | list) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        return None
    return clip_bpe(texts, None, "the file's vocabulary")


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the vocabulary of vocab.json and merges.txt.

    Raises CorruptError for ids with a gap, or a merge that has not two parts.
    """
    texts = texts_of_vocab(inputs)
    lines = read_text(inputs.sidecars.files["merges.txt"]).split("\n")
    merges = []
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if parts and not (number == 1 and line.startswith("#version")):
            if len(parts) != 2:
                where = inputs.sidecars.path("merges.txt")
                raise CorruptError(f"line {number} has no two parts", path=where, found=line)
            merges.append(" ".join(parts))
    return clip_bpe(texts, merges, "vocab.json and merges.txt")


def _probe(sidecars: Sidecars) -> bool:
    return has_class(sidecars, (CLASS, f"{CLASS}Fast"), CLIP)


SOURCE = Source("clip", 29, "vocab.json with merges.txt of CLIP", _probe, load)
