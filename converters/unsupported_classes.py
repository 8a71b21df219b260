"""What to say of a class that no table lists: why it is not read, or which known models its weights are nearest to.

The reasons are for classes that today's converter knows (`benchmarks/convert_hf_to_gguf_classes.json`), and for those
of transformers that one might expect to be read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch

from ggferry.converters.model_graph.config_keys import GENERAL
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError

HOWTO = "docs/tables.md says how a family is added"
NAMED = 3
"""How many classes, tensors or keys a message names."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

REASONS: Mapping[str, str] = {
    "DistilBertForSequenceClassification": "its classifier has a ReLU, for which llama.cpp has no word",
    "Rwkv5ForCausalLM": "no GGUF architecture has RWKV-5's time mix: llama.cpp knows RWKV-6 and RWKV-7",
    "NanoChatForCausalLM": "no GGUF architecture norms without weights, turns before it norms queries and keys, "
    "squares a relu and caps logits",
    "FlexOlmoForCausalLM": "no GGUF architecture has experts with OLMo 2's norms behind them",
    "VaultGemmaForCausalLM": "no GGUF architecture has Gemma 2's caps without the norms behind its branches",
    "PersimmonForCausalLM": "no GGUF architecture norms queries and keys by layer norms with biases, turns a part of "
    "each head and squares a relu",
    "XGLMForCausalLM": "no GGUF architecture with its graph computes positions as sines",
    "UltravoxModel": "its text model is a checkpoint of its own, which is converted; of this one `ggferry convert "
    "FOLDER` writes the audio encoder, as --mmproj only does",
}

ENDINGS: Mapping[str, str] = {
    "ForSequenceClassification": "a classifier of texts: llama.cpp runs those of BERT and its kin, ModernBERT, NeoBERT "
    "and Qwen3 alone, and its other architectures have no place for one",
    "ForTokenClassification": "a classifier of tokens, which llama.cpp has no graph for",
    "ForQuestionAnswering": "a head that marks where an answer stands, which llama.cpp has no graph for",
    "ForMultipleChoice": "a head that chooses among texts, which llama.cpp has no graph for",
}
"""Why classes that end so are not read, where no table lists them."""


def refusal(named: Iterable[str], checkpoint: Checkpoint, known: Mapping[str, Architecture]) -> UnsupportedError:
    """Return the error for a configuration whose classes no table lists.

    It gives the reason, where there is one. Otherwise it names the classes of the nearest names, and the family whose
    tensors are nearest, with what differs there.
    """
    for name in named:
        reason = REASONS.get(name) or next((why for end, why in ENDINGS.items() if name.endswith(end)), "")
        if reason:
            return UnsupportedError(reason, path=checkpoint.path, found=name)
    classes = sorted({name for spec in known.values() for name in spec.hf_classes})
    close = [one for name in named for one in difflib.get_close_matches(name, classes, NAMED, 0.7)]
    parts = [f"classes with a name like it: {', '.join(dict.fromkeys(close))}"] if close else []
    return UnsupportedError(
        "the model class in config.json is not supported",
        path=checkpoint.path,
        found=", ".join(named),
        hint="; ".join([*parts, *_nearest(checkpoint, known), HOWTO]),
    )


def _nearest(checkpoint: Checkpoint, known: Mapping[str, Architecture]) -> list[str]:
    """Return a sentence on the family that has a role for the most tensors, if it has one for at least half of them.

    Tensors that differ only in the numbers of blocks and experts count as one.
    """
    names = {_opened(name) for name in checkpoint.tensors}
    declared = str(checkpoint.metadata.get("model_type")).replace("_", "-")
    found = [
        (
            len(names & _patterns(spec, dialect)),
            -len(_unread(checkpoint, spec, dialect)),
            spec.name.replace("_", "-") == declared,
            spec.name,
            dialect.name,
        )
        for spec in known.values()
        for dialect in spec.dialects
        if dialect.source == "hf"
    ]
    most, _, _, family, dialect_name = max(found)
    if 2 * most < len(names) or not names:
        return []
    spec, dialect = known[family], known[family].dialect(dialect_name)
    apart = sorted(names - _patterns(spec, dialect))
    unread = _unread(checkpoint, spec, dialect)
    reasons = [f"{most} of {len(names)} kinds of tensors are {spec.name}'s"]
    reasons += [f"not so {_some(apart)}"] if apart else []
    reasons += [f"keys it does not read: {_some(unread)}"] if unread else []
    return [", ".join(reasons)]


def _opened(name: str) -> str:
    return _NUMBER.sub("{}", name)


def _patterns(spec: Architecture, dialect: Dialect) -> set[str]:
    """Return the names of the dialect's tensors, with all numbers left open, renamed back where prefixes differ."""
    found = set()
    for role in spec.roles:
        origin = role.sources.get(dialect.column)
        for pattern in origin.patterns if origin else ():
            found.add(_opened(pattern.replace("{n}", "0").replace("{e}", "0")))
    return found


def _unread(checkpoint: Checkpoint, spec: Architecture, dialect: Dialect) -> list[str]:
    """Return the keys of the configuration that the family neither reads nor calls harmless."""
    inner = checkpoint.metadata.get(dialect.config_section) if dialect.config_section else None
    config = inner if isinstance(inner, Mapping) else checkpoint.metadata
    places = [place for param in spec.hparams for place in param.fields.get(dialect.source, "").split("|")]
    ignored = [pattern for entry in (*GENERAL, *dialect.ignored_keys) for pattern in entry.keys.split()]
    read = [*(place.partition(".")[0] for place in places), *ignored]
    return sorted(key for key in config if not any(fnmatch(key, pattern) for pattern in read))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
