"""Granite 4 Vision: rows of every projector as transformers makes them, and added before the blocks that read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import ggferry
from ggferry.converters.forward.towers import granite4_vision as tower
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint, projectors
from ggferry.converters.understand import understand
from ggferry.formats.errors import GgferryError, UsageError, VerificationError
from ggferry.formats.readers.gguf import open_gguf
from helpers import llama_clip
from helpers.llama_api import encoded_and_decoded
from helpers.multimodal import LIMIT, MEAN, STD, TEXT, check, picture, rows_of, save, written
from helpers.third_party_fixtures import ROOT
from helpers.tiny_models import relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
SIDE, IMAGE = 48, 290
IN_LLAMA_CPP = 5e-3
SEEN = {"vision_feature_select_strategy": "full"}
PAIRS, CORNERS, OF_CORNERS = [[-2, 3], [1, 5], [-1, 0]], [1, 7, 2, 6], -3
"""Blocks in no order; states counted from either end."""
BLOCKS = 8


def model(activation: str = "gelu_pytorch_tanh", **top: Any) -> Any:
    import transformers

    text = {
        **TEXT,
        "num_hidden_layers": BLOCKS,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 128,
        "intermediate_size": 56,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": 6,
        "hidden_act": activation,
    }
    queries = {
        "model_type": "blip_2_qformer",
        "num_hidden_layers": 1,
        "intermediate_size": 40,
        "cross_attention_frequency": 1,
        "use_qformer_text_input": False,
    }
    stated = {
        "downsample_rate": "2/4",
        "deepstack_layer_map": PAIRS,
        "spatial_target_layers": CORNERS,
        "spatial_vision_layer": OF_CORNERS,
        "image_grid_pinpoints": [[SIDE * high, SIDE * wide] for high in (1, 2, 3) for wide in (1, 2, 3)],
        "image_token_index": IMAGE,
        **SEEN,
        **top,
    }
    config = transformers.Granite4VisionConfig(text_config=text, vision_config=vision, qformer_config=queries, **stated)
    return transformers.Granite4VisionForConditionalGeneration(config)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model in float64, and its folder."""
    folder, tiny = tmp_path_factory.mktemp("granite") / "tiny", model()
    save(folder, tiny)
    return tiny.double().eval(), folder


def read(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def copied(folder: Path, to: Path, **changes: Any) -> Path:
    """The folder's files, with other members in the configuration: None takes one away."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = {key: value for key, value in {**read(folder), **changes}.items() if value is not None}
    (to / "config.json").write_text(json.dumps(config))
    return to


def tiles(stack: Any) -> Any:
    """The tiles of a stack, as a processor makes them of one picture."""
    return stack.view(3, -1, SIDE, SIDE).transpose(0, 1)[None]


def rows(tiny: Any, stack: Any, size: tuple[int, int] | None = None) -> Any:
    """transformers' rows of a stack of tiles, by default of one column; those of each projector beside each other in
    the order of the blocks that read them. `size`: height and width of the picture."""
    size = size or (stack.shape[1] - SIDE, SIDE)
    found = tiny.model.get_image_features(tiles(stack), torch.tensor([size]), **SEEN).deepstack_features
    return torch.cat([part[0] for _, part in sorted(found, key=lambda one: one[0])], -1)


@pytest.mark.slow
def test_rows_are_transformers(made: tuple[Any, Path], tmp_path: Path) -> None:
    tiny, folder = made
    given = {"picture": picture(3 * SIDE, SIDE)}
    second = check(folder, tmp_path / "a.gguf", tiny, rows, given, mmproj="only")
    notes = second.receipt["notes"]
    assert not [line for line in notes if "does not use" in line]
    assert [line for line in notes if "a norm behind the last block" in line]
    keys = open_gguf(second.path).metadata
    assert list(keys["clip.vision.feature_layer"].data) == [3, 1, 1, 2, 0, 1, 1]
    assert list(keys["clip.vision.projector.spatial_offsets"].data) == [-1, 0, 2, -1, -1, 3, 1]
    assert list(keys["clip.vision.image_grid_pinpoints"].data)[2:4] == [2 * SIDE, SIDE], "width before height"
    stacked = llama_clip.embedded(second.path, **given, grid=(1, 2), size=(SIDE, 2 * SIDE))
    assert relative(rows_of(second.path, given), stacked) <= IN_LLAMA_CPP
    with pytest.raises(UsageError, match="the height a multiple"):
        rows_of(second.path, {"picture": picture(SIDE + 6, SIDE)})
    alone = {"picture": picture(SIDE, SIDE)}
    assert relative(rows_of(second.path, alone), llama_clip.embedded(second.path, **alone)) <= IN_LLAMA_CPP
    wide = picture(7 * SIDE, SIDE)  # three columns, two rows, of a picture not as high
    expected = rows(tiny, torch.from_numpy(wide).double(), (80, 140)).detach().numpy()
    assert relative(expected, llama_clip.embedded(second.path, picture=wide, grid=(3, 2), size=(140, 80))) <= 5e-3


def test_the_text_model_reads_rows_where_transformers_adds_them(made: tuple[Any, Path], tmp_path: Path) -> None:
    tiny, folder = made
    before, after, stack = [1, 17, 45, 99], [5, 8, 250, 31], torch.from_numpy(picture(2 * SIDE, SIDE)).double()
    with torch.no_grad():
        own = rows(tiny, stack)
        ids = torch.tensor([[*before, *[IMAGE] * len(own), *after]])
        found = tiny(input_ids=ids, pixel_values=tiles(stack), image_sizes=torch.tensor([[SIDE, SIDE]]), **SEEN)
    graph = understand(open_checkpoint(str(folder)))
    keys = {key: value.data for key, value, _ in graph.written()}
    assert list(keys["granite.deepstack_mapping"]) == [-1, 1, 2, 3, -1, 4, 5, 6]
    path = str(write(graph, tmp_path / "a.gguf"))
    expected = found.logits[0, -len(after) :].numpy()
    theirs = encoded_and_decoded(path, before, after, tmp_path, rows=own.numpy())
    assert relative(expected, theirs) <= IN_LLAMA_CPP
    exchanged = encoded_and_decoded(path, before, after, tmp_path, rows=np.roll(own.numpy(), TEXT["hidden_size"], 1))
    assert relative(expected, exchanged) > 20 * IN_LLAMA_CPP


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["quick_gelu", "silu"])
def test_rows_of_other_activations_are_transformers(activation: str, tmp_path: Path) -> None:
    tiny = model(activation)
    save(tmp_path / "tiny", tiny)
    given = {"picture": picture(3 * SIDE, SIDE)}
    second = check(tmp_path / "tiny", tmp_path / "a.gguf", tiny.double().eval(), rows, given, mmproj="only")
    stacked = llama_clip.embedded(second.path, **given, grid=(1, 2), size=(SIDE, 2 * SIDE))
    assert relative(rows_of(second.path, given), stacked) <= IN_LLAMA_CPP


@pytest.mark.slow
def test_as_its_publisher_keeps_it(made: tuple[Any, Path], tmp_path: Path) -> None:
    """Keys and names of ibm-granite/granite-vision-4.1-4b (config.json)."""
    _, folder = made
    config = read(folder)
    config["text_config"] |= {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
    config.pop("qformer_config")
    config |= {"use_spatial_sampling": True, "spatial_stride": 2, "use_image_newline_parameter": True}
    config |= {"projector_hidden_act": "gelu", "image_seq_length": 576}
    other = copied(folder, tmp_path / "theirs", **config)
    (other / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    names = {name: name.replace("vision_tower.", "vision_tower.vision_model.") for name in tensors}
    save_file({names[name]: x for name, x in tensors.items()}, other / "model.safetensors")
    settings = {"image_mean": MEAN, "image_std": STD, "do_pad": True, "size": {"height": SIDE, "width": SIDE}}
    settings |= {"image_processor_type": "LlavaNextImageProcessor", "crop_size": {"height": SIDE, "width": SIDE}}
    settings |= {"image_grid_pinpoints": config["image_grid_pinpoints"], "downsample_rate": "2/4", "patch_size": 6}
    (other / "preprocessor_config.json").write_text(json.dumps(settings))
    second = written(other, tmp_path / "a.gguf")
    first = json.loads((tmp_path / "a.gguf.receipt.json").read_text())
    for receipt in (first, second.receipt):
        assert not [line for line in receipt["notes"] if "does not use" in line]
    given = {"picture": picture(2 * SIDE, SIDE)}
    assert relative(rows_of(str(folder), given), rows_of(second.path, given)) <= LIMIT


def test_a_picture_as_a_whole_is_the_processors(made: tuple[Any, Path]) -> None:
    import transformers
    from PIL import Image

    tiny, folder = made
    page = ROOT / "docs" / "page-model.png"
    square = {"height": SIDE, "width": SIDE}
    settings = {"size": square, "crop_size": square, "image_grid_pinpoints": tiny.config.image_grid_pinpoints}
    processor = transformers.LlavaNextImageProcessorPil(**settings, image_mean=MEAN, image_std=STD)
    shown = processor(images=[Image.open(page).convert("RGB")], return_tensors="np")
    size = tuple(int(edge) for edge in np.asarray(shown["image_sizes"])[0])
    values = torch.from_numpy(np.asarray(shown["pixel_values"][0], np.float64)).transpose(0, 1).reshape(3, -1, SIDE)
    expected = rows(tiny, values, size).detach().numpy()
    with ggferry.open_model(folder) as here:
        found = here.features(image=page)
    assert found.shape[0] == 16 and relative(expected[:16], found) <= LIMIT


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rows of no projector for the first block": ({"deepstack_layer_map": [[-2, 3], [1, 5], [-1, 4]]}, "first stand"),
    "two projectors of one block": ({"spatial_target_layers": [1, 7, 2, 3]}, "one block reads one row"),
    "a block that the text model has not": ({"spatial_target_layers": [1, 8, 2, 6]}, "of 8"),
    "a block from the end": ({"deepstack_layer_map": [[-2, 3], [1, -1], [-1, 0]]}, "first stand"),
    "states that go into the first block": ({"spatial_vision_layer": 0}, "goes into the first"),
    "states that no block has": ({"spatial_vision_layer": -6}, "goes into the first"),
    "no pairs": ({"deepstack_layer_map": [[-2, 3, 1], [5, -1], [-1, 0]]}, "."),
    "three corners": ({"spatial_target_layers": [1, 7, 2]}, "3 corners"),
    "windows of another size": ({"downsample_rate": "3/6"}, "does not fit its role"),
    "no windows": ({"downsample_rate": "half"}, "downsample_rate"),
    "rows without the first patch": ({"vision_feature_select_strategy": "default"}, "select_strategy"),
    "pictures of no whole tiles": ({"image_grid_pinpoints": [[48, 50]]}, "image_grid_pinpoints"),
}
OF_PARTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "another epsilon": ("vision_config", {"layer_norm_eps": 1e-5}, "layer_norm_eps"),
    "another activation": ("vision_config", {"hidden_act": "relu"}, "hidden_act"),
    "another epsilon of the queries": ("qformer_config", {"layer_norm_eps": 1e-6}, "layer_norm_eps"),
    "another activation of the queries": ("qformer_config", {"hidden_act": "relu"}, "hidden_act"),
    "two layers of queries": ("qformer_config", {"num_hidden_layers": 2}, "query_layers"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [*REFUSED, *OF_PARTS])
def test_what_gguf_cannot_say_is_refused_by_name(case: str, made: tuple[Any, Path], tmp_path: Path) -> None:
    _, folder = made
    if case in REFUSED:
        changes, told = REFUSED[case]
    else:
        part, values, told = OF_PARTS[case]
        changes = {part: {**read(folder)[part], **values}}
    with pytest.raises(GgferryError, match=told):
        written(copied(folder, tmp_path / "t", **changes), tmp_path / "a.gguf")
    assert not [*tmp_path.glob("*.gguf")]


def planted(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    from ggferry.converters import understand as module

    spec = projectors()["granite4_vision"]
    wrong = replace(spec, **changes)
    monkeypatch.setattr(module, "projectors_of_classes", lambda names: {"granite4_vision": wrong})


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["order", "kind"])
def test_projectors_in_another_order_are_noticed(
    wrong: str, made: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By transformers, and by the proof, which reads the configuration again. llama.cpp's converter (b11549) sorts the
    pairs, and takes a projector's place among them for its number."""
    tiny, folder = made
    given, spec = picture(2 * SIDE, SIDE), projectors()["granite4_vision"]
    expected = rows(tiny, torch.from_numpy(given).double()).detach().numpy()
    first, second = ("averaging_first", "corners_first") if wrong == "order" else ("corners_first", "averaging_first")
    numbers = {"averaging_first": (0, 3, 4, 1, 6, 2, 5), "corners_first": (1, 6, 2, 5, 0, 3, 4)}
    hparams = [
        replace(one, derive=lambda values, name=one.name: numbers[name])
        if one.name in numbers and wrong == "order"
        else one
        for one in spec.hparams
    ]
    lists = (("layerwise_projectors.", first, "projectors."), ("spatial_projectors.", second, "projectors."))
    dialect = replace(spec.dialect("hf"), renumbered=lists)
    planted(monkeypatch, dialects=spec.with_dialect(dialect).dialects, hparams=tuple(hparams))
    if wrong == "kind":  # the others' numbers, which no two may share
        with pytest.raises(GgferryError):
            written(folder, tmp_path / "a.gguf", mmproj="only")
        return
    assert relative(expected, rows_of(str(folder), {"picture": given})) > 100 * LIMIT
    with pytest.raises(VerificationError, match="another order"):
        written(folder, tmp_path / "a.gguf", mmproj="only")


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        lambda values: tuple(at - (at == 0) for at in (3, 2, 1, 2, 1, 1, 1)),  # states counted from the first block on
        lambda values: (3, 1, 1, 1, 1, 1, 1),
    ],
)
def test_other_states_are_noticed_by_transformers(
    wrong: Any, made: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, folder = made
    given, spec = picture(2 * SIDE, SIDE), projectors()["granite4_vision"]
    expected = rows(tiny, torch.from_numpy(given).double()).detach().numpy()
    hparams = tuple(replace(one, derive=wrong) if one.name == "v_feature_layer" else one for one in spec.hparams)
    planted(monkeypatch, hparams=hparams)
    assert relative(expected, rows_of(str(folder), {"picture": given})) > 100 * LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_mean", lambda x: x[::2, ::2]),
        ("HEAD", 32),
        ("_windows", lambda x, side: x.reshape(-1, side * side, x.shape[-1])),
    ],
)
def test_a_forward_pass_that_is_wrong_is_noticed_by_transformers(
    name: str, wrong: Any, made: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, folder = made
    given = picture(2 * SIDE, SIDE)
    expected = rows(tiny, torch.from_numpy(given).double()).detach().numpy()
    monkeypatch.setattr(tower, name, wrong)
    assert relative(expected, rows_of(str(folder), {"picture": given})) > 100 * LIMIT


@pytest.mark.slow
def test_a_row_at_the_end_that_is_not_written_is_noticed_by_the_proof(
    made: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggferry.converters.schema.layouts.values import Pointwise

    _, folder = made
    spec = projectors()["granite4_vision"]
    newline = next(role for role in spec.roles if role.name == "v.image_newline")
    source = replace(newline.sources["hf"], layout=Pointwise(np.negative, np.negative))
    wrong = replace(newline, sources={**newline.sources, "hf": source})
    planted(monkeypatch, roles=tuple(wrong if role is newline else role for role in spec.roles))
    with pytest.raises(VerificationError):
        written(folder, tmp_path / "a.gguf", mmproj="only")
