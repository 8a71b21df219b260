"""Account for every key of a configuration: it is read, it is harmless for a stated reason, or a note calls it unread.

`Recorded` remembers what was asked for while a model was bound. Keys that nobody asked for are compared with two
tables: `GENERAL` in this module, and `Dialect.harmless` next to the architecture. Sources: transformers'
`PretrainedConfig` (versions 4 and 5) and `configuration_*.py` of the classes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from ggferry.converters.schema.architecture import Dialect, IgnoredKey
from ggferry.converters.schema.derivations import derive
from ggferry.formats.checkpoint_folder.modules import DENSE, ORDER, POOLING, SCORED_BY

NOTHING = object()
"""Stands for an absent member; null is a value."""
MAX_LISTED, LONGEST = 64, 80
"""How many keys a note names at most, and how many characters of each."""

_TRAINED = "used in training only"
_BEFORE = "used before training only"
_HOW = "how it is computed, not what"
_TOKENS = "read with the tokenizer"
_SAMPLED = "how text is sampled, not the model"
GENERAL = (
    IgnoredKey("architectures model_type auto_map", "read where the class is chosen"),
    IgnoredKey("_name_or_path", "read for the name"),
    IgnoredKey("transformers_version _commit_hash _from_model_config", "which program wrote it"),
    IgnoredKey("custom_pipelines library_name unsloth_* tensorrt* tf_legacy_loss", "of a program that uses it"),
    IgnoredKey("torch_dtype dtype use_bfloat16", "a tensor's type is its own"),
    IgnoredKey("quantization_config compression_config quantization", "read where quantized weights are"),
    IgnoredKey("*dropout* *_pdrop *layerdrop *aux_loss* *_loss_coef *_router_logits router_jitter_noise", _TRAINED),
    IgnoredKey("gradient_checkpointing label_smoothing*", _TRAINED),
    IgnoredKey("initializer_* init_std init_method init_device", _BEFORE),
    IgnoredKey("use_cache cache_implementation attn_implementation _attn_implementation* use_flash_attn*", _HOW),
    IgnoredKey("chunk_size_feed_forward pretraining_tp ep_size tensor_parallel* torchscript", _HOW),
    IgnoredKey(
        "output_attentions output_hidden_states output_past output_scores return_dict*", "what a call gives back"
    ),
    IgnoredKey("*_token_id *_token_ids *_token_index tokenizer_class", _TOKENS),
    IgnoredKey("id2label label2id num_labels problem_type classifier_* finetuning_task summary_*", "of other heads"),
    IgnoredKey("task_specific_params prefix max_length min_length max_new_tokens do_sample early_stopping", _SAMPLED),
    IgnoredKey("num_beams num_beam_groups diversity_penalty length_penalty num_return_sequences", _SAMPLED),
    IgnoredKey("temperature top_k top_p typical_p repetition_penalty *no_repeat_ngram_size", _SAMPLED),
    IgnoredKey("bad_words_ids suppress_tokens begin_suppress_tokens forced_decoder_ids", _SAMPLED),
    IgnoredKey("exponential_decay_length_penalty remove_invalid_values", _SAMPLED),
    IgnoredKey("is_decoder is_encoder_decoder add_cross_attention tie_encoder_decoder", "as the class says", (False,)),
    IgnoredKey("pruned_heads", "none is", ({},)),
    IgnoredKey("rope_scaling.finetuned", "how the model came to be"),
    IgnoredKey(
        f"{ORDER} {DENSE} {DENSE}.* {SCORED_BY} {SCORED_BY}.*",
        "read with the tensors of the modules, which are carried or dropped by name, and for rerankers",
    ),
)


OF_THE_HALF = ("projector_", "multimodal_projector", "vision_feature_", "downsample_", "mm_", "select_layer")
"""How keys of a whole model begin that say something of a vision or audio encoder: only an mmproj file can account
for them."""
WHOLE = ("tie_word_embeddings",)
"""Keys for which the whole configuration wins over its text part: transformers ties weights by the whole, whatever the
text model's default has put into the part."""


NUMBERED = "#"
"""The members of an object whose names are numbers, such as transformers' `per_layer_config`, as a place names them."""


class Recorded:
    """A configuration that remembers which of its members were asked for.

    `within` names the member that describes this model, where the configuration is a larger model's (the text part of a
    vision model). That member is asked first, except for the keys in WHOLE.
    """

    def __init__(self, config: Mapping[str, Any], within: str = "") -> None:
        self._config, self._within = config, within
        self._queried: set[str] = set()
        self._sought: set[str] = {within}

    def find(self, place: str) -> Any:
        """Return the value at `place` ('rope_parameters.rope_theta'), or NOTHING."""
        return next((value for _, value in self._found(place)), NOTHING)

    def ask(self, place: str) -> None:
        """Record that `place` was asked for.

        Where several parts of the configuration have it, the later ones count as asked only if they have the same value
        as the first; those of a key in WHOLE always do.
        """
        if NUMBERED in place:
            around, _, rest = place.partition(f".{NUMBERED}.")
            for number in self.find(around) if isinstance(self.find(around), Mapping) else ():
                self.ask(f"{around}.{number}.{rest}")
            return
        first: Any = NOTHING
        self._sought |= {parent for path in self._paths(place) for parent in _parents(path)}
        for path, value in self._found(place):
            first = value if first is NOTHING else first
            if value == first or place in WHOLE:  # of those the whole model's word counts, whatever its half says
                self._queried.add(path)

    def _found(self, place: str) -> Iterator[tuple[str, Any]]:
        for path in self._paths(place):
            value = descend(self._config, path)
            if value is not NOTHING:
                yield path, value

    def _paths(self, place: str) -> tuple[str, ...]:
        if not self._within:
            return (place,)
        inner = f"{self._within}.{place}"
        around = (f"{parent}.{place}" for parent in reversed([*_parents(self._within)]))
        return (*around, place, inner) if place in WHOLE else (inner, place)

    def unasked(self) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) of what nobody asked for.

        An object is one item if nothing was looked up in it, and otherwise is visited member by member.
        """
        yield from self._unasked(self._config, "")

    def _unasked(self, tree: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            path = f"{before}{key}"
            if path in self._sought and is_objects(value):
                value = {name: [item.get(name) for item in value] for name in sorted({*chain(*value)})}
            if path in self._sought and isinstance(value, Mapping):
                yield from self._unasked(value, f"{path}.")
            elif path not in self._queried:
                yield path, value


def _parents(path: str) -> Iterator[str]:
    return (path[:dot] for dot, sign in enumerate(path) if sign == ".")


def is_objects(value: Any) -> bool:
    """Return whether the value is a list of objects, such as one a block."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def descend(root: Any, place: str) -> Any:
    """Return the member of `root` to which the names in `place` lead, or NOTHING.

    '*' means all members, if they agree; '#' the members by number, None for those that are not there or lack what is
    asked for. Of a list of objects, that is the list of their members, None for those that lack it.
    """
    name, _, rest = place.partition(".")
    if is_objects(root):
        members = [descend(item, place) for item in root]
        return NOTHING if all(item is NOTHING for item in members) else [None if m is NOTHING else m for m in members]
    if not isinstance(root, Mapping) or (name not in ("*", NUMBERED) and name not in root):
        return NOTHING
    if name == NUMBERED:
        return _numbered(root, rest)
    if name != "*":
        return descend(root[name], rest) if rest else root[name]
    found = [descend(member, rest) for member in root.values()]
    return found[0] if found and all(value == found[0] for value in found) else NOTHING


def _numbered(root: Mapping[str, Any], rest: str) -> Any:
    numbers = [int(name) for name in root if name.isdecimal() and len(name) < 5]
    members = [descend(root, f"{number}.{rest}") for number in range(1 + max(numbers, default=-1))]
    return NOTHING if all(member is NOTHING for member in members) else [None if m is NOTHING else m for m in members]


def unread(recorded: Recorded, dialect: Dialect, values: Mapping[str, Any], parts: tuple[str, ...] = ()) -> list[str]:
    """Return the paths of keys that were neither asked for nor are harmless; null values do not count.

    `values` are the hparams by short name. Of a configuration that another file's model shares, only the members
    `parts` are inspected.
    """
    found = []
    for path, value in recorded.unasked():
        if parts and not path.startswith(parts):
            continue
        key = path if parts else path.removeprefix(f"{dialect.config_section}.")
        inner = next((key[len(name) + 1 :] for name in dialect.nested if key.startswith(f"{name}.")), key)
        ignored = ((entry, key) for entry in dialect.ignored_keys), ((entry, inner) for entry in GENERAL)
        if value is not None and not any(_names(entry, name, value, values) for entry, name in chain(*ignored)):
            found.append(path)
    return found


def _names(entry: IgnoredKey, path: str, value: Any, values: Mapping[str, Any]) -> bool:
    """Return whether `entry` declares this key with this value harmless."""
    if not _matcher(entry.keys).fullmatch(path):
        return False
    if entry.follows:
        return _follows(entry.follows, value, values)
    items = value if isinstance(value, list) and value else [value]
    known = (any(_same(item, one) for one in entry.values) for item in items)
    return not entry.values or any(_same(value, one) for one in entry.values) or all(known)


def _follows(rule: str, value: Any, values: Mapping[str, Any]) -> bool:
    if isinstance(values.get(rule), float):  # `derive` gives whole numbers
        return _same(value, values[rule])
    try:
        return _same(value, derive(rule, values))
    except KeyError:  # a vocabulary alone: no tensor says how large it is
        return True
    except (ValueError, OverflowError, ZeroDivisionError):
        return False


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


@cache
def _matcher(keys: str) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, keys.split())))


def unread_notes(
    recorded: Recorded, dialect: Dialect, values: Mapping[str, Any], file: str, parts: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return notes on what the configuration states and ggferry does not use.

    Args:
        recorded: The configuration, after binding.
        dialect: The dialect whose harmless keys count.
        values: The hparams by short name.
        file: The configuration's file name.
        parts: The members that are this model's, where another one shares the configuration.
    """
    keys = unread(recorded, dialect, values, parts)
    pooled = POOLING in keys
    keys = [key for key in keys if key != POOLING]
    notes = []
    if keys:
        named = ", ".join(f"{key[:LONGEST]}…" if len(key) > LONGEST else key for key in keys[:MAX_LISTED])
        more = f" and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else ""
        notes.append(f"{file} keys that ggferry does not use: {named}{more}")
    if pooled:
        notes.append("modules.json says how the texts' vectors are pooled, which is not copied")
    return tuple(notes)
