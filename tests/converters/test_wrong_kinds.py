"""Values of the wrong kind anywhere in the JSON files of a checkpoint: the answer is a plan or one of our errors."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.conversion.plan import plan_conversion
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.errors import CorruptError, GgferryError
from ggferry.service.cli.describe import describe, lines
from helpers.sampling import one_in
from helpers.third_party_fixtures import FIXTURES

pytestmark = pytest.mark.attack

Place = tuple[str | int, ...]
CHECKPOINTS = sorted(path for path in (FIXTURES / "hf" / "ckpt").iterdir() if path.is_dir())
DEEP: list[Any] = []
for _ in range(60):
    DEEP = [DEEP]
VALUES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    float("inf"),
    float("nan"),
    10**400,
    2**32,
    "",
    "x",
    [],
    [[]],
    [1, 2, 3],
    ["a"],
    {},
    {"type": 1},
    {"__float__": "Infinity"},
    DEEP,
)
ITEMS = 3
"""Of a list, and of an object as large as a vocabulary, that are changed."""


def places(tree: Any, before: Place = ()) -> Iterator[Place]:
    """The way to every member of `tree`."""
    members: Sequence[Any] = ()
    if isinstance(tree, dict):
        members = list(tree)[: ITEMS if len(tree) > 100 else None]
    elif isinstance(tree, list):
        members = range(min(len(tree), ITEMS))
    for name in members:
        yield (*before, name)
        yield from places(tree[name], (*before, name))


def changed(tree: Any, place: Place, value: Any) -> Any:
    """A copy of `tree` with `value` in `place`."""
    if not place:
        return value
    copy = tree.copy()
    copy[place[0]] = changed(tree[place[0]], place[1:], value) if len(place) > 1 else value
    return copy


def attempt(folder: Path) -> None:
    """As far as --dry-run and inspect go. Anything but our own errors is a fault."""
    checkpoint = None
    try:
        checkpoint = open_checkpoint(str(folder))
        facts = describe(checkpoint)
        "\n".join(lines(facts)).encode()
        json.dumps(facts, allow_nan=False)
        plan = plan_conversion(Request(str(folder)), checkpoint).outputs[0].plan
        json.dumps(plan.as_dict(), allow_nan=False)
    except GgferryError as error:
        str(error)
        json.dumps(error.as_dict(), allow_nan=False)
    finally:
        if checkpoint is not None:
            checkpoint.close()


def trials(source: Path, count: int) -> Iterator[tuple[str, Place, str]]:
    """(file, place, its text) of `count` changes of each JSON file, the same every time."""
    for path in sorted(source.glob("*.json")):
        tree = json.loads(path.read_text())
        wanted = [(place, value) for place in [(), *places(tree)] for value in VALUES]
        chance = random.Random(f"{source.name}/{path.name}")
        for place, value in chance.sample(wanted, min(count, len(wanted))):
            yield path.name, place, json.dumps(changed(tree, place, value))


def check(source: Path, folder: Path, count: int) -> None:
    """Every trial of the checkpoint `source`, in a copy of it."""
    shutil.copytree(source, folder)
    for name, place, text in trials(source, count):
        (folder / name).write_text(text)
        try:
            attempt(folder)
        except Exception as error:
            raise AssertionError(f"{name}: {'.'.join(map(str, place))}") from error
        shutil.copy(source / name, folder / name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", one_in(6, CHECKPOINTS), ids=lambda path: path.name)
def test_a_value_of_the_wrong_kind_is_an_answer(source: Path, tmp_path: Path) -> None:
    check(source, tmp_path / "model", 2)


@pytest.mark.slow
@pytest.mark.parametrize("source", CHECKPOINTS, ids=lambda path: path.name)
def test_many_values_of_the_wrong_kind_are_answers(source: Path, tmp_path: Path) -> None:
    check(source, tmp_path / "model", 150)


# --- the three that crashed, and what else a wrong kind may be ------------------------------------------------


def edited(name: str, folder: Path, file: str, place: Place, value: Any) -> Path:
    """The checkpoint `name` of the fixtures, with `value` in `place` of its `file`."""
    shutil.copytree(FIXTURES / "hf" / "ckpt" / name, folder)
    tree = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(changed(tree, place, value)))
    return folder


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (("normalizer",), True, "an object"),
        (("normalizer",), [[]], "an object"),
        (("normalizer", "lowercase"), 1, "true or false"),
        (("normalizer", "strip_accents"), "x", "true or false"),
        (("model", "unk_token"), [[]], "text"),
        (("model", "unk_token"), {"type": 1}, "text"),
        (("model", "continuing_subword_prefix"), [], "text"),
        (("model", "continuing_subword_prefix"), 0, "text"),
        (("added_tokens",), {}, "a list"),
        (("added_tokens", 0), "x", "an object"),
        (("added_tokens", 0, "special"), "x", "true or false"),
        (("post_processor",), 1, "an object"),
        (("post_processor", "single"), "x", "a list"),
    ],
    ids=str,
)
def test_a_wordpiece_of_the_wrong_kinds_is_refused_by_key(
    place: Place, value: Any, expected: str, tmp_path: Path
) -> None:
    folder = edited("bert", tmp_path / "bert", "tokenizer.json", place, value)
    named = place[-1] if isinstance(place[-1], str) else place[-2]
    with pytest.raises(CorruptError, match=f"{str(named).rstrip('s')}.*expected {expected}") as caught:
        plan_conversion(Request(str(folder)), open_checkpoint(str(folder)))
    assert caught.value.path is not None and caught.value.path.endswith("tokenizer.json")


@pytest.mark.parametrize(
    ("file", "place", "value"),
    [
        ("tokenizer_config.json", ("added_tokens_decoder",), [1]),
        ("tokenizer_config.json", ("add_bos_token",), "true"),
        ("tokenizer_config.json", ("tokenizer_class",), []),
        ("tokenizer_config.json", ("chat_template",), 5),
        ("tokenizer_config.json", ("bos_token",), {"content": 1}),
        ("special_tokens_map.json", ("cls_token",), 7),
        ("generation_config.json", ("eos_token_id",), "x"),
        ("generation_config.json", ("eos_token_id",), [1.5]),
        ("config.json", ("bos_token_id",), True),
        ("config.json", ("model_type",), 3),
    ],
    ids=str,
)
def test_sidecars_of_the_wrong_kinds_are_refused_by_key(file: str, place: Place, value: Any, tmp_path: Path) -> None:
    folder = edited("llama", tmp_path / "llama", file, place, value)
    with pytest.raises(CorruptError) as caught:
        plan_conversion(Request(str(folder)), open_checkpoint(str(folder)))
    assert not place or str(place[0]) in str(caught.value) or "content" in str(caught.value)
    assert caught.value.path is not None and caught.value.path.endswith(file)


@pytest.mark.parametrize("text", ['{"eos_token_id": ', "[]", '{"a": 1, "a": 2}', "null"])
def test_settings_that_are_no_object_are_passed_over_by_name(text: str, tmp_path: Path) -> None:
    """transformers loads a model beside which they are not JSON."""
    (folder := edited("llama", tmp_path / "llama", "config.json", ("x",), 1)).joinpath(
        "generation_config.json"
    ).write_text(text)
    checkpoint = open_checkpoint(str(folder))
    assert "generation_config" not in checkpoint.sidecars
    assert any(note.startswith("generation_config.json is passed over") for note in checkpoint.notes)
    plan_conversion(Request(str(folder)), checkpoint)


def test_null_is_nothing_stated(tmp_path: Path) -> None:
    folder = edited("llama", tmp_path / "llama", "tokenizer_config.json", ("add_bos_token",), None)
    plan_conversion(Request(str(folder)), open_checkpoint(str(folder)))


def test_an_infinity_in_an_index_reaches_the_receipt_as_text(tmp_path: Path) -> None:
    """The receipt is strict JSON: it was an internal error, after everything was converted and proved."""
    name = "model.safetensors.index.json"
    folder = edited("llama_shards_bf16", tmp_path / "model", name, ("metadata", "total_size"), float("inf"))
    result = convert(Request(str(folder), str(tmp_path / "x.gguf"), level="none"))[0]
    assert result.receipt["source"]["header"]["index"]["total_size"] == "inf"
