"""Second files (mmproj) of tiny checkpoints that see or hear: the reigning tool's keys, names, shapes and bytes where
they are right. What differs is named here, with the reason."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import fixed_inputs, forward
from ggferry.converters.model_graph.open_checkpoint import projectors
from ggferry.converters.understand import graph_of
from ggferry.formats.readers.gguf import open_gguf
from ggferry.formats.tensor_read import read_rows
from helpers import llama_clip, llama_pictures, multimodal
from helpers.third_party_fixtures import CORPUS
from helpers.tiny_models import relative

assert CORPUS is not None
ARCH = CORPUS / "arch"
ALL = sorted(path.parent.name for path in ARCH.glob("*/mmproj_map.json"))
KNOWN = {
    name for spec in projectors().values() for dialect in spec.dialects for name in (*spec.hf_classes, *dialect.classes)
}
pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]

UNREAD: dict[str, str] = {}
"""Checkpoints of the corpus whose second half no table reads, and why."""
ELSEWHERE: dict[str, dict[str, str]] = {
    "*": {
        "general.quantization_version": "nothing is quantized",
        "general.name": "guessed from the folder's name, not only here",
        "general.size_label": "counted alike, named by our own rule",
    },
    "qwen2vl": {"clip.vision.feed_forward_length": "the width of the text model, which no matrix of the tower has"},
}
"""Keys that the tool writes and we do not, or otherwise, by model, and why."""
HALVED = re.compile(r"mm\.input_projection\.weight|.*conv.*\.weight")
"""What the tool halves in a file of F32; ours holds the source's values, which round to the same bytes."""
OWN_TENSORS: dict[str, tuple[str, str]] = {}
"""By model, a part of the names of tensors whose bytes differ from the tool's, and why."""


RENAMED = {"llama4_mm": (".attn_post_norm.", ".ln2.")}
"""By model, a part of the tool's names and ours: of Llama 4 it takes the norm before the network for one behind
attention, and llama.cpp computes another model."""
ADDED = {
    "mistral3": (re.compile(r"v\.token_embd\.img_break"), "the tool looks for it where it has left out the text model"),
    "internvl": (re.compile(r".*"), "the tool knows its publisher's names only, and writes a file without a tensor"),
}
"""By model, tensors that the tool's file lacks, and why."""


def classes(name: str) -> set[str]:
    return set(json.loads((ARCH / name / "ckpt" / "config.json").read_text())["architectures"])


NAMES = [name for name in ALL if classes(name) & KNOWN]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The second file, in F32, of every checkpoint, proved, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("mmproj")

    class Made(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            text, mmproj = convert(
                Request(str(ARCH / name / "ckpt"), str(folder / f"{name}.gguf"), Options(outtype="f32"))
            )
            assert mmproj.receipt["logits"] is not None
            lost = [drop for one in (text, mmproj) for drop in one.receipt["dropped"] if drop["loses"]]
            assert not lost, "something that neither file holds"
            self[name] = Path(mmproj.path)
            return self[name]

    return Made()


def theirs(name: str) -> dict[str, Any]:
    (path,) = (ARCH / name).glob("mmproj-*.gguf.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_model_that_sees_or_hears_is_read_or_named() -> None:
    assert set(ALL) - set(NAMES) <= set(UNREAD), "no table, and no reason"


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_the_reigning_tools(name: str, made: dict[str, Path]) -> None:
    ours = open_gguf(str(made[name])).metadata
    odd = {**ELSEWHERE["*"], **ELSEWHERE.get(name, {})}
    for key, (_, value) in theirs(name)["kv"].items():
        if key not in odd:
            assert key in ours, key
            data = ours[key].data
            found = list(data) if isinstance(data, tuple) else data
            assert found == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), key


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_the_reigning_tools(name: str, made: dict[str, Path]) -> None:
    checkpoint, own = open_gguf(str(made[name])), OWN_TENSORS.get(name, ("nothing", ""))[0]
    expected = {key.replace(*RENAMED.get(name, ("", ""))): value for key, value in theirs(name)["tensors"].items()}
    more = set(checkpoint.tensors) - set(expected)
    assert set(expected) <= set(checkpoint.tensors) and all(
        name in ADDED and ADDED[name][0].fullmatch(key) for key in more
    )
    for key, (kind, sizes, digest) in expected.items():
        ref = checkpoint.tensors[key]
        assert list(ref.shape) == sizes[::-1], key
        if own in key:
            continue
        data = read_rows(checkpoint, ref, 0, ref.rows)
        if kind == "F16" and HALVED.fullmatch(key):
            data = data.view(np.float32).astype(np.float16)
        else:
            assert ref.type.name == kind, key
        assert hashlib.sha256(data.tobytes()).hexdigest() == digest, key
    checkpoint.close()


OTHERWISE = {
    "voxtral": "averages states by two besides",
    "internvl": "positions are one off",
    "llama4_mm": "rows come column by column",
    "qwen25vl": "its windows are not 112 pixels wide",
}
"""What llama.cpp computes otherwise, of which a remark tells: a part of it."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERWISE])
def test_llama_cpp_makes_the_same_rows(name: str, made: dict[str, Path]) -> None:
    graph = graph_of(str(made[name]))
    for kind, values in fixed_inputs(graph):
        if kind == "picture":
            size = graph.sizes["v_image_size"]
            values = multimodal.picture(size, size)
        found = llama_clip.embedded(made[name], **{kind: values})
        assert relative(forward(graph, (), inputs={kind: values}), found) <= 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_loads_both_files(name: str, made: dict[str, Path]) -> None:
    """Its server starts with them; what it answers to a picture is `test_gemma3`'s."""
    assert llama_pictures.answers(made[name].with_name(f"{name}.gguf"), made[name], []) == []
