"""Read SentencePiece's tokenizer.model or spiece.model of a checkpoint → 'llama' or 't5'.

An XLM-RoBERTa numbers the pieces as fairseq does: <s>, <pad>, </s> and <unk> first, every other piece one place further
on than in the file. Source: transformers `tokenization_xlm_roberta.py`; llama.cpp `conversion/bert.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import SentencePieceModel, read_model
from ggferry.converters.tokenizers.encoders import sentencepiece_bpe as spm
from ggferry.converters.tokenizers.encoders import unigram
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.libraries.cross_check import FAIRSEQ, SENTENCEPIECE, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.checkpoint_folder.sidecars import MISTRAL
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.files.local_files import read_bytes

NAMES = ("tokenizer.model", "spiece.model", *MISTRAL)
CLASSES = ("XLMRobertaTokenizer", "XLMRobertaTokenizerFast")
MODELS = ("xlm-roberta", "xlm-roberta-xl")
FIRST = ("<s>", "<pad>", "</s>", "<unk>")
TYPES = (TokenType.CONTROL, TokenType.CONTROL, TokenType.CONTROL, TokenType.UNKNOWN)
TRAINED = 3
"""Pieces of an XLM-RoBERTa's model file, none of them of text, in whose place those of FIRST come."""
ROLES = {"bos": 0, "pad": 1, "eos": 2, "unk": 3}
ORIGIN = "fairseq's order"


def _path(sidecars: Sidecars) -> str | None:
    return next((path for name in NAMES if (path := sidecars.path(name)) is not None), None)


def _as_fairseq(sidecars: Sidecars) -> bool:
    """Return whether the model numbers the pieces as fairseq does."""
    named = sidecars.text("tokenizer_config.json", "tokenizer_class") in CLASSES
    return named or sidecars.text("config.json", "model_type") in MODELS


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the tokenizer of the model file.

    Raises UnsupportedError for an XLM-RoBERTa whose file fairseq would not number, otherwise as
    `sentencepiece_proto.read_model` does.
    """
    path = _path(inputs.sidecars) or ""
    source = read_model(path)
    tokenizer = spm.from_model(source) if source.model_type == "bpe" else unigram.from_model(source)
    if _as_fairseq(inputs.sidecars):
        tokenizer = _renumbered(tokenizer, source, path)
    return with_added(tokenizer, inputs.added)


def _renumbered(found: Tokenizer, source: SentencePieceModel, path: str) -> Tokenizer:
    """Return the tokenizer in fairseq's order, which frames a text with <s> and </s>."""
    first = source.pieces[:TRAINED]
    if source.model_type != "unigram" or any(piece.type == TokenType.NORMAL for piece in first):
        raise UnsupportedError(
            "the pieces of an XLM-RoBERTa do not begin as fairseq's, whose order of ids the class has",
            path=path,
            found=f"{source.model_type}: {[piece.text for piece in first]}",
            expected="a unigram of <unk>, <s>, </s> and more",
        )
    kept = slice(TRAINED, None)
    return replace(
        found,
        tokens=(*FIRST, *found.tokens[kept]),
        scores=(*(0.0 for _ in FIRST), *(found.scores or ())[kept]),
        types=(*TYPES, *(found.types or ())[kept]),
        ids=ROLES,
        flags={**found.flags, "add_bos": True, "add_eos": True},
        origins={**found.origins, **dict.fromkeys((*ROLES, "add_bos", "add_eos"), ORIGIN)},
    )


def reference(inputs: TokenizerInputs) -> ReferenceTokenizer:
    """Return SentencePiece itself; an XLM-RoBERTa's numbers are brought into fairseq's order beside it."""
    path = _path(inputs.sidecars)
    library = FAIRSEQ if _as_fairseq(inputs.sidecars) else SENTENCEPIECE
    return ReferenceTokenizer(library, read_bytes(path or ""), path, inputs.added)


SOURCE = Source(
    "sentencepiece",
    20,
    "tokenizer.model or spiece.model",
    lambda sidecars: _path(sidecars) is not None,
    load,
    reference,
)
