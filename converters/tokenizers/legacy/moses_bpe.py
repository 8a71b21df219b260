"""Read BioGPT's vocab.json and merges.txt: BPE of the characters of words that Moses cut → 'none'.

No program that reads GGUF cuts text like Moses. So the vocabulary is carried whole, under the model 'none', which has
llama.cpp compute on ids and encode no text; `tokenizer.ggml.pre` names what the tokens are. Source: transformers
`tokenization_biogpt.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.legacy.ids_alone import NO_MODEL, has_class, once_each, texts_of_vocab
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import CorruptError
from ggferry.formats.files.local_files import read_text

MOSES = "biogpt"
CLASS = "BioGptTokenizer"
SPECIAL = {"<s>": "bos", "<pad>": "pad", "</s>": "eos", "<unk>": "unk"}
NOTE = (
    "texts are cut into words by Moses, which no program that reads GGUF does: tokens and merges are carried, and a "
    f"program must be given ids, '</s>' first, as transformers' {CLASS} makes them"
)


def moses_bpe(texts: Sequence[str], merges: Sequence[str], origin: str) -> Tokenizer:
    """Return the vocabulary of `texts` in the order of their ids; a text that occurs again is no token."""
    first, again, tokens = once_each(texts)
    types = [
        TokenType.UNUSED
        if repeated
        else TokenType.UNKNOWN
        if text == "<unk>"
        else TokenType.CONTROL
        if text in SPECIAL
        else TokenType.NORMAL
        for text, repeated in zip(texts, again, strict=True)
    ]
    ids = {role: first[text] for text, role in SPECIAL.items() if text in first}
    if "eos" in ids:
        ids["sep"] = ids["eos"]
    return Tokenizer(
        model=NO_MODEL,
        pre=MOSES,
        tokens=tokens,
        types=tuple(map(int, types)),
        merges=tuple(merges),
        ids=ids,
        flags={"add_bos": False, "add_eos": False},
        notes=(NOTE,),
        origins={"tokens": origin, "merges": origin} | dict.fromkeys(ids, "the token's name"),
    )


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the vocabulary of vocab.json and merges.txt, whose lines end in the count of fairseq's learner.

    Raises CorruptError for ids with a gap, or a merge that has not two parts.
    """
    lines, texts = read_text(inputs.sidecars.files["merges.txt"]).split("\n"), texts_of_vocab(inputs)
    merges = []
    for number, line in enumerate(lines):
        parts = line.split()[:2]
        if len(parts) == 1 or (not parts and number < len(lines) - 1):
            where = inputs.sidecars.path("merges.txt")
            raise CorruptError(f"line {number + 1} has no two parts", path=where, found=line)
        merges += [" ".join(parts)] if parts else []
    return moses_bpe(texts, merges, "vocab.json and merges.txt")


def _probe(sidecars: Sidecars) -> bool:
    return has_class(sidecars, (CLASS,), "biogpt")


SOURCE = Source("moses", 39, "vocab.json with merges.txt of BioGPT", _probe, load)
