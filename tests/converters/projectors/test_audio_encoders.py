"""What hears (and Gemma 4's eyes): both sides make of a spectrum what transformers makes of it, and llama.cpp, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import projectors
from ggferry.converters.projectors._qwen_audio_encoder import positions
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.parts import Reshape, Split
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError, UnsupportedError, UsageError, VerificationError
from helpers import llama_clip, multimodal
from helpers.audio_encoders import LIMIT, TEXT, WHISPER, check, ear_of, saved, written
from helpers.sampling import one_in
from helpers.tiny_audio_encoders import AUDIO_ENCODERS, PUBLISHED, ULTRAVOX, granite_model, whisper
from helpers.tiny_models import relative, whole

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_are_those_of_the_published_formula(name: str, tmp_path: Path) -> None:
    given, features = AUDIO_ENCODERS[name](tmp_path / "hf")
    check(tmp_path / "hf", tmp_path, given, features)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", one_in(3, [name for name in AUDIO_ENCODERS if name not in PUBLISHED]))
def test_rows_are_transformers(name: str, tmp_path: Path) -> None:
    given, features = AUDIO_ENCODERS[name](tmp_path / "hf")
    made = check(tmp_path / "hf", tmp_path, given, features)
    assert made.architecture.projector == PROJECTORS.get(name, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voxtral", "qwen2a"])
def test_a_scale_of_embeddings_that_encoders_keep_multiplies_nothing(name: str, tmp_path: Path) -> None:
    """transformers reads it and does not use it (`embed_scale`): the model is sound with either value."""
    import torch
    import transformers

    given, _ = AUDIO_ENCODERS[name](tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text())
    config["audio_config"]["scale_embedding"] = True
    path.write_text(json.dumps(config))
    cls = getattr(transformers, config["architectures"][0])
    model, mel = cls.from_pretrained(tmp_path / "hf").double(), torch.tensor(given["spectrum"]).double()[None]
    if name == "voxtral":
        check(tmp_path / "hf", tmp_path, given, lambda: model.get_audio_features(mel, return_dict=True).pooler_output)
    else:
        tower, projector = model.model.audio_tower, model.model.multi_modal_projector
        check(tmp_path / "hf", tmp_path, given, lambda: projector(tower(mel).last_hidden_state))


PROJECTORS = {
    "granite_speech_in_whole_blocks": "granite_speech",
    "granite_speech_plus": "granite_speech",
    "glma_of_its_publisher": "glma",
    "dots3note_a": "dots3note_v+dots3note_a",
    "gemma4uv": "gemma4uv+gemma4ua",
    "gemma4ua": "gemma4uv+gemma4ua",
    **dict.fromkeys(("qwen2_5o_ear", "qwen2_5o_eye"), "qwen2.5o"),
    **dict.fromkeys(("qwen3_omni_ear", "qwen3_omni_eye"), "qwen3vl_merger+qwen3a"),
    **dict.fromkeys(("gemma4_of_an_embedder", "gemma4a", "gemma4a_unbounded", "gemma4v_of_both"), "gemma4v+gemma4a"),
}
OTHERWISE = {
    "voxtral": "averages every two states",
    "meralion": "norms the states after",
    "lfm2a": "512 columns only",
    "glma": "asks for a table of positions",
    "glma_of_its_publisher": "adds a table of positions",
}
"""What llama.cpp computes otherwise, or does not compute, and what a note says of it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in AUDIO_ENCODERS if name not in OTHERWISE])
def test_llama_cpp_makes_the_same_rows(name: str, tmp_path: Path) -> None:
    """Within what ggml's tables in half precision (GELU), and kernels rounded to it, cost."""
    given, _ = AUDIO_ENCODERS[name](tmp_path / "hf")
    made = written(tmp_path / "hf", tmp_path)
    found = llama_clip.embedded(made.checkpoint.path, **given)
    assert relative(forward(made, (), inputs=given), found) <= 2e-3


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_llama_cpp_does_otherwise_is_said(name: str, tmp_path: Path) -> None:
    AUDIO_ENCODERS[name](tmp_path)
    assert any(OTHERWISE[name] in note for note in ear_of(tmp_path).notes)


@pytest.mark.parametrize(("name", "runs"), [("qwen3_omni_ear", []), ("qwen2_5o_ear", ["llama.cpp"])])
def test_halves_of_different_width_are_run_by_nobody(name: str, runs: list[str], tmp_path: Path) -> None:
    """Deepstack widens the rows of pictures, and mtmd_context wants those of both halves equally wide."""
    AUDIO_ENCODERS[name](tmp_path / "hf")
    receipt = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), mmproj="only"))[0].receipt
    assert receipt["runtimes"]["run_it"] == runs
    assert any("halves differ in width" in note for note in receipt["notes"]) is (not runs)


@pytest.mark.slow
def test_audio_flamingo_without_biases_is_run_by_nobody(tmp_path: Path) -> None:
    import transformers as t

    config = t.AudioFlamingo3Config(
        audio_config=WHISPER, text_config={"model_type": "qwen2", **TEXT}, projector_bias=False
    )
    saved(tmp_path / "hf", t.AudioFlamingo3ForConditionalGeneration(config))
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), mmproj="only"))[0]
    assert made.receipt["runtimes"]["run_it"] == []
    with pytest.raises(AssertionError):
        llama_clip.embedded(made.path, spectrum=np.ones((16, 64), np.float32))


@pytest.mark.slow
def test_llama_cpp_makes_half_as_many_rows_for_voxtral(tmp_path: Path) -> None:
    """Where this fails, llama.cpp has learned better, and the remark is to go."""
    given, _ = AUDIO_ENCODERS["voxtral"](tmp_path / "hf")
    made = written(tmp_path / "hf", tmp_path)
    assert len(llama_clip.embedded(made.checkpoint.path, **given)) * 2 == len(forward(made, (), inputs=given))


@pytest.mark.slow
def test_llama_cpp_norms_meralions_states_late(tmp_path: Path) -> None:
    given, _ = AUDIO_ENCODERS["meralion"](tmp_path / "hf")
    made = written(tmp_path / "hf", tmp_path)
    assert relative(forward(made, (), inputs=given), llama_clip.embedded(made.checkpoint.path, **given)) > 2e-3


@pytest.mark.slow
def test_llama_cpp_adds_positions_where_glm_asr_rotates(tmp_path: Path) -> None:
    """Where this fails, llama.cpp has learned better, and the caveats of the table are to go."""
    given, _ = AUDIO_ENCODERS["glma_of_its_publisher"](tmp_path / "hf")
    made = written(tmp_path / "hf", tmp_path)
    rows, found = forward(made, (), inputs=given), llama_clip.embedded(made.checkpoint.path, **given)
    assert rows.shape == found.shape
    assert relative(rows[[0, -1]], found[[0, -1]]) <= 2e-3 < relative(rows[1:-1], found[1:-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glma", "glma_of_its_publisher"])
def test_both_halves_of_glm_asr(name: str, tmp_path: Path) -> None:
    """The text half of either class is LLaMA's, compared with transformers' class where it has one."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    given, features = AUDIO_ENCODERS[name](tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    text = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT)).eval()
    if name != "glma":
        torch.manual_seed(2)
        words = {key: torch.randn(value.shape) * 0.1 + (value.dim() == 1) for key, value in text.state_dict().items()}
        save_file(load_file(path) | words, path)
        text.load_state_dict(words)
    second = multimodal.written(tmp_path / "hf", tmp_path / "x.gguf")
    first = json.loads((tmp_path / "x.gguf.receipt.json").read_text())
    assert not [note for note in (*first["notes"], *second.receipt["notes"]) if "does not use" in note]
    with torch.no_grad():
        model = text if name != "glma" else transformers.GlmAsrForConditionalGeneration.from_pretrained(tmp_path / "hf")
        expected = model.eval()(torch.tensor([[5, 9, 11, 3]])).logits[0].numpy()
    assert relative(expected, forward(graph_of(str(tmp_path / "x.gguf")), (5, 9, 11, 3))) <= LIMIT
    expected = features().detach()
    assert relative(expected.numpy(), forward(graph_of(second.path), (), inputs=given)) <= LIMIT


def test_qwen3_asr_under_qwens_own_names(tmp_path: Path) -> None:
    """They keep all under `thinker`, and the projector within the tower."""
    from safetensors.numpy import load_file, save_file

    given, features = AUDIO_ENCODERS["qwen3a"](tmp_path / "hf")
    path, projector = tmp_path / "hf" / "model.safetensors", "multi_modal_projector.linear_"
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(path).items()}
    save_file({f"thinker.{name.replace(projector, 'audio_tower.proj')}": x for name, x in tensors.items()}, path)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    inner = {part: config.pop(part) for part in ("audio_config", "text_config")}
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, "thinker_config": inner}))
    check(tmp_path / "hf", tmp_path, given, features)
    assert any("its attention sees windows of 400 frames" in note for note in ear_of(tmp_path / "hf").notes)


def test_positions_that_no_checkpoint_holds_are_transformers() -> None:
    from transformers.models.qwen3_asr.modeling_qwen3_asr import SinusoidsPositionEmbedding

    expected = SinusoidsPositionEmbedding(1500, 24).positional_embedding.numpy()
    found = np.array(positions({"a_n_ctx": 1500, "a_n_embd": 24}), np.float32).reshape(1500, 24)
    assert np.abs(expected - found).max() <= LIMIT  # neighbors among float32 angles of more than a thousand: 1e-4
    assert np.abs(expected - found)[:13].max() <= 1e-6


def test_batch_norms_are_folded(tmp_path: Path) -> None:
    norm = granite_model(tmp_path).model.encoder.layers[1].conv.batch_norm
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    found = whole(ear_of(tmp_path))
    for name, expected in (("weight", factor), ("bias", norm.bias - norm.running_mean * factor)):
        assert np.abs(found[f"a.blk.1.conv_norm.{name}"] - expected.detach().numpy()).max() <= 1e-6


def test_factors_of_queries_are_made_positive(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    AUDIO_ENCODERS["gemma4a"](tmp_path)
    raw = load_file(tmp_path / "model.safetensors")["model.audio_tower.layers.0.self_attn.per_dim_scale"]
    found = whole(ear_of(tmp_path))["a.blk.0.per_dim_scale.weight"]
    assert np.abs(found - np.log1p(np.exp(raw.astype(np.float64)))).max() <= 1e-6


def test_what_llama_cpp_takes_for_granted_is_checked(tmp_path: Path) -> None:
    granite_model(tmp_path, num_hidden_layers=3)
    with pytest.raises(GgferryError, match="a_proj_layers"):
        ear_of(tmp_path)


def test_an_older_ultravox_is_refused(tmp_path: Path) -> None:
    """Its second norm stands behind the network, where llama.cpp has none."""
    whisper(
        tmp_path,
        ULTRAVOX | {"projector_ln_mid": False},
        "audio_tower.",
        {"multi_modal_projector.ln_post.weight": (40,)},
    )
    with pytest.raises(GgferryError, match="projector_ln_mid"):
        ear_of(tmp_path)


def test_the_text_model_of_ultravox_and_the_adapter_of_granite_speech_are_named(tmp_path: Path) -> None:
    AUDIO_ENCODERS["ultravox"](tmp_path / "u")
    AUDIO_ENCODERS["granite_speech"](tmp_path / "g")
    for folder, words in (("u", "meta-llama/Llama-3.2-1B-Instruct"), ("g", "adapter_config.json")):
        assert any(words in note for note in ear_of(tmp_path / folder).notes)


def test_a_checkpoint_that_only_hears_becomes_one_file(tmp_path: Path) -> None:
    """Ultravox's text model is a checkpoint of its own; of what holds one that is not read, the hint is given."""
    from safetensors.numpy import load_file, save_file

    AUDIO_ENCODERS["ultravox"](tmp_path / "hf")
    result = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf")))[0]
    assert Path(result.path).name == "mmproj-x.gguf" and not (tmp_path / "x.gguf").exists()
    assert any("no text model is written" in note for note in result.receipt["notes"])
    path = tmp_path / "hf" / "model.safetensors"
    save_file(load_file(path) | {"language_model.model.norm.weight": np.ones(4, np.float32)}, path)
    with pytest.raises(UnsupportedError, match=r"text model is a checkpoint of its own.*--mmproj only"):
        convert(Request(str(tmp_path / "hf"), str(tmp_path / "y.gguf")))
    assert not list(tmp_path.glob("*y.gguf*"))


@pytest.mark.parametrize("name", ["VoxtralRealtimeForConditionalGeneration", "MusicFlamingoForConditionalGeneration"])
def test_a_projector_that_is_not_read_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    AUDIO_ENCODERS["ultravox"](tmp_path / "hf")
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"architectures": [name]}))
    with pytest.raises(UsageError, match=f"of {name}: .*llama.cpp"):
        convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), mmproj="only"))


def planted(name: str, monkeypatch: pytest.MonkeyPatch, change: Callable[[Role], Role]) -> None:
    """Read with a table whose roles are changed."""
    from ggferry.converters import understand

    spec = projectors()[name]
    wrong = replace(spec, roles=tuple(map(change, spec.roles)))
    monkeypatch.setattr(understand, "projectors_of_classes", lambda names: {name: wrong})


def exchanged(table: dict[str, Role], one: str, other: str) -> Callable[[Role], Role]:
    """The sources of two roles of a block exchanged, weights and biases."""
    names = {one: other, other: one}

    def change(role: Role) -> Role:
        series, _, rest = role.name.partition("{n}.")
        stem, _, last = rest.partition(".")
        wanted = f"{series}{{n}}.{names.get(stem)}.{last}"
        return replace(role, sources=table[wanted].sources) if stem in names and wanted in table else role

    return change


MISTAKES = {
    "voxtral": ("ln1", "ln2"),
    "glma": ("attn_q", "attn_out"),
    "qwen3a": ("attn_q", "attn_k"),
    "granite_speech": ("norm_conv", "ln1"),
    "ultravox": ("attn_q", "attn_v"),
    "lfm2a": ("ffn_up", "ffn_up_1"),
    "gemma4a": ("conv_norm", "norm_conv"),
    "gemma4v_of_both": ("ln1", "ln2"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_tensors_that_are_exchanged_are_noticed_by_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, features = AUDIO_ENCODERS[name](tmp_path)
    projector = PROJECTORS.get(name, name)
    table = {role.name: role for role in projectors()[projector].roles}
    planted(projector, monkeypatch, exchanged(table, *MISTAKES[name]))
    expected = features().detach()
    found = forward(ear_of(tmp_path), (), inputs=given)
    assert relative(expected.reshape(found.shape).numpy(), found) > 100 * LIMIT


LAYOUTS: dict[str, tuple[str, Layout]] = {
    "glma": ("attn_k.weight", SAME),
    "granite_speech": ("attn_v.weight", Split("0", "a_n_embd")),
    "gemma4a": ("per_dim_scale.weight", SAME),
    "gemma4v": ("v.patch_embd.weight", Reshape(("v_n_embd", "3", "v_patch_size", "v_patch_size"))),
    "gemma4uv": ("v.patch_norm.1.weight", SAME),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_are_wrong_are_noticed_by_the_proof(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's side of a proof uses no layout."""
    AUDIO_ENCODERS[name](tmp_path / "hf")
    role_name, layout = LAYOUTS[name]

    def change(role: Role) -> Role:
        if not role.name.endswith(role_name):
            return role
        return replace(role, sources={**role.sources, "hf": replace(role.sources["hf"], layout=layout)})

    planted(PROJECTORS.get(name, name), monkeypatch, change)
    with pytest.raises(VerificationError):
        written(tmp_path / "hf", tmp_path)
