"""GPT-2's descendants: what today's tools get wrong or have no way for, one test each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options, plan_steps
from ggferry.converters.forward.blocks.attention import alibi_slopes
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.schema.layouts.order import Regroup
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError, InconsistentError, ShapeError, UnsupportedError, UsageError
from helpers.llama_cpp import continuations
from helpers.tiny_models import TOKENS, make, relative, whole, write

LIMIT = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore")


def made(name: str, folder: Path, **changes: Any) -> tuple[np.ndarray, ModelGraph]:
    expected = make(name, folder, **changes)
    return expected, understand(open_checkpoint(str(folder)))


def edit(folder: Path, **changes: Any) -> ModelGraph:
    """The checkpoint with other words in its configuration; None takes a key away."""
    path = folder / "config.json"
    stated = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in stated.items() if value is not None}))
    return understand(open_checkpoint(str(folder)))


def keys(graph: ModelGraph) -> dict[str, Any]:
    return {key.partition(".")[2]: value.data for key, value, _ in graph.written()}


def both_sides(expected: np.ndarray, graph: ModelGraph, folder: Path) -> None:
    assert relative(expected, forward(graph, TOKENS)) <= LIMIT
    written = understand(open_checkpoint(str(write(graph, folder / "x.gguf"))))
    assert relative(expected, forward(written, TOKENS)) <= LIMIT


# --- GPT-2 --------------------------------------------------------------------------------------------------


def test_the_width_of_gpt2s_feed_forward_is_the_models(tmp_path: Path) -> None:
    """convert_hf_to_gguf writes 4 · n_embd whatever n_inner is, and dies without n_ctx."""
    expected, graph = made("gpt2", tmp_path / "hf", n_inner=120)
    assert "n_ctx" not in json.loads((tmp_path / "hf" / "config.json").read_text())
    assert keys(graph)["feed_forward_length"] == 120 and keys(graph)["context_length"] == 64
    both_sides(expected, graph, tmp_path)
    with pytest.raises(ShapeError, match="n_ff=192"):
        edit(tmp_path / "hf", n_inner=192)
    assert keys(edit(tmp_path / "hf", n_inner=None))["feed_forward_length"] == 120


def test_gpt2_as_it_was_published(tmp_path: Path) -> None:
    """Without the head's prefix, with the causal mask in every block."""
    from safetensors.numpy import load_file, save_file

    expected, _ = made("gpt2", tmp_path)
    tensors = {key.removeprefix("transformer."): x for key, x in load_file(tmp_path / "model.safetensors").items()}
    tensors |= {f"h.{n}.attn.bias": np.ones((1, 1, 64, 64), np.float32) for n in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    graph = understand(open_checkpoint(str(tmp_path)))
    assert {drop.reason for drop in graph.dropped} == {"a buffer: the causal mask"} and len(graph.dropped) == 3
    both_sides(expected, graph, tmp_path)


def test_transposed_weights_are_moved_not_rounded(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    _, graph = made("gpt2", tmp_path)
    found = load_file(tmp_path / "model.safetensors")["transformer.h.1.attn.c_attn.weight"]
    assert np.array_equal(whole(graph)["blk.1.attn_qkv.weight"], found.T)
    grades = {step.name: step.grade for step in plan_steps(graph, Options(outtype="f32"))}
    assert grades["blk.1.attn_qkv.weight"] == "repacked" and grades["blk.1.attn_qkv.bias"] == "identical"


def test_more_tokens_than_learned_positions(tmp_path: Path) -> None:
    _, graph = made("gpt2", tmp_path)
    with pytest.raises(UsageError, match="at most 64"):
        forward(graph, [5] * 65)


@pytest.mark.parametrize("word", ["scale_attn_by_inverse_layer_idx", "add_cross_attention"])
def test_what_a_gpt2_file_cannot_say_is_refused(word: str, tmp_path: Path) -> None:
    make("gpt2", tmp_path)
    with pytest.raises(UnsupportedError, match=word):
        edit(tmp_path, **{word: True})


def test_an_activation_nobody_here_computes_is_refused(tmp_path: Path) -> None:
    make("gpt2", tmp_path)
    with pytest.raises(UnsupportedError, match="activation_function"):
        edit(tmp_path, activation_function="mish")


# --- StarCoder ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "groups"), [("starcoder", 1), ("starcoder heads", 6)])
def test_starcoder_with_and_without_shared_keys(name: str, groups: int, tmp_path: Path) -> None:
    """Without multi-query attention the rows of each head lie together (transformers
    `GPTBigCodeAttention`); today's converter writes them as if they did not."""
    expected, graph = made(name, tmp_path / "hf")
    assert graph.sizes["n_head_kv"] == groups and keys(graph).get("attention.head_count_kv", 6) == groups
    both_sides(expected, graph, tmp_path)


def test_shared_keys_that_the_tensors_contradict(tmp_path: Path) -> None:
    make("starcoder", tmp_path)
    with pytest.raises(GgferryError):
        edit(tmp_path, multi_query=False)


# --- GPT-NeoX -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gptneox", "gptneox sequential"])
def test_neox_side_by_side_and_in_turn(name: str, tmp_path: Path) -> None:
    expected, graph = made(name, tmp_path / "hf")
    assert keys(graph)["use_parallel_residual"] == (name == "gptneox")
    assert keys(graph)["rope.dimension_count"] == 4 and keys(graph)["rope.freq_base"] == 5000
    both_sides(expected, graph, tmp_path)


def test_both_generations_of_neox_configurations(tmp_path: Path) -> None:
    _, new = made("gptneox", tmp_path)
    old = edit(tmp_path, rope_parameters=None, rotary_pct=0.5, rotary_emb_base=5000)
    assert keys(old) == keys(new)
    assert keys(edit(tmp_path, rotary_pct=None))["rope.dimension_count"] == 2


@pytest.mark.parametrize(("name", "rotated"), [("phi2", 4), ("stablelm", 2), ("gptneox", 2)])
def test_the_part_of_a_head_that_turns_where_nothing_says_so(name: str, rotated: int, tmp_path: Path) -> None:
    """transformers' default, a half or a quarter: not the whole head."""
    make(name, tmp_path)
    assert keys(edit(tmp_path, rope_parameters=None))["rope.dimension_count"] == rotated


# --- MPT ----------------------------------------------------------------------------------------------------


def test_mpt_clips_by_both_names_of_its_class(tmp_path: Path) -> None:
    expected, graph = made("mpt clip", tmp_path / "hf")
    assert keys(graph)["attention.clamp_kqv"] == 0.8 and graph.runtimes == ("llama.cpp",)
    both_sides(expected, graph, tmp_path)
    other = edit(tmp_path / "hf", architectures=["MPTForCausalLM"])
    assert other.architecture is graph.architecture and keys(other) == keys(graph)
    attention = json.loads((tmp_path / "hf" / "config.json").read_text())["attn_config"]
    without = edit(tmp_path / "hf", attn_config={**attention, "clip_qkv": None})
    assert "attention.clamp_kqv" not in keys(without)
    assert relative(expected, forward(without, TOKENS)) > 0.01


def test_the_specifications_spellings_of_mpts_keys_are_read(tmp_path: Path) -> None:
    _, graph = made("mpt clip", tmp_path / "hf")
    found = open_checkpoint(str(write(graph, tmp_path / "x.gguf")))
    spelled = {"max_alibi_bias": "alibi_bias_max", "clamp_kqv": "clip_kqv"}
    metadata = {key.replace(key.rpartition(".")[2], spelled.get(key.rpartition(".")[2], key.rpartition(".")[2])): value
                for key, value in found.metadata.items()}
    other = understand(replace(found, metadata=metadata))
    assert np.array_equal(forward(other, TOKENS), forward(understand(found), TOKENS))
    assert "mpt.attention.clip_kqv" in metadata and other.sizes["clamp_kqv"] == pytest.approx(0.8)


def test_what_transformers_ignores_of_mpt_is_honored_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers always computes with a bias of 8 and a width of 4; MosaicML's code, and llama.cpp, as stated."""
    from transformers.models.mpt import modeling_mpt

    make("mpt", tmp_path / "hf", attn_config={"alibi_bias_max": 3}, expansion_ratio=2)
    right = modeling_mpt.build_mpt_alibi_tensor
    monkeypatch.setattr(
        modeling_mpt,
        "build_mpt_alibi_tensor",
        lambda heads, length, alibi_bias_max=8, device=None: right(heads, length, 3, device),
    )
    expected, graph = made("mpt", tmp_path / "hf", attn_config={"alibi_bias_max": 3}, expansion_ratio=2)
    assert keys(graph)["attention.max_alibi_bias"] == 3 and keys(graph)["feed_forward_length"] == 192
    both_sides(expected, graph, tmp_path)
    said = " ".join(graph.notes)
    assert "alibi_bias_max=3" in said and "expansion_ratio=2" in said


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + sum(shape)).normal(0, 0.5, shape).astype(np.float32)


def mosaic(
    folder: Path, words: dict[str, Any], model: dict[str, np.ndarray], block: dict[str, np.ndarray]
) -> ModelGraph:
    """The tiny MPT as MosaicML's own code can write it: `words` of attn_config, tensors of the model and each block."""
    from safetensors.numpy import load_file, save_file

    make("mpt", folder)
    tensors = load_file(folder / "model.safetensors") | {f"transformer.{key}": x for key, x in model.items()}
    for n in range(3):
        tensors |= {f"transformer.blocks.{n}.{key}": x for key, x in block.items()}
    save_file(tensors, folder / "model.safetensors")
    attention = json.loads((folder / "config.json").read_text())["attn_config"]
    return edit(folder, architectures=["MPTForCausalLM"], attn_config={**attention, **words}, no_bias=False)


@pytest.mark.slow
def test_mosaics_own_models_are_what_llama_cpp_makes_of_them(tmp_path: Path) -> None:
    """What transformers' class cannot do has another witness: learned positions, biases, other slopes, grouped keys."""
    biases = {"attn.Wqkv.bias": some(144), "norm_1.bias": some(48), "ffn.up_proj.bias": some(192)}
    graphs = [
        mosaic(tmp_path / "a", {"alibi": False}, {"wpe.weight": some(64, 48)}, {}),
        mosaic(tmp_path / "b", {"alibi_bias_max": 3, "clip_qkv": 1.5}, {"norm_f.bias": some(48)}, biases),
        mosaic(tmp_path / "c", {"kv_n_heads": 3}, {}, {"attn.Wqkv.weight": some(96, 48)}),
    ]
    assert "attention.max_alibi_bias" not in keys(graphs[0]) and "position_embd.weight" in graphs[0].by_name
    assert keys(graphs[1])["attention.max_alibi_bias"] == 3 and keys(graphs[2])["attention.head_count_kv"] == 3
    for number, graph in enumerate(graphs):
        path, best = write(graph, tmp_path / f"{number}.gguf"), forward(graph, TOKENS).argmax(-1)
        # a prompt whose next token has a text of its own: an ASCII byte, a word
        tokens = TOKENS[: next(n for n in range(4, 19) if 35 <= best[n - 1] < 130 or best[n - 1] > 258)]
        (answer,) = continuations(tokens, 2, path)
        assert answer
        for token, probability in answer:
            logits = forward(graph, tokens)[-1].astype(np.float64)
            assert relative(logits, forward(understand(open_checkpoint(str(path))), tokens)[-1]) <= LIMIT
            assert token == int(logits.argmax())
            assert probability == pytest.approx(logits.max() - np.log(np.exp(logits).sum()), abs=2e-2)
            tokens = [*tokens, token]


def test_normed_queries_stop_llama_cpp(tmp_path: Path) -> None:
    """It reads the norms and then fails an assertion (ggml_is_contiguous in build_mpt, xllamacpp of 2026)."""
    norms = {f"attn.{name}.weight": 1 + some(48) for name in ("q_ln", "k_ln")}
    graph = mosaic(tmp_path / "hf", {"qk_ln": True}, {}, norms)
    assert graph.runtimes == () and "qk_ln" in " ".join(graph.notes)
    found = forward(graph, TOKENS)
    assert (
        relative(found, forward(understand(open_checkpoint(str(write(graph, tmp_path / "x.gguf")))), TOKENS)) <= LIMIT
    )
    plain = mosaic(tmp_path / "plain", {}, {}, {})
    assert relative(found, forward(plain, TOKENS)) > 0.1


@pytest.mark.parametrize(
    "words",
    [
        {"logit_scale": 0.5}, {"norm_type": "rmsnorm"}, {"ffn_config": {"ffn_type": "mptglu"}},
        {"attn_config": {"rope": True}}, {"attn_config": {"prefix_lm": True}},
        {"attn_config": {"sliding_window_size": 128}},
    ],
)
def test_what_an_mpt_file_cannot_say_is_refused(words: dict[str, Any], tmp_path: Path) -> None:
    make("mpt", tmp_path)
    with pytest.raises(UnsupportedError, match=next(iter(words))):
        edit(tmp_path, **words)


# --- ALiBi --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "largest"), [(1, 8), (4, 8), (6, 8), (12, 8), (71, 8), (6, 3)])
def test_slopes_are_transformers(heads: int, largest: int) -> None:
    import torch
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    expected = -build_mpt_alibi_tensor(heads, 2, largest)[:, 0, 0]
    assert torch.allclose(torch.tensor(alibi_slopes(heads, largest)), expected, rtol=1e-6)


def test_no_alibi_has_no_slopes() -> None:
    assert alibi_slopes(8, 0) == []


# --- BLOOM --------------------------------------------------------------------------------------------------


def test_blooms_context(tmp_path: Path) -> None:
    """Today's converter writes the width of the model where the configuration has no seq_length."""
    _, graph = made("bloom", tmp_path)
    assert keys(graph)["context_length"] == 64 and graph.hparams["n_ctx"].origin == "config.json: seq_length"
    graph = edit(tmp_path, seq_length=None)
    assert keys(graph)["context_length"] == 2048 and graph.hparams["n_ctx"].origin.startswith("default: BLOOM")


def test_blooms_other_residual_is_refused(tmp_path: Path) -> None:
    make("bloom", tmp_path)
    with pytest.raises(UnsupportedError, match="apply_residual_connection_post_layernorm"):
        edit(tmp_path, apply_residual_connection_post_layernorm=True)


# --- Falcon -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [None, 1, 6, 71])
def test_falcon_7b_has_one_group_whatever_is_stated(stated: int | None, tmp_path: Path) -> None:
    """transformers writes num_kv_heads = n_head into 7B's configuration (71 of 71) and does not read it there."""
    expected, _ = made("falcon 7b", tmp_path / "hf")
    graph = edit(tmp_path / "hf", num_kv_heads=stated)
    assert keys(graph)["attention.head_count_kv"] == 1 and keys(graph)["tensor_data_layout"] == "jploski"
    both_sides(expected, graph, tmp_path)


@pytest.mark.parametrize("name", ["falcon 40b", "falcon 40b, old"])
def test_falcon_40b_has_the_groups_that_are_stated(name: str, tmp_path: Path) -> None:
    expected, graph = made(name, tmp_path / "hf")
    assert keys(graph)["attention.head_count_kv"] == 3
    both_sides(expected, graph, tmp_path)


def test_absent_groups_of_the_new_decoder_are_the_heads(tmp_path: Path) -> None:
    make("falcon 40b", tmp_path)
    with pytest.raises(ShapeError, match="not 6 groups"):
        edit(tmp_path, num_kv_heads=None)
    expected, _ = made("falcon 40b", tmp_path / "six", num_kv_heads=6)
    graph = edit(tmp_path / "six", num_kv_heads=None)
    assert keys(graph)["attention.head_count_kv"] == 6
    both_sides(expected, graph, tmp_path)


def test_falcons_norms_change_places(tmp_path: Path) -> None:
    """GGUF's first norm is the feed-forward's, its second the attention's."""
    _, graph = made("falcon 40b", tmp_path)
    assert graph.by_name["blk.1.attn_norm.weight"].inputs[0].name == "transformer.h.1.ln_mlp.weight"
    assert graph.by_name["blk.1.attn_norm_2.weight"].inputs[0].name == "transformer.h.1.ln_attn.weight"


def test_a_falcon_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    from ggferry.formats.gguf.values import string

    _, graph = made("falcon 40b", tmp_path / "hf")
    found = open_checkpoint(str(write(graph, tmp_path / "x.gguf")))
    other = replace(found, metadata={**found.metadata, "falcon.tensor_data_layout": string("reference")})
    with pytest.raises(InconsistentError, match="tensor_data_layout"):
        understand(other)


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("falcon 7b", True), ("falcon rw", False), ("gptj", False), ("gptneo", False), ("gptneox", True),
        ("gptneox unbiased", False), ("gpt2", True), ("gpt2 unscaled", False), ("mpt", True), ("mpt scale", False),
        ("starcoder2 unbiased", False), ("olmo tied", True),
    ],
)
def test_whether_a_runtime_runs_this_very_model(name: str, runs: bool, tmp_path: Path) -> None:
    _, graph = made(name, tmp_path)
    assert graph.runtimes == (("llama.cpp",) if runs else ())


# --- adapters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "turn"),
    [
        ("gpt2", "transformer.h.{n}.attn.c_attn", True),
        ("gptneox", "gpt_neox.layers.{n}.attention.query_key_value", False),
        ("falcon 40b", "transformer.h.{n}.self_attention.query_key_value", False),
    ],
)
def test_a_lora_changes_the_rows_it_was_made_for(name: str, module: str, turn: bool, tmp_path: Path) -> None:
    """B's rows move with the weight's; PEFT's B of a Conv1D is that of a Linear."""
    from safetensors.numpy import load_file, save_file

    _, graph = made(name, tmp_path / "hf")
    weights, rng, factors = load_file(tmp_path / "hf" / "model.safetensors"), np.random.default_rng(2), {}
    before = whole(graph)
    for n in range(3):
        key = module.format(n=n)
        weight = weights[f"{key}.weight"]
        rows, columns = weight.shape[::-1] if turn else weight.shape
        a = rng.normal(0, 0.3, (4, columns)).astype(np.float32)
        b = rng.normal(0, 0.3, (rows, 4)).astype(np.float32)
        factors |= {f"base_model.model.{key}.lora_A.weight": a, f"base_model.model.{key}.lora_B.weight": b}
        weights[f"{key}.weight"] = weight + 2 * ((b @ a).T if turn else b @ a)
    (tmp_path / "lora").mkdir()
    save_file(factors, tmp_path / "lora" / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "fan_in_fan_out": turn}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(settings))
    made_of = convert(Request(str(tmp_path / "lora"), str(tmp_path / "l.gguf"), base=str(tmp_path / "hf")))[0]
    found = open_checkpoint(made_of.path)
    save_file(weights, tmp_path / "hf" / "model.safetensors")
    after = whole(understand(open_checkpoint(str(tmp_path / "hf"))))
    for n in range(3):
        role = f"blk.{n}.attn_qkv.weight"
        a, b = (values_of(found, ref, 0, ref.rows) for ref in (found.tensors[f"{role}.lora_{x}"] for x in "ab"))
        scale = found.metadata["adapter.lora.alpha"].data / 4
        assert np.allclose(before[role] + scale * (b @ a), after[role], atol=1e-5)


# --- mistakes a converter makes, which shapes do not show -----------------------------------------------------


def regrouped(groups: int, back: bool = False) -> Callable[[dict[str, np.ndarray]], None]:
    """As if fused rows had been taken for others: of another number of groups, or not been moved at all."""

    def mutate(tensors: dict[str, np.ndarray]) -> None:
        for key in [key for key in tensors if "attn_qkv" in key]:
            layout = Regroup(groups, (len(tensors[key]) // groups - 16, 8, 8))
            tensors[key] = (layout.inverse() if back else layout).apply(tensors[key])

    return mutate


def rotated(tensors: dict[str, np.ndarray]) -> None:
    """Conv1D's only square matrix, taken as it is."""
    for n in range(3):
        tensors[f"blk.{n}.attn_output.weight"] = tensors[f"blk.{n}.attn_output.weight"].T.copy()


def swapped(a: str, b: str) -> Callable[[dict[str, np.ndarray]], None]:
    def mutate(tensors: dict[str, np.ndarray]) -> None:
        for n in range(3):
            one, other = f"blk.{n}.{a}.weight", f"blk.{n}.{b}.weight"
            tensors[one], tensors[other] = tensors[other], tensors[one]

    return mutate


def emptied(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    def mutate(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = np.zeros_like(tensors[name])

    return mutate


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("gpt2", rotated), ("gpt2", emptied("position_embd.weight")), ("starcoder heads", regrouped(6, back=True)),
        ("gptneox", regrouped(6, back=True)), ("bloom", regrouped(6, back=True)), ("bloom", regrouped(3)),
        ("bloom", emptied("token_embd_norm.bias")), ("falcon 40b", regrouped(3, back=True)),
        ("falcon 40b", regrouped(2)), ("falcon 40b", swapped("attn_norm", "attn_norm_2")), ("mpt", regrouped(6)),
        ("gptj", swapped("attn_q", "attn_k")), ("gptneo", swapped("attn_norm", "ffn_norm")),
    ],
)
def test_the_forward_pass_shows_it(name: str, mutate: Callable[..., None], tmp_path: Path) -> None:
    expected, graph = made(name, tmp_path / "hf")
    wrong = understand(open_checkpoint(str(write(graph, tmp_path / "x.gguf", mutate))))
    assert relative(expected, forward(wrong, TOKENS)) > 0.01


def test_phis_feed_forward_has_the_models_width(tmp_path: Path) -> None:
    """Today's tool writes 4 · n_embd (192), and llama.cpp refuses the file."""
    expected, graph = made("phi2", tmp_path / "hf")
    assert keys(graph)["feed_forward_length"] == 88
    both_sides(expected, graph, tmp_path)


# --- the oracle's ---------------------------------------------------------------------------------------------


def oracle_models(fixtures: Path) -> list[Path]:
    folders = sorted((fixtures / "legacy-other" / "hf").iterdir())
    others = ("rwkv", "whisper")
    return [f for f in folders if (f / "model.safetensors").is_file() and not f.name.startswith(others)]


@pytest.mark.slow
def test_every_checkpoint_beside_the_legacy_files_converts_with_proof(fixtures: Path, tmp_path: Path) -> None:
    """Both sides against transformers (MPT's clipping patched into it, the manifest says); llama.cpp's continuation."""
    models, run = oracle_models(fixtures), []
    assert len(models) == 11
    for folder in models:
        ids = json.loads((folder / "logits.json").read_text())["ids"]
        expected = np.load(folder / "logits.npy")
        result = convert(Request(str(folder), str(tmp_path / f"{folder.name}.gguf")))[0]
        assert result.receipt["verified"] == "full" and result.receipt["tokenizer"]["passed"]
        for side in (graph_of(str(folder)), graph_of(result.path)):
            assert relative(expected, forward(side, ids)) <= LIMIT, folder.name
        run += [Path(result.path)] if result.receipt["runtimes"]["run_it"] else []
    assert {folder.name for folder in models} - {path.stem for path in run} == {"gptj-s64"}
    for length, paths in by_prompt(run, ids).items():
        for path, answer in zip(paths, continuations(ids[:length], 3, *paths), strict=True):
            history = ids[:length]
            assert answer, path.name
            for token, _ in answer:
                scores = forward(graph_of(str(path)), history)[-1]
                assert scores.max() - scores[token] < 5e-3, path.name
                history.append(token)


def by_prompt(paths: list[Path], ids: list[int]) -> dict[int, list[Path]]:
    """Length of the prompt → models that continue it by a token with a text of its own, which is what llama.cpp's
    server tells of."""
    found: dict[int, list[Path]] = {}
    for path in paths:
        graph = graph_of(str(path))
        tokens = graph.checkpoint.metadata["tokenizer.ggml.tokens"].data
        best = forward(graph, ids).argmax(-1)
        length = next(n for n in range(3, len(ids)) if tokens[best[n - 1]].isalnum() and tokens[best[n - 1]].isascii())
        found.setdefault(length, []).append(path)
    return found


def test_replits_vocabulary_is_sentencepieces_unigram(fixtures: Path, tmp_path: Path) -> None:
    """As an `mpt` with a `t5` vocabulary, which llama.cpp loads (the test above)."""
    folder = fixtures / "legacy-other" / "hf" / "replit-s64"
    found = open_checkpoint(convert(Request(str(folder), str(tmp_path / "x.gguf")))[0].path).metadata
    assert found["general.architecture"].data == "mpt" and found["tokenizer.ggml.model"].data == "t5"
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    tokens, scores = found["tokenizer.ggml.tokens"].data, found["tokenizer.ggml.scores"].data
    for i in range(1, model.vocab_size()):
        assert tokens[i] == model.id_to_piece(i) and scores[i] == pytest.approx(model.get_score(i)), i
    assert found["tokenizer.ggml.pre"].data == "default"


@pytest.mark.parametrize(
    ("name", "pre"),
    [
        ("gpt2", "gpt-2"), ("gptj", "gpt-2"), ("gptneo", "gpt-2"), ("gptneox", "gpt-2"), ("mpt", "gpt-2"),
        ("bloom", "bloom"), ("falcon7b", "falcon"), ("falcon40b", "falcon"), ("starcoder", "starcoder"),
    ],
)
def test_pre_tokenizers_are_derived_and_proved(name: str, pre: str, fixtures: Path) -> None:
    checkpoint = open_checkpoint(str(fixtures / "hf" / "ckpt" / name))
    tokenizer = load_tokenizer(checkpoint, 400)
    assert tokenizer is not None and (tokenizer.model, tokenizer.pre) == ("gpt2", pre)
    assert "proved by tokenizing" in tokenizer.origins["pre"]
