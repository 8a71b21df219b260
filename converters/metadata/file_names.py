"""The GGUF naming convention: file names are made, parsed, and guessed from the names that legacy files go by.

`<BaseName>-<SizeLabel>-<FineTune>-<Version>-<Encoding>-<Type>-<Shard>.gguf`; the pattern and its five examples are the
GGUF specification's. How a name is divided into these parts follows today's converter
(docs/formats/todays-converter.md); what differs, and why:

* the size label is counted; a name's size word is only checked (a file called 7b may be anything);
* container and quantization words (ggmlv3, q4_0, GPTQ-4bit-128g, hf) say how the *source* was stored, so they go;
* words are split at `_` too (`open_llama_3b`), and `Phi.2` at the dot, but not `2.7b`;
* a leading size word is a size (`30B-Lazarus`), a dotted `v1.3` ends the base name (`gpt4all-j-v1.3-groovy`), a bare
  whole number is no version (`Llama-2` and `Llama-2-7b` have one base name).
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import cache, lru_cache
from itertools import pairwise
from urllib.parse import unquote

from ggferry.formats.reader import Kind, containers, model_suffixes
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class NameParts:
    """The components of a GGUF file name.

    A `version` of None is not stated; the specification then assumes v1.0.
    """

    base_name: str
    size_label: str | None = None
    fine_tune: str | None = None
    version: str | None = None
    encoding: str | None = None
    type: str | None = None
    shard: str | None = None


class NameOrigin(StrEnum):
    """Where the name of a model was found, in the words of receipts."""

    FILE = "file name"
    FOLDER = "directory name"
    REPOSITORY = "repository name"
    CONFIG = "config.json _name_or_path"
    ARCHITECTURE = "architecture"
    """Nowhere: the fallback is used."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What a path says about the model in it.

    Attributes:
        parts: The components of a file name. Its size label is the name's own size word where that agrees with the
            counted
            weights.
        name: The name for people ('Wizard Vicuna 30B Uncensored').
        organization: That of the repository, unless it only repacks other people's models (…-GGML, …-GPTQ).
        repository: 'org/name' when the path is one of Hugging Face's.
        origin: Where the name was found.
        notes: For the user: what was left out of the name or could not be used.
    """

    parts: NameParts
    name: str
    organization: str | None = None
    repository: str | None = None
    origin: NameOrigin = NameOrigin.FILE
    notes: tuple[str, ...] = ()


# The specification's own expression with three changes that leave its language and its captures alone: Python's
# spelling of groups; ASCII classes plus JavaScript's white space; and the all-digits segment starts with a digit, so
# that a segment of spaces matches in one way only (as printed, `a- - - -…` takes time exponential in its length).
_SPACE = r"\s\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SIZE = r"(?:\d+x)?(?:\d+\.)?\d+[A-Za-z](?:-[A-Za-z]+(?:\d+\.)?\d+[A-Za-z]+)?"
_CONVENTION = re.compile(
    rf"(?P<base_name>[A-Za-z0-9{_SPACE}]*(?:-(?:[A-Za-z{_SPACE}][A-Za-z0-9{_SPACE}]*|[0-9][0-9{_SPACE}]*|))*)-"
    rf"(?:(?P<size_label>{_SIZE})(?:-(?P<fine_tune>[A-Za-z0-9{_SPACE}-]+))?)?-"
    r"(?P<version>v\d+(?:\.\d+)*)(?:-(?P<encoding>(?!LoRA|vocab)[\w_]+))?"
    r"(?:-(?P<type>LoRA|vocab))?(?:-(?P<shard>\d{5}-of-\d{5}))?\.gguf",
    re.ASCII,
)
_LONGEST = 255  # bytes of a file name on every system that matters
_LONGEST_PATH = 4096


def parse_filename(name: str) -> NameParts | None:
    """Return the parts of a file name (without directories) that keeps the convention, else None.

    Captures are those of the specification's expression. Names longer than 255 characters are not file names.
    """
    match = _CONVENTION.fullmatch(name) if len(name) <= _LONGEST else None
    return None if match is None else NameParts(**match.groupdict())


def file_name(parts: NameParts) -> str:
    """Return the file name of a model.

    `parse_filename` accepts it, and it has only ASCII letters, digits and `-_.`, at most 241 characters. Spaces and
    everything unsafe become dashes (also the dot of 'Llama-3.1': the convention has none in a base name). Without a
    version it is v1.0; without a size label two dashes follow each other, as the convention demands. A size label or
    version that the convention cannot express is kept as a word of the fine tune, a fine tune without a size label as
    words of the base name. The mmproj file (type 'mmproj') has llama.cpp's name: that word first, no
    size label, and a version only if one is stated.
    """
    base, fine = [parts.base_name], [parts.fine_tune or ""]
    label, version = _upper_scale(parts.size_label or ""), _version(parts.version or "v1.0")
    if len(label) > 24 or not re.fullmatch(_SIZE, label, re.ASCII):
        base.append(label)
        label = ""
    if version is None:
        fine.append(parts.version or "")
        version = "v1.0"
    if not label:
        base, fine = base + fine, []
    elif "-" not in label and (active := re.match(r"[A-Za-z]{1,8}\d{1,4}\.\d{1,4}[A-Za-z](?=-|$)", fine[0], re.ASCII)):
        label, fine[0] = f"{label}-{active[0]}", fine[0][active.end() :]  # 14B-A2.7B is one label
    second = (parts.type or "").lower() == "mmproj"
    text = _dashed(base, 80, lead=True) or "model"
    tuned = _dashed(fine, 56)
    pieces = [text if second else f"{text}-{label}", *([tuned] if tuned else [])]
    pieces += [version] if parts.version or not second else []
    encoding = re.sub(r"\W+", "_", _ascii(parts.encoding or ""), flags=re.ASCII).strip("_").upper()
    if encoding:
        pieces.append(encoding[:24])
    kind = {"lora": "LoRA", "vocab": "vocab"}.get((parts.type or "").lower())
    if kind:
        pieces.append(kind)
    if re.fullmatch(r"\d{5}-of-\d{5}", parts.shard or "", re.ASCII):
        pieces.append(parts.shard or "")
    return "-".join(pieces) + ".gguf"


def shard_label(number: int, total: int) -> str:
    """Return the shard component: 3 of 9 → '00003-of-00009'. Numbers start at 1."""
    if not 1 <= number <= total <= 99999:
        raise ValueError(f"shard {number} of {total}")
    return f"{number:05}-of-{total:05}"


def size_label(parameters: int, experts: int = 0, expert_parameters: int = 0) -> str:
    """Return the size class of a model as today's converter prints it: 6 738 415 616 → '6.7B'.

    Args:
        parameters: Weights of all tensors.
        experts: Number of experts. With experts, the label is '<experts>x<the rest plus one expert>': Mixtral 8x7B has
            '8x7.2B'.
        expert_parameters: Weights of all routed experts together.
    """
    if experts > 0:
        return f"{experts}x{_rounded(parameters - expert_parameters + expert_parameters // experts)}"
    return _rounded(parameters)


def _rounded(count: int) -> str:
    scale, letter = next(((10.0**-e, c) for e, c in ((12, "T"), (9, "B"), (6, "M")) if count > 10**e), (1e-3, "K"))
    scaled = count * scale
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{letter}"


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _dashed(texts: list[str], limit: int, *, lead: bool = False) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _ascii("-".join(texts)))
    if lead:  # in a base name only the first segment may be digits before letters: '4bit' → '4-bit'
        words = words[:1] + [re.sub(r"^(\d+)(?=\D)", r"\1-", word) for word in words[1:]]
    return "-".join(words)[:limit].rstrip("-")


def _version(text: str) -> str | None:
    match = re.fullmatch(r"[vV]?(\d{1,6}(?:\.\d{1,6}){0,3})", text.strip(), re.ASCII)
    return f"v{match[1]}" if match else None


def _upper_scale(label: str) -> str:
    return re.sub(r"^[\dx.]+[kmbtq](?=-|$)", lambda match: match[0][:-1] + match[0][-1].upper(), label)


def visible(text: str) -> str:
    """Return `text` in NFC, with white space collapsed and without code points that are not visible.

    These are controls, zero-width and other format characters, lone surrogates, private and unassigned code points.
    """
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    shown = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    return unicodedata.normalize("NFC", " ".join(shown.split()))


_ENDINGS = "json|index|model|partial|part|tmp|old|orig|bak|zip|tar|gz"
"""Endings of names of files, besides those of the containers."""


@cache
def _extensions() -> re.Pattern[str]:
    """Return a pattern of the end of a file's name that says what kind of file it is."""
    ends = "|".join((*(re.escape(suffix[1:]) for suffix in model_suffixes()), _ENDINGS))
    return re.compile(rf"(?:\.(?:{ends})(?:\.\d{{1,3}})?)+$", re.IGNORECASE | re.ASCII)


@cache
def _storage() -> re.Pattern[str]:
    """Return a pattern of words that say how a model is stored, and nothing about the model."""
    words = [one for one in containers().values() if one.storage_word]
    named = "|".join(re.escape(one.name) + ("" if one.kind is Kind.TRAINING else r"(?:v?\d)?") for one in words)
    return re.compile(
        rf"(?<![^\W_])(?:{named}|"
        r"i?q\d(?:_(?:\d|k|xxs|xs|nl|s|m|l|some_f16))*|tq\d_\d|(?:mx|nv)?fp4|nf4|int[48]|"  # block types
        r"b?f(?:p|loat)?(?:8|16|32)|"  # number types
        r"\d{1,2}-?bits?(?:-\d{1,4}g)?|(?:32|64|128|1024)g|gptq|awq|exl2|bnb|(?:no-)?act-?order|quanti[sz]ed|"
        r"\d{5}-of-\d{5}|part\d+of\d+|split-[a-z]"  # pieces
        r")(?![^\W_])",
        re.IGNORECASE | re.ASCII,
    )


_VERSION_WORD = re.compile(r"v\d{1,3}(?:\.\d{1,4}){0,3}|\d{1,3}(?:\.\d{1,4}){1,3}", re.IGNORECASE | re.ASCII)
_GENERIC = re.compile(
    r"(?:(?:pytorch |adapter |tf |flax |lit )?models?(?: fsdp)?|metadata|(?:global )?steps?\d{0,12}|"
    r"(?:(?:bf16 |fp16 )?zero pp rank \d+ )?mp rank \d+ (?:model|optim) states|adapter|"
    r"mp rank|iter|release|model optim rng|"
    r"consolidated|weights?|checkpoints?|ckpt|original|params|"
    r"config|tokenizer|vocab|merged|final|latest|output|out|snapshots?|blobs?|resolve|main|raw|hub|files?|downloads?|"
    r"uploads?|content|data|te?mp|workspace|root|home|users|mnt|media|opt|srv|usr|var|share|desktop|documents|[a-z]:?|"
    r"tmp[a-z0-9 ]{8}|[0-9a-f]{12,64})(?: \d+)*",
    re.IGNORECASE | re.ASCII,
)
_REPOSITORY = (
    re.compile(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)(?:/snapshots/[^/]+)?(?=/|$)", re.ASCII),
    re.compile(
        r"^(?:hf://|https?://huggingface\.co/)([\w.-]+)/([\w.-]+)(?:/(?:resolve|blob|tree|raw)/[^/]+)?(?=/|$)", re.ASCII
    ),
)


@lru_cache(256)  # the same name is asked for again and again within one model
def guess(
    path: str | os.PathLike[str], *, parameters: int = 0, adapter: bool = False, fallback: str = "model"
) -> Guess:
    """Return what the path of a legacy file, a checkpoint or its directory says about the model.

    Only the text of the path is read, so pass an absolute path where the directory's name may count:
    'ggml-model-q4_0.bin' says nothing, but its directory does. At most two levels up are considered, and never a home
    directory.

    Args:
        path: The path.
        parameters: The counted weights, against which size words are checked; 0 if unknown, then all are believed.
        adapter: Whether it is an adapter, which may be any times smaller than the model that it names.
        fallback: The base name where the path gives none, as a rule the architecture.
    """
    names, repository = _candidates(os.fsdecode(path)[-_LONGEST_PATH:])
    organization, _, name = (repository or "").partition("/")
    organization = "" if _storage().search(name) else organization  # who repacked it is not who made it
    convention = parse_filename(visible(names[0])) if names else None
    if convention and not _GENERIC.fullmatch(convention.base_name.replace("-", " ").removeprefix("ggml ")):
        parts = replace(convention, encoding=None, shard=None)
        known = (parts.base_name, parts.size_label, parts.fine_tune)
        words = [word for text in known if text for word in text.split("-") if word]
        return Guess(parts, title(words), organization or None, repository)
    words, dropped, level = _usable(names)
    tagged, notes = _tag(words, _agreement(parameters, adapter), parameters)
    if level:
        notes = [f"the file name does not name the model; its directory {names[level]!r} does", *notes]
    if dropped:
        notes.append(f"ignored in file name (storage type): {', '.join(dropped)}")
    origin = NameOrigin.FILE if level == 0 and names and _extensions().search(names[0]) else NameOrigin.FOLDER
    if not any(tag == "base" for tag, _ in tagged):
        tagged.insert(0, ("base", visible(fallback) or "model"))
        notes.append(f"the path does not name the model; called {tagged[0][1]!r}")
        origin = NameOrigin.ARCHITECTURE
    elif repository and level == len(names) - 1:
        origin = NameOrigin.REPOSITORY
    return Guess(_parts(tagged), title([w for _, w in tagged]), organization or None, repository, origin, tuple(notes))


def shown_name(path: str | os.PathLike[str]) -> str:
    """Return the part of a source's path that may be published.

    That is the last component, with the Hugging Face repository it lies in: no query of an address (it may be a
    signature), no directories of a machine, no name of a home directory.
    """
    names, repository = _candidates(os.fsdecode(path)[-_LONGEST_PATH:])
    if repository:
        return visible(repository if len(names) == 1 else f"{repository}/{names[0]}")
    last = _slashed(os.fsdecode(path)).rstrip("/").rpartition("/")[2]
    return visible(last) if names and names[0] == last else "a directory"


def _slashed(path: str) -> str:
    return (unquote(re.split(r"[?#]", path, maxsplit=1)[0]) if "://" in path else path).replace("\\", "/")


def _candidates(path: str) -> tuple[list[str], str | None]:
    """Return the names to try, best first, and the Hugging Face repository the path lies in."""
    path = _slashed(path)
    for pattern in _REPOSITORY:
        match = pattern.search(path)
        if match:
            below = [part for part in path[match.end() :].split("/") if part]
            return [*below[::-1][:2], match[2]], f"{match[1]}/{match[2]}"
    parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
    people = {part for above, part in pairwise(parts) if above.lower() in {"home", "users"}}
    if parts and _extensions().search(parts[-1]):
        people.discard(parts[-1])
    return [part for part in reversed(parts) if part not in people][:3], None


def _usable(names: list[str]) -> tuple[list[str], list[str], int]:
    """Return the words of the first candidate that names a model, the storage words dropped before, and its position.

    Sizes found before it ('llama/7B/ggml-model-q4_0.bin') are appended to the words.
    """
    dropped: list[str] = []
    sizes: list[str] = []
    for level, name in enumerate(names):
        words, storage = _words(name)
        dropped += [word for word in storage if word not in dropped]
        if all(_size_word(word) or not any(c.isalpha() for c in word) for word in words):
            sizes += [word for word in words if _size_word(word)]
        elif not _GENERIC.fullmatch(" ".join(words)):
            missing = [] if any(_size_word(word) for word in words) else sizes[:1]
            return words + missing, dropped, level
    return sizes[:1], dropped, 0


def _words(name: str) -> tuple[list[str], list[str]]:
    """Return the words of one path component, and the storage words found among them."""
    stem = _extensions().sub("", visible(name).lstrip("."))
    storage = _storage().findall(stem)
    stem = re.sub(r"(?<![^\W_])(\d)_(?=\d+[bm](?![^\W_]))", r"\1.", _storage().sub(" ", stem), flags=re.I)  # 1_3b
    found = re.split(r"[-_\s+,;:()\[\]{}'\"!?&~=@#]+|(?<!\d)\.|\.(?!\d)", stem)
    words = [word for word in found if any(c.isalnum() for c in word)]
    if len(words) > 1 and words[-1].lower() == "hf":  # stored by transformers
        storage.append(words.pop())
    return words, storage


def _size_word(word: str) -> str | None:
    """Return the size label a word spells: '7b' → '7B', '7b1' → '7.1B', '8X7B' → '8x7B', '560m' → '560M'; else None."""
    match = re.fullmatch(r"(?:(\d{1,4})x)?(\d{1,4}(?:\.\d{1,4})?)([kmbt])(\d?)", word, re.IGNORECASE | re.ASCII)
    if match is None or (match[4] and "." in match[2]):
        return None
    experts, count, scale, tail = match.groups()
    return f"{experts + 'x' if experts else ''}{count}{'.' + tail if tail else ''}{scale.upper()}"


def _agreement(parameters: int, adapter: bool) -> Callable[[str], bool]:
    """Return a function that says whether a label may be the size of so many weights.

    They must be within 7/8 of each other either way, as in today's tool.
    """

    def agrees(label: str) -> bool:
        experts, _, count = label.rpartition("x")
        declared = int(experts or 1) * float(count[:-1]) * 1000.0 ** " KMBT".index(count[-1])
        if adapter:
            return declared >= parameters // 8
        return parameters == 0 or abs(declared - parameters) <= 7 * parameters // 8

    return agrees


def _tag(words: list[str], agrees: Callable[[str], bool], parameters: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Classify every word as 'base', 'size', 'fine' or 'version'."""
    tagged: list[tuple[str, str]] = []
    notes = []
    start = True  # still in the base name
    for word in words:
        tags = {tag for tag, _ in tagged}
        label = _size_word(word)
        version = _VERSION_WORD.fullmatch(word)
        if label and agrees(label):
            if ("size", label) not in tagged:
                tagged.append(("fine" if "size" in tags else "size", label))
            start = start and "base" not in tags
        elif label:
            notes.append(f"{word!r} in the name is not the size of {parameters} weights; kept in the fine tune")
            tagged.append(("fine", word))
            start = start and "base" not in tags
        elif version and (not start or re.match(r"v.*\.", word, re.IGNORECASE)):
            tagged.append(("version", word))
            start = start and "base" not in tags
        elif tagged and re.fullmatch(r"chat|instruct|vision|lora|a\d+(?:\.\d+)?[bm]", word, re.IGNORECASE):
            tagged.append(("fine", word))
            start = False
        else:
            tagged.append(("base" if start else "fine", word))
    if len(tagged) > 1 and tagged[-1][0] == "base" and _VERSION_WORD.fullmatch(tagged[-1][1]):
        tagged[-1] = ("version", tagged[-1][1])
    versions = [index for index, (tag, _) in enumerate(tagged) if tag == "version"]
    named = [index for index in versions if tagged[index][1][0] in "vV"] or versions
    for index in versions:
        if index != named[-1]:
            tagged[index] = ("fine", tagged[index][1])
    return tagged, notes


def _parts(tagged: list[tuple[str, str]]) -> NameParts:
    def joined(tag: str) -> str | None:
        return "-".join(word for found, word in tagged if found == tag) or None

    version = joined("version")
    return NameParts(joined("base") or "", joined("size"), joined("fine"), version and _version(version))


def title(words: list[str]) -> str:
    """Return the words of a name for people: lower-case ones get a capital, versions do not."""
    lower = [word.islower() and not re.match(r"v\d", word) for word in words]
    shown = (word[0].upper() + word[1:] if small else word for word, small in zip(words, lower, strict=True))
    return " ".join(word for word in shown if word)
