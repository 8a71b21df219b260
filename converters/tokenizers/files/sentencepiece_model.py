"""Read SentencePiece's tokenizer.model or spiece.model of a checkpoint → 'llama' or 't5'."""

from __future__ import annotations

from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import read_model
from ggferry.converters.tokenizers.encoders import sentencepiece_bpe as spm
from ggferry.converters.tokenizers.encoders import unigram
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, Wanted
from ggferry.converters.tokenizers.libraries.testimony import SENTENCEPIECE, Witness
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.files.local_files import read_bytes

NAMES = ("tokenizer.model", "spiece.model")


def _path(sidecars: Sidecars) -> str | None:
    return next((path for name in NAMES if (path := sidecars.path(name)) is not None), None)


def load(wanted: Wanted) -> Tokenizer:
    """Return the tokenizer of the model file. Raises as `sentencepiece_proto.read_model` does."""
    source = read_model(_path(wanted.sidecars) or "")
    tokenizer = spm.from_model(source) if source.model_type == "bpe" else unigram.from_model(source)
    return with_added(tokenizer, wanted.added)


def witness(wanted: Wanted) -> Witness:
    """Return SentencePiece itself."""
    path = _path(wanted.sidecars)
    return Witness(SENTENCEPIECE, read_bytes(path or ""), path, wanted.added)


SOURCE = Source("sentencepiece", 20, " or ".join(NAMES), lambda sidecars: _path(sidecars) is not None, load, witness)
