"""RWKV checkpoints: BlinkDL's state dicts without a configuration, and their Hugging Face forms; against transformers
(RWKV-4), the published equations in float64 and llama.cpp (RWKV-6, 7)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import EXACT_LOGITS
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import (
    CorruptError,
    GgferryError,
    MissingError,
    ShapeError,
    UnexpectedTensorError,
    UnsupportedError,
)
from ggferry.formats.gguf.values import string
from helpers.hostile import GGUF, JSON, answers
from helpers.llama_cpp import continuations
from helpers.rwkv_models import Tensors, computed, finch, goose
from helpers.tiny_models import TOKENS, check_streaming, make, relative, whole, write

pytestmark = pytest.mark.filterwarnings("ignore")
BARE = VocabOptions(none=True)


@pytest.fixture(scope="module")
def pth(fixtures: Path) -> Path:
    return fixtures / "legacy-other" / "hf" / "rwkv4-s64" / "rwkv4-tiny.pth"


def saved(path: Path, tensors: dict[str, Any]) -> Path:
    import torch

    torch.save({name: torch.as_tensor(tensor) for name, tensor in tensors.items()}, path)
    return path


def as_hf(tensors: Tensors, folder: Path, config: dict[str, Any], turn: Callable[[str], tuple[str, bool]]) -> Path:
    """The tensors in a Hugging Face folder; `turn`: name → its name there, and whether it is transposed."""
    from safetensors.numpy import save_file

    folder.mkdir()
    names = {name: turn(name) for name in tensors}
    kept = {new: tensors[old].T.copy() if rotated else tensors[old] for old, (new, rotated) in names.items() if new}
    save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def rwkv6_name(name: str) -> tuple[str, bool]:
    for old, new in (
        (".att.", ".attention."),
        (".ffn.", ".feed_forward."),
        (".ln0.", ".pre_ln."),
        ("emb.", "embeddings."),
    ):
        name = name.replace(old, new)
    return (name if name.startswith("head") else f"rwkv.{name}"), False


def fla_name(name: str) -> tuple[str, bool]:
    if re.match(r"blocks\.0\.att\.v[012]", name):
        return "", False
    name = re.sub(r"^blocks\.", "model.layers.", name)
    for old, new in (
        ("emb.", "model.embeddings."), ("head.", "lm_head."), ("ln_out.", "model.norm."), (".ln0.", ".pre_norm."),
        (".ln1.", ".attn_norm."), (".ln2.", ".ffn_norm."), (".ln_x.", ".g_norm."), (".att.", ".attn."),
        ("attn.key", "attn.k_proj"), ("attn.value", "attn.v_proj"), ("attn.receptance", "attn.r_proj"),
        ("attn.output", "attn.o_proj"),
    ):
        name = name.replace(old, new) if not old.startswith(("emb", "head", "ln_out")) or name.startswith(old) else name
    low = re.fullmatch(r"(.*\.attn\.[wavg])([012])", name)
    if low is None:
        return name, False
    place = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}[low[2]]
    return f"{low[1]}_lora.lora.{place}", low[2] != "0"


RWKV6 = {
    "architectures": ["Rwkv6ForCausalLM"], "hidden_size": 48, "head_size": 8, "head_size_divisor": 8,
    "intermediate_size": 88, "num_hidden_layers": 3, "layer_norm_epsilon": 1e-5, "rescale_every": 0, "vocab_size": 328,
}
RWKV7 = {
    "architectures": ["RWKV7ForCausalLM"], "hidden_size": 128, "head_dim": 64, "decay_low_rank_dim": 5,
    "a_low_rank_dim": 6, "v_low_rank_dim": 7, "gate_low_rank_dim": 9, "intermediate_size": 88, "hidden_act": "sqrelu",
    "num_hidden_layers": 3, "norm_eps": 1e-5, "vocab_size": 328, "tie_word_embeddings": False,
}


def goose_vectors() -> Tensors:
    """RWKV-7 with its biases, and the vectors of its feed-forward half, as flash-linear-attention keeps them."""
    return {name: x.reshape(-1) if re.search(r"att\.[wav]0$|ffn\.x_k$", name) else x for name, x in goose().items()}


def goose_joined() -> Tensors:
    """RWKV-7 as flash-linear-attention's first checkpoints keep it."""
    tensors = goose_vectors()
    shares = {
        n: np.concatenate([tensors.pop(f"blocks.{n}.att.x_{x}") for x in "rwkvag"]).reshape(6, -1) for n in range(3)
    }
    return {**tensors, **{f"blocks.{n}.att.x_x": x for n, x in shares.items()}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    """Each generation in each form, with its logits by the equations."""
    folder = tmp_path_factory.mktemp("rwkv")
    six, seven = finch(), goose()
    logits = {"6": computed(six, TOKENS), "7": computed(seven, TOKENS)}
    places = {
        "6 pth": saved(folder / "finch.pth", six),
        "6 hf": as_hf(six, folder / "6", RWKV6, rwkv6_name),
        "6 rescaled": as_hf(six, folder / "6r", {**RWKV6, "rescale_every": 2}, rwkv6_name),
        "7 pth": saved(folder / "goose.pth", seven),
        "7 hf": as_hf(goose_vectors(), folder / "7", RWKV7, fla_name),
        "7 joined": as_hf(goose_joined(), folder / "7j", RWKV7, fla_name),
    }
    return {name: (path, logits[name[0]]) for name, path in places.items()}


FORMS = ("6 pth", "6 hf", "6 rescaled", "7 pth", "7 hf", "7 joined")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_both_sides_compute_the_equations(
    form: str, models: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    path, expected = models[form]
    result = convert(Request(str(path), str(tmp_path / "x.gguf"), Options(outtype="f32"), vocab=BARE))[0]
    assert result.receipt["architecture"] == f"rwkv{form[0]}" and result.receipt["verified"] == "full"
    for side in (str(path), result.path):  # halving the stream moves it against the norms' epsilon
        assert relative(expected, forward(graph_of(side), TOKENS)) <= (1e-4 if form == "6 rescaled" else 1e-5)
    assert result.receipt["logits"]["relative_rms"] <= EXACT_LOGITS


@pytest.mark.parametrize("generation", "67")
def test_every_form_of_a_model_gives_the_same_tensors(
    generation: str, models: dict[str, tuple[Path, np.ndarray]]
) -> None:
    forms = [form for form in FORMS if form.startswith(generation) and form != "6 rescaled"]
    first, *others = (whole(understand(open_checkpoint(str(models[form][0])))) for form in forms)
    for other in others:
        assert set(first) == set(other) and all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("form", FORMS)
def test_any_rows_of_a_tensor_are_those_of_the_whole(form: str, models: dict[str, tuple[Path, np.ndarray]]) -> None:
    check_streaming(understand(open_checkpoint(str(models[form][0]))))


@pytest.mark.slow
def test_llama_cpp_continues_alike(models: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    written = {}
    for form in FORMS:
        graph = understand(open_checkpoint(str(models[form][0])))
        written[form] = write(graph, tmp_path / f"{form}.gguf")
    for form, found in zip(FORMS, continuations(TOKENS, 6, *written.values()), strict=True):
        tokens, graph = list(TOKENS), graph_of(str(written[form]))
        for token, probability in found:
            scores = forward(graph, tokens)[-1].astype(np.float64)
            scores -= np.log(np.exp(scores - scores.max()).sum()) + scores.max()
            assert token == int(scores.argmax()) and probability == pytest.approx(scores.max(), abs=1e-4), form
            tokens.append(token)


def test_rescaled_weights_are_halved_block_by_block(models: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    graph = understand(open_checkpoint(str(models["6 rescaled"][0])))
    assert {key: value.data for key, value, _ in graph.written()}["rwkv6.rescale_every_n_layers"] == 2
    six, found = finch(), open_checkpoint(str(write(graph, tmp_path / "x.gguf")))
    for n, share in ((0, 1), (1, 1), (2, 2)):
        for name, source in (("time_mix_output", "att.output"), ("channel_mix_value", "ffn.value")):
            ref = found.tensors[f"blk.{n}.{name}.weight"]
            data = np.frombuffer(found.files[0].read(ref.spans[0].offset, ref.nbytes), "<f4").reshape(ref.shape)
            assert np.array_equal(data, six[f"blocks.{n}.{source}.weight"] / share)


@pytest.mark.parametrize(
    ("form", "changes", "error"),
    [
        ("6 hf", {"head_size": 7}, ShapeError),
        ("6 hf", {"head_size": 0}, GgferryError),
        ("6 hf", {"head_size_divisor": 4}, UnsupportedError),
        ("6 hf", {"layer_norm_epsilon": 1e-3}, UnsupportedError),
        ("7 hf", {"head_dim": 32}, UnsupportedError),
        ("7 hf", {"decay_low_rank_dim": 4}, ShapeError),
        ("7 hf", {"hidden_act": "silu"}, UnsupportedError),
        ("7 hf", {"num_hidden_layers": 4}, MissingError),
    ],
)
def test_what_the_weights_or_the_runtime_contradict(
    form: str, changes: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    config = {**(RWKV6 if form[0] == "6" else RWKV7), **changes}
    tensors, turn = (finch(), rwkv6_name) if form[0] == "6" else (goose_vectors(), fla_name)
    with pytest.raises(error) as caught:
        understand(open_checkpoint(str(as_hf(tensors, tmp_path / "x", config, turn))))
    assert isinstance(caught.value, GgferryError)


def test_heads_of_another_width_are_refused(tmp_path: Path) -> None:
    tensors = {name: x.reshape(4, 32) if name.endswith("r_k") else x for name, x in goose().items()}
    with pytest.raises(ShapeError, match="r_k"):
        understand(open_checkpoint(str(saved(tmp_path / "x.pth", tensors))))


def test_rwkv4_pth_computes_the_oracles_logits_from_both_sides(pth: Path, tmp_path: Path) -> None:
    result = convert(Request(str(pth), str(tmp_path / "x.gguf"), Options(outtype="f32"), vocab=BARE))[0]
    expected, ids = np.load(pth.parent / "logits.npy"), json.loads((pth.parent / "logits.json").read_text())["ids"]
    for side in (str(pth), result.path):
        assert relative(expected, forward(graph_of(side), ids)) <= 1e-5
    assert result.receipt["verified"] == "full" and result.receipt["logits"]["relative_rms"] <= EXACT_LOGITS
    assert result.receipt["runtimes"] == {"run_it": [], "none": True}
    assert any("no runtime reads RWKV-4" in note for note in result.receipt["notes"])


def test_every_value_of_a_bare_pth_has_an_origin(pth: Path) -> None:
    graph = understand(open_checkpoint(str(pth)))
    origins = {key: origin for key, _, origin in graph.written()}
    assert origins["rwkv.block_count"] == "blocks of tensors"
    assert origins["rwkv.embedding_length"].startswith("shape of")
    assert origins["rwkv.context_length"].startswith("default: ")
    assert origins["rwkv.attention.layer_norm_epsilon"].startswith("default: ")


def test_the_name_says_the_context(pth: Path, tmp_path: Path) -> None:
    named = tmp_path / "RWKV-4-Pile-169M-20220807-8023-ctx4096.pth"
    named.write_bytes(pth.read_bytes())
    assert understand(open_checkpoint(str(named))).sizes["n_ctx"] == 4096
    assert understand(open_checkpoint(str(named)), {"context_length": "8192"}).sizes["n_ctx"] == 8192


def test_the_vocabulary_alone_of_a_bare_pth(pth: Path) -> None:
    assert understand(open_checkpoint(str(pth)), vocab_only=True).architecture.name == "rwkv"


def test_an_incomplete_pth_is_refused(pth: Path, tmp_path: Path) -> None:
    import torch

    whole = torch.load(pth, weights_only=True)
    for name in ("blocks.1.att.key.weight", "blocks.0.ln0.bias", "head.weight", "blocks.0.att.time_decay"):
        rest = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(MissingError):
            understand(open_checkpoint(str(saved(tmp_path / "less.pth", rest))))
    more = {**whole, "blocks.0.att.gate.weight": whole["blocks.0.att.key.weight"]}  # RWKV-5 has one
    with pytest.raises(UnexpectedTensorError, match=r"att\.gate"):
        understand(open_checkpoint(str(saved(tmp_path / "more.pth", more))))
    with pytest.raises(GgferryError):
        understand(open_checkpoint(str(saved(tmp_path / "other.pth", {"a": whole["emb.weight"]}))))


@pytest.mark.slow
def test_what_transformers_rescales_differs_by_the_norms_epsilon_only(tmp_path: Path) -> None:
    """It halves the stream every so many blocks at inference; the weights in the file are the trained ones."""
    expected = make("rwkv", tmp_path, rescale_every=1)
    graph = understand(open_checkpoint(str(tmp_path)))
    assert 1e-7 < relative(expected, forward(graph, TOKENS)) < 2e-4
    assert any("rescale_every=1" in note for note in graph.notes)


@pytest.mark.parametrize("form", ["6 rescaled", "7 hf"])
def test_whatever_a_configuration_or_a_header_says_is_answered(
    form: str, models: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    checkpoint, chance = open_checkpoint(str(models[form][0])), random.Random(form)
    for key, value in chance.sample([(key, value) for key in checkpoint.metadata for value in JSON], 20):
        answers(replace(checkpoint, metadata={**checkpoint.metadata, key: value}), (key, value))
    graph = understand(checkpoint)
    written = open_checkpoint(str(write(graph, tmp_path / "x.gguf")))
    keys = [f"{graph.architecture.name}.{spec.key}" for spec in graph.architecture.hparams if spec.key]
    for key, stated in chance.sample([(key, value) for key in keys for value in GGUF], 20):
        header = {**written.metadata, key: stated}
        answers(replace(written, metadata={k: v for k, v in header.items() if v is not None}), (key, stated))


@pytest.mark.parametrize("form", ["6 rescaled", "7 hf"])
def test_no_key_is_idle(form: str, models: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    """Every key changes the result or is contradicted by the tensors, but for what llama.cpp only asks for."""
    source = understand(open_checkpoint(str(models[form][0])))
    found = open_checkpoint(str(write(source, tmp_path / "x.gguf")))
    expected, idle = forward(understand(found), TOKENS), set()
    for key, value, _ in source.written():
        other = replace(value, data=value.data * 4 if isinstance(value.data, float) else value.data + 1)
        try:
            graph = understand(replace(found, metadata={**found.metadata, key: other}))
            idle |= {key.partition(".")[2]} if np.array_equal(expected, forward(graph, TOKENS)) else set()
        except GgferryError:
            continue
    assert idle == {"context_length", "attention.head_count"}


# --- vocabularies -------------------------------------------------------------------------------------------


def test_a_pth_takes_its_vocabulary_from_a_file_that_is_named(pth: Path, fixtures: Path, tmp_path: Path) -> None:
    """`--tokenizer`: BlinkDL keeps 20B_tokenizer.json and the World vocabulary beside his programs, not the models."""
    neox = tmp_path / "20B_tokenizer.json"
    neox.write_bytes((fixtures / "tokenizers" / "bpe_gpt2" / "tokenizer.json").read_bytes())
    world = fixtures / "hf" / "ckpt" / "rwkv6" / "rwkv_vocab_v20230424.txt"
    (tmp_path / "my world.txt").write_bytes(world.read_bytes())
    end = json.loads(neox.read_text())["added_tokens"][0]["id"]
    for source, model, ids in (
        (neox, "gpt2", {"bos": end, "eos": end}),
        (tmp_path / "my world.txt", "rwkv", {"bos": 0, "eos": 0, "eot": 261}),
    ):
        vocab = VocabOptions(source=str(source))
        result = convert(Request(str(pth), str(tmp_path / "x.gguf"), vocab=vocab, force=True, level="fast"))[0]
        again = open_checkpoint(result.path)
        found = load_tokenizer(again, 512)
        assert found is not None and (found.model, found.ids) == (model, ids)
        check = result.receipt["tokenizer"]
        assert check["equal"] == check["texts"] > 0
    assert again.metadata["tokenizer.rwkv.world"].data == world.read_text()


def test_20b_tokenizer_beside_a_pth_is_found(pth: Path, fixtures: Path, tmp_path: Path) -> None:
    neox = fixtures / "tokenizers" / "bpe_gpt2" / "tokenizer.json"
    (tmp_path / "20B_tokenizer.json").write_bytes(neox.read_bytes())
    (tmp_path / "RWKV-4.pth").write_bytes(pth.read_bytes())
    found = load_tokenizer(open_checkpoint(str(tmp_path / "RWKV-4.pth")), 512)
    assert found is not None and found.model == "gpt2" and "eos" in found.ids


def test_without_a_vocabulary_the_way_out_is_named(pth: Path) -> None:
    with pytest.raises(MissingError, match="--tokenizer"):
        load_tokenizer(open_checkpoint(str(pth)), 512)


def test_a_gguf_with_the_worlds_text_alone_has_that_vocabulary(
    models: dict[str, tuple[Path, np.ndarray]], fixtures: Path, tmp_path: Path
) -> None:
    """What the specification asks of a World model; llama.cpp's keys are made from it."""
    text = (fixtures / "hf" / "ckpt" / "rwkv6" / "rwkv_vocab_v20230424.txt").read_text()
    source = open_checkpoint(str(write(understand(open_checkpoint(str(models["6 pth"][0]))), tmp_path / "x.gguf")))
    keys = {k: v for k, v in source.metadata.items() if not k.startswith("tokenizer.")}
    found = load_tokenizer(replace(source, metadata={**keys, "tokenizer.rwkv.world": string(text)}), 328)
    assert found is not None and found.model == "rwkv" and len(found.tokens) == 328 and found.tokens[1] == "\\x00"
    assert load_tokenizer(replace(source, metadata=keys), 328) is None
    with pytest.raises(CorruptError):
        load_tokenizer(replace(source, metadata={**keys, "tokenizer.rwkv.world": string("nonsense")}), 328)


@pytest.mark.slow
def test_a_tied_output_that_repeats_the_embedding_is_left_out(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    expected = make("rwkv tied", tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "head.weight": tensors["rwkv.embeddings.weight"]}, path, {"format": "pt"})
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0]
    assert relative(expected, forward(graph_of(made.path), TOKENS)) <= 1e-5
