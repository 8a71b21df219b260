"""A vocabulary of GGUF as the files that stand beside a checkpoint: tokenizer.json, tokenizer.model or RWKV's text.

Chat templates are text and never rendered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ggferry.converters.hf_export.sentencepiece_file import sentencepiece_model
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.files.rwkv_world import KEY, WORLD
from ggferry.converters.tokenizers.legacy import clip_bpe, moses_bpe
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenType, split_merge
from ggferry.formats.errors import GgferryError, UnsupportedError
from ggferry.formats.gguf.values import Value
from ggferry.formats.json_files.kinds import JSONObject

Files = dict[str, bytes]
_CLASSES = {
    "llama": "LlamaTokenizer",
    "t5": "T5Tokenizer",
    "gpt2": "PreTrainedTokenizerFast",
    "bert": "BertTokenizer",
}
_PLAIN = {moses_bpe.MOSES: moses_bpe.CLASS, clip_bpe.CLIP: clip_bpe.CLASS}
"""Vocabularies that are two files and no more."""
_ADDED = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def tokenizer_files(tokenizer: Tokenizer, path: str) -> Files:
    """Return the files by name.

    Args:
        tokenizer: The vocabulary.
        path: The source's path, for errors.

    Raises UnsupportedError for a vocabulary that no such file can hold.
    """
    try:
        return {**_vocabulary(tokenizer, path), "tokenizer_config.json": as_json(_settings(tokenizer))}
    except UnsupportedError as error:
        error.hint = error.hint or "--no-vocab writes the tensors alone"
        error.path = error.path or path
        raise


def _vocabulary(tokenizer: Tokenizer, path: str) -> Files:
    if tokenizer.huggingface_json is not None:
        return {"tokenizer.json": tokenizer.huggingface_json.encode("utf-8", "surrogatepass")}
    match tokenizer.model:
        case "llama":
            return {"tokenizer.model": sentencepiece_model(tokenizer, path)}
        case "t5":
            return {"spiece.model": sentencepiece_model(tokenizer, path)}
        case "gpt2":
            return {"tokenizer.json": as_json(_byte_level(tokenizer))}
        case "bert":
            return {"tokenizer.json": as_json(_word_piece(tokenizer)), "vocab.txt": _lines(tokenizer)}
        case "rwkv":
            return {WORLD: _world(tokenizer)}
        case "none" if tokenizer.pre in _PLAIN:
            return _characters(tokenizer)
    raise UnsupportedError("no tokenizer file is known for this vocabulary", path=path, found=tokenizer.model)


def as_json(value: Any) -> bytes:
    """Return a JSON document; what is no UTF-8 is escaped."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, indent=2).encode() + b"\n"


# --- byte-level BPE -----------------------------------------------------------------------------------------


def _byte_level(tokenizer: Tokenizer) -> JSONObject:
    pre = find_pre(tokenizer.pre)
    if not pre.byte_level:
        raise UnsupportedError("pre-tokenizer of a vocabulary that is not byte-level", found=tokenizer.pre)
    letters = {
        "type": "ByteLevel",
        "add_prefix_space": tokenizer.flags.get("add_space_prefix", False),
        "trim_offsets": True,
        "use_regex": False,
    }
    cuts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in pre.chain
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre.ignore_merges,
        "vocab": {text: token for token, text in enumerate(tokenizer.tokens) if not _is_gap(tokenizer, token)},
        "merges": [list(split_merge(merge)) for merge in tokenizer.merges or ()],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokenizer),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, letters]},
        "post_processor": _framing(tokenizer) or {**letters, "type": "ByteLevel"},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def _is_gap(tokenizer: Tokenizer, token: int) -> bool:
    """Return whether this id has no token: a row of the embedding that nothing leads to."""
    return tokenizer.type_of(token) == TokenType.UNUSED and tokenizer.tokens[token].startswith(f"[PAD{token}]")


def _added(tokenizer: Tokenizer) -> list[JSONObject]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    blank = SPACE if tokenizer.model in ("llama", "t5") else " "  # as SentencePiece spells it, and GGUF does not
    return [
        {
            "id": token,
            "content": text.replace(" ", blank),
            **plain,
            "special": tokenizer.type_of(token) != TokenType.USER_DEFINED,
        }
        for token, text in enumerate(tokenizer.tokens)
        if tokenizer.type_of(token) in _ADDED and text
    ]


def _framing(tokenizer: Tokenizer) -> JSONObject | None:
    """Return the step that puts special tokens around a text; None where there are none."""
    before = [tokenizer.ids["bos"]] if tokenizer.flags.get("add_bos") and "bos" in tokenizer.ids else []
    after = [tokenizer.ids["eos"]] if tokenizer.flags.get("add_eos") and "eos" in tokenizer.ids else []
    between = [tokenizer.ids["sep"]] if tokenizer.model == "bert" and "sep" in tokenizer.ids else []
    if not before and not after:
        return None

    def special(tokens: list[int], kind: int = 0) -> list[JSONObject]:
        return [{"SpecialToken": {"id": tokenizer.tokens[token], "type_id": kind}} for token in tokens]

    first, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    middle = special(between or after) if tokenizer.model == "bert" else [*special(after), *special(before, 1)]
    named = {tokenizer.tokens[token]: token for token in (*before, *after, *between)}
    return {
        "type": "TemplateProcessing",
        "single": [*special(before), first, *special(after)],
        "pair": [*special(before), first, *middle, second, *special(after, 1)],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for text, token in named.items()},
    }


def _characters(tokenizer: Tokenizer) -> Files:
    """Return vocab.json and merges.txt; CLIP's begins with a line that its class passes over."""
    ids = {text: token for token, text in enumerate(tokenizer.tokens) if not _is_gap(tokenizer, token)}
    first = "#version: 0.2\n" if tokenizer.pre == clip_bpe.CLIP else ""
    lines = first + "".join(f"{merge}\n" for merge in tokenizer.merges or ())
    return {"vocab.json": as_json(ids), "merges.txt": lines.encode("utf-8", "surrogateescape")}


# --- WordPiece ------------------------------------------------------------------------------------------------


def _word_piece(tokenizer: Tokenizer) -> JSONObject:
    texts = [_spelled(tokenizer, token) for token in range(len(tokenizer.tokens))]
    lower = tokenizer.flags.get("lowercase", True)
    unknown = texts[tokenizer.ids["unk"]] if "unk" in tokenizer.ids else "[UNK]"
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokenizer),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": tokenizer.flags.get("strip_accents"),
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _framing(tokenizer),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: token for token, text in enumerate(texts) if not _is_gap(tokenizer, token)},
        },
    }


def _spelled(tokenizer: Tokenizer, token: int) -> str:
    """Return a WordPiece token as its own files spell it: '##' before what continues a word."""
    text = tokenizer.tokens[token]
    if tokenizer.type_of(token) != TokenType.NORMAL or (text.startswith("[") and text.endswith("]")):
        return text
    return text[1:] if text.startswith(SPACE) else f"##{text}"


def _lines(tokenizer: Tokenizer) -> bytes:
    texts = (_spelled(tokenizer, token) for token in range(len(tokenizer.tokens)))
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")


# --- RWKV World -----------------------------------------------------------------------------------------------


def _world(tokenizer: Tokenizer) -> bytes:
    """Return the vocabulary's text as it came, or made anew: GGUF spells tokens as Python's literals."""
    kept = tokenizer.extra.get(KEY)
    if isinstance(kept, Value) and isinstance(kept.data, str):
        return kept.data.encode()
    lines = []
    for token, text in enumerate(tokenizer.tokens):
        if token and not _is_gap(tokenizer, token):
            data = text.encode("utf-8").decode("unicode_escape").encode("latin-1")
            lines.append(f"{token} {data!r} {len(data)}\n")
    return "".join(lines).encode()


# --- what stands beside all of them -------------------------------------------------------------------------------


def _settings(tokenizer: Tokenizer) -> JSONObject:
    """Return tokenizer_config.json."""
    found: JSONObject = {}
    if tokenizer.model in _CLASSES:
        found["tokenizer_class"] = _CLASSES[tokenizer.model]
    elif tokenizer.pre in _PLAIN:
        found["tokenizer_class"] = _PLAIN[tokenizer.pre]
    for flag in ("add_bos", "add_eos"):
        if flag in tokenizer.flags:
            found[f"{flag}_token"] = tokenizer.flags[flag]
    if tokenizer.model == "bert":
        found["do_lower_case"] = tokenizer.flags.get("lowercase", True)
    if tokenizer.model == "llama":
        found |= {
            "add_prefix_space": tokenizer.flags.get("add_space_prefix", True),
            "legacy": True,
            "sp_model_kwargs": {},
        }
    found |= {f"{role}_token": tokenizer.tokens[tokenizer.ids[role]] for role in _NAMED if role in tokenizer.ids}
    found["clean_up_tokenization_spaces"] = False
    if tokenizer.model in ("llama", "t5", "gpt2", "bert"):
        found["added_tokens_decoder"] = {str(entry.pop("id")): entry for entry in _added(tokenizer)}
    if named := {name: text for name, text in tokenizer.templates.items() if name}:
        listed = [{"name": name, "template": text} for name, text in named.items()]
        default = [{"name": "default", "template": tokenizer.templates[""]}] if "" in tokenizer.templates else []
        found["chat_template"] = [*default, *listed]
    elif "" in tokenizer.templates:
        found["chat_template"] = tokenizer.templates[""]
    return found


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return what config.json says of special tokens."""
    return {f"{role}_token_id": tokenizer.ids[role] for role in ("bos", "eos", "pad") if role in tokenizer.ids}


def generation(tokenizer: Tokenizer) -> JSONObject:
    """Return generation_config.json: the special tokens, of ends all that end a text or a turn."""
    ids: Mapping[str, int] = tokenizer.ids
    ends = list(dict.fromkeys(ids[role] for role in ("eos", "eot", "eom") if role in ids))
    found: JSONObject = {"_from_model_config": True, **special_ids(tokenizer)}
    if ends:
        found["eos_token_id"] = ends if ends[1:] else ends[0]
    return found


def differences(source: Tokenizer, written: Tokenizer) -> tuple[str, ...]:
    """Return in what two vocabularies differ that a runtime may notice, in words; nothing where they are one.

    A SentencePiece model has an unknown piece where GGUF may call the same token a control token: no difference.
    """
    found = [
        name for name in ("model", "tokens", "merges", "charsmap") if getattr(source, name) != getattr(written, name)
    ]
    if source.templates != written.templates:
        found.append("chat templates")
    if source.pre != written.pre and not _same_pre(source.pre, written.pre):
        found.append(f"pre-tokenizer ({source.pre} and {written.pre})")
    if source.model in ("llama", "t5") and source.scores != written.scores:
        found.append("scores")
    found += [
        f"{role} token" for role in _NAMED if source.ids.get(role) != written.ids.get(role) and role in source.ids
    ]
    types = list(zip(source.types or (), written.types or (), strict=False))
    if (unknown := source.ids.get("unk", -1)) in range(len(types)):
        types[unknown] = types[unknown] if TokenType.UNKNOWN not in types[unknown] else (0, 0)
    changed = sum(a != b for a, b in types)
    return (*found, f"types of {changed} tokens") if changed else tuple(found)


def _same_pre(a: str | None, b: str | None) -> bool:
    try:
        one, other = find_pre(a), find_pre(b)
    except GgferryError:
        return False
    return (one.chain == other.chain and one.ignore_merges == other.ignore_merges) or a in (None, "default")
