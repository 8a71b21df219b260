"""Every key and tensor of every architecture table, held against the list of what llama.cpp's loader reads; and the
list held against llama.cpp itself (PyPI xllamacpp, of the build the list was made from)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import filter
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.plan import plan_conversion
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import architectures, open_checkpoint
from ggferry.converters.proof import runtime_keys as runtime
from ggferry.converters.proof.runtime_notes import EXPLAINED, Explained, unexplained
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import by_name
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import understand
from ggferry.formats.gguf.values import Value, string
from ggferry.formats.gguf.values import ValueType as T
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import block_type
from helpers.llama_api import loads
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import TINY, make, vocabulary, whole

pytestmark = pytest.mark.filterwarnings("ignore")
SPECS = architectures()
LOADED = {name: spec for name, spec in SPECS.items() if runtime.loader(name) is not None}
WRONG = Value(T.FLOAT64, 3.0)
ALIKE: dict[str, dict[str, Any]] = {"gemma2": {"query_pre_attn_scalar": 16}, "gemma3": {"query_pre_attn_scalar": 16}}
RUN = [
    name for name, tiny in TINY.items() if tiny.model not in ("GPTJ", "CodeGen", "GPTNeo", "Rwkv")
]  # it has a loader
QUICK = ("llama yarn", "gemma3", "mamba2")
PASSED_OVER = ("attention.rope_pattern",)
"""Optional lists, in the place of which llama.cpp passes over a single value."""
HEADS = "hparams.n_head() > 0"  # true of every model that has the keys asked for under it
ABSENCE = {
    "expert_group_count": "llama.cpp supposes 0, and as with one group all experts are chosen among",
    "expert_weights_scale": "llama.cpp supposes 0 and then multiplies nothing",
    "expert_group_used_count": "llama.cpp supposes 0, of no groups",
    "rope.scaling.type": "llama.cpp supposes 'linear', and by a factor of one nothing is stretched",
    "embedding_scale": "llama.cpp supposes 0 and then multiplies nothing",
    "residual_scale": "llama.cpp supposes 0 and then multiplies nothing",
}
"""What llama.cpp supposes of an absent key is worded otherwise than what we mean by leaving it out, and is the same."""


def explained(kind: str, architecture: str, what: str) -> bool:
    finding = runtime.Finding(kind, architecture, what, "")
    return not unexplained([finding], [rule.note for rule in EXPLAINED])


def keyed(name: str) -> Iterator[tuple[str, HParam]]:
    return ((hparam.key_of(name), hparam) for hparam in SPECS[name].hparams if hparam.key)


def a_value(hparam: HParam) -> Value:
    return Value(T.ARRAY, (), hparam.kind) if hparam.length else Value(hparam.kind, 0)


@pytest.mark.parametrize("name", SPECS)
def test_a_table_names_llama_cpp_where_it_has_a_loader(name: str) -> None:
    assert ("llama.cpp" in SPECS[name].runtimes) == (name in LOADED)


def test_the_list_has_the_loaders_that_are_known() -> None:
    assert "gptj" not in LOADED and len(LOADED) > 25


@pytest.mark.parametrize("name", LOADED)
def test_every_key_of_a_table_is_read_and_of_a_type_that_is_taken(name: str) -> None:
    asked = runtime.loader(name)
    assert asked is not None
    for key, hparam in keyed(name):
        if key in asked.keys:
            assert runtime.takes(asked.keys[key], a_value(hparam)), key
        else:
            assert explained("unread", name, key), key


@pytest.mark.parametrize("name", LOADED)
def test_every_key_that_is_required_is_always_written(name: str) -> None:
    asked, ours = runtime.loader(name), dict(keyed(name))
    assert asked is not None
    for key in (key for key, request in asked.keys.items() if request.state == "required"):
        if key.startswith(f"{name}."):
            assert key in ours, key
            assert ours[key].required and ours[key].absent is None and not ours[key].implied, key


@pytest.mark.parametrize("name", LOADED)
def test_what_an_absent_key_means_is_what_llama_cpp_supposes(name: str) -> None:
    asked = runtime.loader(name)
    assert asked is not None
    for key, hparam in keyed(name):
        request = asked.keys.get(key)
        meant = means(hparam)
        if request and request.default and meant is not None and hparam.key not in ABSENCE:
            assert json.loads(request.default) == pytest.approx(meant), key


def means(hparam: HParam) -> Any:
    """What a GGUF file without the key means to us, where it is one value."""
    stated = [
        rule.value for rule in hparam.defaults if rule.dialect in ("", "gguf") and not rule.when and not rule.named
    ]
    return hparam.absent if hparam.absent is not None else stated[0] if stated else None


@pytest.mark.parametrize("name", LOADED)
def test_every_tensor_of_a_table_is_made_and_every_one_required_is_there(name: str) -> None:
    asked, conditions = runtime.loader(name), defaultdict(set)
    assert asked is not None
    for role in SPECS[name].roles:
        conditions[runtime.NUMBER.sub(".{n}", role.name)].add("optional" if role.optional else role.when)
    for tensor in conditions:
        assert tensor in asked.tensors or explained("unread tensor", name, tensor), tensor
    for tensor in (tensor for tensor, request in asked.tensors.items() if request.state == "required"):
        # a table may name block 0 apart, and what blocks that predict further tokens lack
        always = conditions[tensor] in ({""}, {"", "n > 0"}, {"n < n_layer"})
        assert always or explained("missing tensor", name, tensor), tensor


def gaps(name: str) -> Iterator[runtime.Finding]:
    """Where the table as such and the list do not fit."""
    asked = runtime.loader(name)
    assert asked is not None
    roles = {runtime.NUMBER.sub(".{n}", role.name): role for role in SPECS[name].roles}
    required = (tensor for tensor, request in asked.tensors.items() if request.state == "required")
    for kind, names in (
        ("unread", (key for key, _ in keyed(name) if key not in asked.keys)),
        ("unread tensor", (tensor for tensor in roles if tensor not in asked.tensors)),
        ("missing tensor", (tensor for tensor in required if roles[tensor].optional or roles[tensor].when)),
    ):
        yield from (runtime.Finding(kind, name, one, "") for one in names)


@pytest.mark.parametrize("rule", [rule for rule in EXPLAINED if rule.of != "*"], ids=lambda rule: rule.reason)
def test_no_explanation_is_left_over(rule: Explained) -> None:
    patterns = rule.what.split()
    found = {
        name: {one for one in patterns if filter([gap.what for gap in gaps(name) if gap.kind == rule.kind], one)}
        for name in rule.of.split()
    }
    assert all(found.values()) and set().union(*found.values()) == set(patterns), found


def test_every_pre_tokenizer_and_vocabulary_of_ours_is_known() -> None:
    assert set(by_name()) <= {*runtime.pre_tokenizers()}
    assert {"llama", "gpt2", "bert", "t5", "rwkv", "none"} <= {*runtime.tokenizers()}


def plans() -> list[str]:
    return sorted(path.name for path in (FIXTURES / "hf/ckpt").iterdir())


@pytest.mark.parametrize("name", plans())
def test_what_we_write_of_the_witnesses_fits(name: str) -> None:
    findings, notes = planned(FIXTURES / "hf/ckpt" / name)
    kinds = {finding.kind for finding in unexplained(findings, notes)}
    assert kinds == (set() if name not in ("gptj", "gptneo", "rwkv4", "whisper") else {"no loader"})


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_what_we_write_of_a_tiny_model_fits(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf")
    findings, notes = planned(tmp_path / "hf", VocabOptions(none=True))
    family = understand(open_checkpoint(str(tmp_path / "hf"))).architecture.name
    assert {finding.kind for finding in unexplained(findings, notes)} == (set() if family in LOADED else {"no loader"})


def planned(path: Path, vocab: VocabOptions | None = None) -> tuple[tuple[runtime.Finding, ...], tuple[str, ...]]:
    request = Request(str(path), vocab=vocab or VocabOptions(), mmproj="none")
    plan = plan_conversion(request, open_checkpoint(str(path))).outputs[0].plan
    metadata = {key: entry.value for key, entry in plan.metadata.items()}
    found = runtime.check(plan.graph.architecture.name, metadata, [step.name for step in plan.steps])
    return found, (*plan.graph.notes, *plan.notes)


class Variants:
    """Files that differ from one that llama.cpp loads in one key or tensor, and whether the list says it loads them."""

    def __init__(self, folder: Path, keys: dict[str, Value], tensors: dict[str, np.ndarray]) -> None:
        self.folder, self.keys, self.tensors = folder, keys, tensors
        self.expected: dict[Path, bool] = {}
        self.asked = runtime.loader(keys["general.architecture"].data, keys["tokenizer.ggml.model"].data)

    def add(self, label: str, expected: bool, keys: dict[str, Value], tensors: dict[str, np.ndarray]) -> None:
        path = self.folder / f"{label}.gguf"
        write_gguf(path, keys, [(name, block_type("F32"), x.shape, x) for name, x in tensors.items()])
        self.expected[path] = expected

    def without_and_mistyped(self) -> None:
        """Without each key that is required; with each key of another type, which it sees if it reads the key."""
        assert self.asked is not None
        for key in self.keys:
            request = self.asked.keys.get(key)
            rest = {other: value for other, value in self.keys.items() if other != key}
            if request is not None and request.state == "required" and key != "general.architecture":
                self.add(f"without {key}", False, rest, self.tensors)
            if request is None or ("any" not in request.types and request.note in ("", HEADS)):
                unseen = request is None or key.partition(".")[2] in PASSED_OVER
                self.add(f"mistyped {key}", unseen, {**rest, key: WRONG}, self.tensors)

    def without_tensors(self) -> None:
        """Without each tensor that is required, in its last block; with one more."""
        assert self.asked is not None
        last = {runtime.NUMBER.sub(".{n}", name): name for name in self.tensors}
        for pattern, name in last.items():
            if pattern in self.asked.tensors and self.asked.tensors[pattern].state == "required":
                rest = {other: x for other, x in self.tensors.items() if other != name}
                self.add(f"without {name}", False, self.keys, rest)
        self.add("one more", False, self.keys, {**self.tensors, "blk.0.odd.weight": np.zeros((4, 4), np.float32)})


def check_variants(folder: Path, keys: dict[str, Value], tensors: dict[str, np.ndarray], runs: bool = True) -> None:
    """`runs`: llama.cpp loads the model as it is. Else it only shows what is refused."""
    assert installed("xllamacpp").rpartition(".")[2] == runtime.version()[1:], "make the list again"
    variants = Variants(folder, keys, tensors)
    variants.add("as it is", True, variants.keys, variants.tensors)
    variants.without_and_mistyped()
    variants.without_tensors()
    asked = [path for path, expected in variants.expected.items() if runs or not expected]
    found = dict(zip(asked, loads(*asked), strict=True))
    assert {path.stem for path in found if found[path] != variants.expected[path]} == set()
    assert len(found) > 15


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RUN]
)
def test_llama_cpp_asks_for_what_the_list_says(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf", **ALIKE.get(name, {}))
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    keys = {"general.architecture": string(graph.architecture.name)}
    keys |= {key: value for key, value, _ in graph.written()} | vocabulary(graph.sizes["n_vocab"])
    check_variants(tmp_path, keys, whole(graph), "llama.cpp" in graph.runtimes)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "rwkv6", "llama3_rope_tied", "falcon7b"])
def test_it_asks_so_of_every_vocabulary(name: str, tmp_path: Path) -> None:
    made = open_checkpoint(convert(Request(str(FIXTURES / "hf/ckpt" / name), str(tmp_path / "x.gguf")))[0].path)
    check_variants(tmp_path, dict(made.metadata), whole(understand(made)))
