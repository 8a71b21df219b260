"""Read the SentencePiece unigram of an XLM-RoBERTa, whose tokens are numbered as fairseq does → 't5'.

fairseq puts <s>, <pad>, </s> and <unk> first and every other piece one place further on. Source: transformers
`tokenization_xlm_roberta.py`; llama.cpp `conversion/bert.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import SentencePieceModel, read_model
from ggferry.converters.tokenizers.encoders import unigram
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, Wanted
from ggferry.converters.tokenizers.libraries.testimony import FAIRSEQ, Witness
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.files.local_files import read_bytes

CLASSES = ("XLMRobertaTokenizer", "XLMRobertaTokenizerFast")
MODELS = ("xlm-roberta", "xlm-roberta-xl")
FIRST = ("<s>", "<pad>", "</s>", "<unk>")
TYPES = (TokenType.CONTROL, TokenType.CONTROL, TokenType.CONTROL, TokenType.UNKNOWN)
TRAINED = 3
"""Pieces of the model file, none of them of text, in whose place those of FIRST come."""
ROLES = {"bos": 0, "pad": 1, "eos": 2, "unk": 3}
ORIGIN = "fairseq's order"


def _model(sidecars: Sidecars) -> str | None:
    named = sidecars.text("tokenizer_config.json", "tokenizer_class") in CLASSES
    return sidecars.path("tokenizer.model") if named or sidecars.text("config.json", "model_type") in MODELS else None


def load(wanted: Wanted) -> Tokenizer:
    """Return the tokenizer in fairseq's order, which frames a text with <s> and </s>.

    Raises UnsupportedError for a model file that is no unigram or begins with other pieces, otherwise as
    `sentencepiece_proto.read_model` does.
    """
    path = _model(wanted.sidecars) or ""
    source = read_model(path)
    _check(source, path)
    found, kept = unigram.from_model(source), slice(TRAINED, None)
    return with_added(
        replace(
            found,
            tokens=(*FIRST, *found.tokens[kept]),
            scores=(*(0.0 for _ in FIRST), *(found.scores or ())[kept]),
            types=(*TYPES, *(found.types or ())[kept]),
            ids=ROLES,
            flags={**found.flags, "add_bos": True, "add_eos": True},
            origins={**found.origins, **dict.fromkeys((*ROLES, "add_bos", "add_eos"), ORIGIN)},
        ),
        wanted.added,
    )


def _check(source: SentencePieceModel, path: str) -> None:
    first = source.pieces[:TRAINED]
    if source.model_type != "unigram" or any(piece.type == TokenType.NORMAL for piece in first):
        raise UnsupportedError(
            "an XLM-RoBERTa numbers its tokens otherwise than its model file, which does not begin as fairseq's do",
            path=path, found=f"{source.model_type}: {[piece.text for piece in first]}",
            expected="a unigram of <unk>, <s>, </s> and more",
        )  # fmt: skip


def witness(wanted: Wanted) -> Witness:
    """Return SentencePiece, whose numbers the library's side brings into fairseq's order."""
    path = _model(wanted.sidecars)
    return Witness(FAIRSEQ, read_bytes(path or ""), path, wanted.added)


SOURCE = Source(
    "fairseq", 15, "sentencepiece.bpe.model", lambda sidecars: _model(sidecars) is not None, load, witness
)  # fmt: skip
