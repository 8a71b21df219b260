"""Read vocab.txt, one WordPiece token a line → 'bert'."""

from __future__ import annotations

import json
from itertools import pairwise

from ggferry.converters.tokenizers.building_blocks.added_tokens import Added, as_entry
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs, special_text
from ggferry.converters.tokenizers.files.tokenizer_json import word_piece
from ggferry.converters.tokenizers.libraries.cross_check import TOKENIZERS, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.errors import CorruptError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.limits import MAX_VOCAB


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the tokenizer of vocab.txt: one WordPiece token a line, whose number is its id."""
    path = inputs.sidecars.files["vocab.txt"]
    words = _words(path)
    return word_piece({word: token for token, word in enumerate(words)}, inputs.sidecars, inputs.added, path)


def _words(path: str) -> list[str]:
    words = read_text(path).split("\n")
    if words and not words[-1]:
        words.pop()
    words = [word.rstrip("\r") for word in words]
    if len(words) > MAX_VOCAB or "[UNK]" not in words:
        raise CorruptError("not a WordPiece vocabulary", path=path, found=f"{len(words)} lines", expected="[UNK] among")
    twice = next((a for a, b in pairwise(sorted(words)) if a == b), None)
    if twice is not None:
        raise CorruptError("duplicate WordPiece token", path=path, found=twice)
    return words


def reference(inputs: TokenizerInputs) -> ReferenceTokenizer:
    """Return tokenizers, with the steps that transformers' BertTokenizer takes for such files."""
    sidecars = inputs.sidecars
    config, path = sidecars.object("tokenizer_config.json"), sidecars.path("tokenizer_config.json")
    words = _words(sidecars.files["vocab.txt"])
    ids = {word: token for token, word in enumerate(words)}
    declared = [special_text(config, f"{role}_token", path) for role in ("unk", "cls", "sep", "pad", "mask")]
    named = {*filter(None, declared), "[UNK]", *(one.content for one in inputs.added)} & set(words)
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": json_kinds.flag(config, "strip_accents", path),
        "lowercase": json_kinds.flag(config, "do_lower_case", path, True),
    }
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": ids,
    }
    document = {
        "added_tokens": [as_entry(Added(ids[word], word, special=True)) for word in sorted(named, key=ids.__getitem__)],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": model,
    }
    return ReferenceTokenizer(TOKENIZERS, json.dumps(document).encode(), sidecars.files["vocab.txt"], inputs.added)


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path("vocab.txt") is not None


SOURCE = Source("vocab.txt", 50, "vocab.txt", _probe, load, reference)
