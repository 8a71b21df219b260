"""From the files beside a checkpoint to its tokenizer: which file tells, and in which order they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ggferry.converters.tokenizers import spm, unigram
from ggferry.converters.tokenizers.base import Tokenizer
from ggferry.converters.tokenizers.hf_bpe import Added
from ggferry.converters.tokenizers.hf_config import Sidecars, added_tokens, with_flags, with_roles, with_templates
from ggferry.converters.tokenizers.hf_json import load_json_tokenizer, word_piece
from ggferry.converters.tokenizers.repairs import distinct, with_added
from ggferry.converters.tokenizers.rwkv import load_world
from ggferry.converters.tokenizers.sidecar import read_bytes, read_text
from ggferry.converters.tokenizers.spm_file import read_model
from ggferry.converters.tokenizers.tiktoken import is_tiktoken, load_tiktoken
from ggferry.formats.errors import CorruptError, MissingError, UnsupportedError
from ggferry.formats.limits import MAX_VOCAB

# Classes whose slow tokenizer reads vocab.json and merges.txt, and the pre-tokenizer each hard-codes
# (transformers, models/*/tokenization_*.py)
SLOW_BPE: Mapping[str, str] = {
    "GPT2Tokenizer": "gpt-2", "CodeGenTokenizer": "gpt-2", "RobertaTokenizer": "gpt-2", "BartTokenizer": "gpt-2",
    "WhisperTokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2",
}  # fmt: skip
APPENDS_EOS = ("T5Tokenizer", "T5TokenizerFast")
WORLD = "rwkv_vocab_v20230424.txt"
NO_SPACE_PREFIX = ("gemma",)  # model types whose tokenizer puts no space in front (GemmaTokenizer of transformers)


def load(
    where: str | Mapping[str, str], *, rows: int | None = None, pre: str | None = None, keep_json: bool = False,
    trim: bool = False,
) -> Tokenizer:  # fmt: skip
    """The tokenizer of a checkpoint directory, or of its sidecar files (any role → path).

    `rows`: rows of the embedding, to which the vocabulary is brought (`Tokenizer.padded`). `pre`: overrides the
    derived pre-tokenizer. `keep_json`: carry tokenizer.json along as `tokenizer.huggingface.json`.
    Raises MissingError when no file tells the vocabulary (H04), otherwise as each loader says.
    """
    sidecars = Sidecars.of(where)
    added = added_tokens(sidecars)
    tokenizer = _vocabulary(sidecars, added, rows, pre)
    tokenizer = _by_class(tokenizer, sidecars)
    tokenizer = with_templates(with_flags(with_roles(tokenizer, sidecars), sidecars), sidecars)
    tokenizer = distinct(tokenizer)
    whole = sidecars.path("tokenizer.json")
    if keep_json and whole is not None:
        tokenizer = replace(tokenizer, huggingface_json=read_text(whole))
    return tokenizer if rows is None else tokenizer.padded(rows, trim=trim, path=sidecars.place)


def _vocabulary(sidecars: Sidecars, added: Sequence[Added], rows: int | None, pre: str | None) -> Tokenizer:
    model = sidecars.path("tokenizer.model") or sidecars.path("spiece.model")
    if model is not None:
        if is_tiktoken(read_bytes(model)[:4096]):
            later = bool(sidecars.object("params.json").get("use_scaled_rope", True))
            return with_added(load_tiktoken(model, rows=rows, later=later), added)
        source = read_model(model)
        convert: Callable[..., Tokenizer] = spm.from_model if source.model_type == "bpe" else unigram.from_model
        return with_added(convert(source), added)
    if sidecars.path("tokenizer.json") is not None:
        return load_json_tokenizer(sidecars, added, pre)
    if sidecars.path("vocab.json") is not None and sidecars.path("merges.txt") is not None:
        return _slow_bpe(sidecars, added, pre)
    if sidecars.path("vocab.txt") is not None:
        return _word_list(sidecars, added)
    world = sidecars.path(WORLD)
    if world is not None:
        return load_world(world)
    raise MissingError(
        "no file tells the vocabulary", path=sidecars.place,
        expected=f"tokenizer.model, spiece.model, tokenizer.json, vocab.json with merges.txt, vocab.txt or {WORLD}",
    )  # fmt: skip


def _by_class(tokenizer: Tokenizer, sidecars: Sidecars) -> Tokenizer:
    """What the tokenizer's class does and no file states."""
    flags, origins = dict(tokenizer.flags), dict(tokenizer.origins)
    name = str(sidecars.object("tokenizer_config.json").get("tokenizer_class"))
    if name in APPENDS_EOS:
        flags["add_eos"], origins["add_eos"] = True, name
    family = str(sidecars.object("config.json").get("model_type"))
    if tokenizer.model == "llama" and family.startswith(NO_SPACE_PREFIX):
        flags["add_space_prefix"], origins["add_space_prefix"] = False, f"model_type {family}"
    return replace(tokenizer, flags=flags, origins=origins)


def _slow_bpe(sidecars: Sidecars, added: Sequence[Added], pre: str | None) -> Tokenizer:
    """vocab.json and merges.txt: a tokenizer.json in two files, whose pre-tokenizer only the class knows."""
    name = str(sidecars.object("tokenizer_config.json").get("tokenizer_class", "")).removesuffix("Fast")
    known = pre or SLOW_BPE.get(name)
    if known is None:
        raise UnsupportedError(
            "vocab.json and merges.txt do not say how text is cut into words, and the class is not known here",
            path=sidecars.path("vocab.json"), found=name or "no tokenizer_class", expected=", ".join(SLOW_BPE),
            hint="--pre NAME",
        )  # fmt: skip
    path = sidecars.files["merges.txt"]
    lines = read_text(path).split("\n")
    merges = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    document = {
        "model": {"type": "BPE", "vocab": sidecars.object("vocab.json"), "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    }
    joined = Sidecars({**sidecars.files, "tokenizer.json": path})
    joined.preset("tokenizer.json", document)
    tokenizer = load_json_tokenizer(joined, added, known)
    origin = "--pre" if pre else f"class {name}"
    return replace(tokenizer, origins={**tokenizer.origins, "pre": origin})


def _word_list(sidecars: Sidecars, added: Sequence[Added]) -> Tokenizer:
    """vocab.txt: one WordPiece token a line, the line's number its id."""
    path = sidecars.files["vocab.txt"]
    words = read_text(path).split("\n")
    if words and not words[-1]:
        words.pop()
    words = [word.rstrip("\r") for word in words]
    if len(words) > MAX_VOCAB or "[UNK]" not in words:
        raise CorruptError("not a WordPiece vocabulary", path=path, found=f"{len(words)} lines", expected="[UNK] among")
    twice = next((a for a, b in pairwise(sorted(words)) if a == b), None)
    if twice is not None:
        raise CorruptError("a WordPiece token twice", path=path, found=twice)
    return word_piece({word: token for token, word in enumerate(words)}, sidecars, added, path)
