"""Mamba's further checkpoints: state-spaces' own names and configurations, Codestral's, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.errors import GgferryError, ShapeError, UnexpectedTensorError, UnsupportedError
from helpers.models.mamba import MAMBA, MAMBA2
from helpers.peers import Peers
from helpers.tiny_models import TINY, TOKENS, make, relative

pytestmark = pytest.mark.filterwarnings("ignore")


def original(name: str, folder: Path, config: dict[str, Any]) -> np.ndarray:
    """A tiny model as state-spaces/mamba saves it: other names, a copy of the tied head, a vocabulary that was padded,
    and a configuration without a class. Returns transformers' logits."""
    import torch
    from safetensors.torch import load_file

    expected = make(name, folder)
    tensors = load_file(folder / "model.safetensors")
    for path in folder.iterdir():
        path.unlink()
    tensors = {key.replace("backbone.embeddings.", "backbone.embedding."): value for key, value in tensors.items()}
    tensors["lm_head.weight"] = tensors["backbone.embedding.weight"].clone()
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"d_model": 48, "n_layer": 3, "vocab_size": 321, **config}))
    return expected


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("mamba", {"ssm_cfg": {}, "rms_norm": True, "residual_in_fp32": True}),
        ("mamba2 one group", {"ssm_cfg": {"layer": "Mamba2"}, "tie_embeddings": True}),
    ],
)
def test_state_spaces_own_checkpoints(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    expected = original(name, tmp_path, config)
    graph = understand(open_checkpoint(str(tmp_path)))
    assert graph.dialect.name == "state-spaces" and graph.architecture.name == name.split()[0]
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    assert {str(drop.ref.name) for drop in graph.dropped} == {"lm_head.weight"}
    assert graph.sizes["n_vocab"] == 328


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"d_model": 64}, ShapeError),
        ({"n_layer": 2}, GgferryError),
        ({"rms_norm": False}, UnsupportedError),
        ({"ssm_cfg": {"conv_bias": False}}, UnexpectedTensorError),
        ({"ssm_cfg": {"d_state": 16}}, ShapeError),
    ],
)
def test_what_a_state_spaces_configuration_contradicts(
    config: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    original("mamba", tmp_path, config)
    with pytest.raises(error) as caught:
        understand(open_checkpoint(str(tmp_path)))
    assert isinstance(caught.value, GgferryError)


def changed(name: str, folder: Path, **changes: Any) -> ModelGraph:
    make(name, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return understand(open_checkpoint(str(folder)))


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("mamba", {"use_bias": True}, UnsupportedError),
        ("mamba", {"hidden_act": "gelu"}, UnsupportedError),
        ("mamba", {"state_size": 9}, ShapeError),
        ("mamba2", {"time_step_limit": [0.1, 5.0]}, UnsupportedError),
        ("mamba2", {"n_groups": 2}, ShapeError),
        ("mamba2", {"n_groups": 0}, GgferryError),
        ("mamba2", {"num_heads": 6}, ShapeError),
        ("mamba2", {"n_groups": 5, "state_size": 6}, ShapeError),
    ],
)
def test_what_no_file_could_say_is_refused(
    name: str, changes: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        changed(name, tmp_path, **changes)
    assert isinstance(caught.value, GgferryError)


def test_an_automatic_rank_is_what_the_tensors_say(tmp_path: Path) -> None:
    assert changed("mamba", tmp_path, time_step_rank="auto").sizes["dt_rank"] == 5


def test_codestrals_names(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    expected = make("mamba2", tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({f"model.{key}": value for key, value in load_file(path).items()}, path)
    assert relative(expected, forward(understand(open_checkpoint(str(tmp_path))), TOKENS)) <= 1e-5


def test_another_expansion_is_said(tmp_path: Path) -> None:
    make("mamba", tmp_path, expand=3)
    graph = understand(open_checkpoint(str(tmp_path)))
    assert any("twice that only" in note for note in graph.notes) and graph.sizes["n_inner"] == 144


def test_falcons_own_epsilon_is_kept_and_said(tmp_path: Path) -> None:
    make("falcon mamba", tmp_path)
    graph = understand(open_checkpoint(str(tmp_path)))
    keys = {key: value.data for key, value, _ in graph.written()}
    assert keys["mamba.ssm.dt_b_c_rms"] is True and keys["mamba.ssm.dt_b_c_rms_epsilon"] == 1e-2
    assert any("epsilon" in note for note in graph.notes)


def test_sizes_are_no_coincidence() -> None:
    assert MAMBA2["n_groups"] > 1 and MAMBA2["num_heads"] % MAMBA2["n_groups"] == 0 and MAMBA["state_size"] != 8


@pytest.mark.parametrize("name", ["mamba", "mamba2", "rwkv6"])
def test_quantized_bytes_are_the_reigning_tools(name: str, fixtures: Path, peer: Peers, tmp_path: Path) -> None:
    """Which tensors of a recurrent model stay F32, and what the others become."""
    request = Request(str(fixtures / "hf" / "ckpt" / name), str(tmp_path / "x.gguf"), Options(outtype="q8_0"))
    ours = open_checkpoint(convert(request)[0].path)
    theirs = open_checkpoint(str(peer(f"hf/out/{name}/{name}.q8_0.gguf")))
    assert set(ours.tensors) == set(theirs.tensors)
    for key, ref in ours.tensors.items():
        other = theirs.tensors[key]
        assert (ref.type, ref.shape) == (other.type, other.shape), key
        a, b = (c.files[0].read(r.spans[0].offset, r.nbytes) for c, r in ((ours, ref), (theirs, other)))
        assert a == b, key


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon mamba"])
def test_weights_that_transformers_divides_as_it_loads_them_are_written_as_stored(name: str, tmp_path: Path) -> None:
    """The scale belongs to their beginning; transformers 5.23 applies it to what it has loaded."""
    import torch
    import transformers

    stored = make(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rescale_prenorm_residual": True}))
    graph = understand(open_checkpoint(str(tmp_path)))
    assert relative(stored, forward(graph, TOKENS)) <= 1e-5
    loaded = getattr(transformers, TINY[name].cls).from_pretrained(tmp_path)
    with torch.no_grad():
        divided = loaded(torch.tensor([TOKENS])).logits[0].numpy()
        for number in range(3):
            loaded.backbone.layers[number].mixer.out_proj.weight.mul_(3**0.5)
        restored = loaded(torch.tensor([TOKENS])).logits[0].numpy()
    assert relative(stored, divided) > 0.1 and relative(stored, restored) <= 1e-5
    assert any("transformers 5.23 divides them" in note for note in graph.notes)
