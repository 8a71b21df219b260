"""tokenizer.model or spiece.model of SentencePiece beside a checkpoint → 'llama' or 't5'."""

from __future__ import annotations

from ggferry.converters.tokenizers import spm, unigram
from ggferry.converters.tokenizers.base import Tokenizer
from ggferry.converters.tokenizers.hf_config import Sidecars, Source, Wanted
from ggferry.converters.tokenizers.repairs import with_added
from ggferry.converters.tokenizers.spm_file import read_model

NAMES = ("tokenizer.model", "spiece.model")


def _path(sidecars: Sidecars) -> str | None:
    return next((path for name in NAMES if (path := sidecars.path(name)) is not None), None)


def load(wanted: Wanted) -> Tokenizer:
    """The tokenizer of the model file. Raises as `spm_file.read_model` does."""
    source = read_model(_path(wanted.sidecars) or "")
    tokenizer = spm.from_model(source) if source.model_type == "bpe" else unigram.from_model(source)
    return with_added(tokenizer, wanted.added)


SOURCE = Source("sentencepiece", 20, " or ".join(NAMES), lambda sidecars: _path(sidecars) is not None, load)
