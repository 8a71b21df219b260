"""Drafts: what a current llama.cpp proposes with our file beside a target, to the third decimal of its probabilities;
transformers where it has the class; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import open_source_of, request_of
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError, InconsistentError, MissingError, UsageError
from ggferry.formats.gguf.values import Value
from ggferry.support.progress import silent
from helpers.drafts import WIDTH, eagle, flash, second, spark, speculator, stages
from helpers.llama_cpp import draft_candidates
from helpers.models.gemma import GEMMA4
from helpers.tiny_models import make, relative, shake, write

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPT = [5, 17, 42, 99, 3, 120, 77]
MASK = 3


def with_window(folder: Path) -> Path:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return flash(folder, use_sliding_window=True, sliding_window=6, layer_types=kinds)


def of_gemma(folder: Path) -> Path:
    """Gemma 4's DSpark: keys that are the values, norms behind the branches, a part of each head turns."""
    from helpers import drafts

    further: drafts.Shapes = {
        "pre_feedforward_layernorm.weight": (WIDTH,), "post_feedforward_layernorm.weight": (WIDTH,),
        "layer_scalar": (1,), "markov_head.markov_w1.weight": (512, 20), "markov_head.markov_w2.weight": (512, 20),
        "lm_head.weight": (512, WIDTH),
    }
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 9000.0}
    flash(
        folder, "Gemma4DSparkModel", further, attention_k_eq_v=True, global_head_dim=12, head_dim=8,
        num_global_key_value_heads=3, num_key_value_heads=1, layer_types=["full_attention"] * 3, hidden_act=None,
        hidden_activation="gelu_pytorch_tanh", rope_theta=None, rope_parameters={"full_attention": rope},
        dflash_config={"mask_token_id": MASK, "target_layer_ids": [0, 0]},
    )
    from safetensors.numpy import load_file, save_file

    kept = {name: x for name, x in load_file(folder / "model.safetensors").items() if "v_proj" not in name}
    save_file(kept, folder / "model.safetensors")
    return folder


DRAFTS: dict[str, tuple[str, int, Callable[[Path], Any]]] = {
    "eagle3": ("EAGLE3", 1, eagle),
    "eagle3 normed": ("EAGLE3", 1, lambda folder: eagle(folder, "model.layers.0.", "Eagle3LlamaForCausalLM",
                                                        norm_before_fc=True)),
    "eagle3 embedded": ("EAGLE3", 1, lambda folder: eagle(folder, "layers.0.", "Eagle3DraftModel")),
    "eagle3 speculators": ("EAGLE3", 1, speculator),
    "dflash": ("DFLASH", 4, flash),
    "dflash window": ("DFLASH", 4, with_window),
    "dflash causal": ("DFLASH", 4, lambda folder: flash(folder, is_causal=True)),
    "dflash2": ("", 4, second),
    "dspark": ("DSPARK", 5, spark),
    "dspark bonus": ("DSPARK", 4, lambda folder: spark(folder, "DSparkSpeculator", target_layer_ids=None,
                                                       aux_hidden_state_layer_ids=[1, 1])),
    "dspark of ling": ("DSPARK", 5, lambda folder: spark(folder, "LingDSparkModel", False, rope_is_neox_style=False)),
    "dspark of gemma": ("DSPARK", 5, of_gemma),
    "dspark of deepseek": ("DSPARK", 5, stages),
}


@pytest.fixture(scope="module")
def target(fixtures: Path) -> Path:
    return fixtures / "hf/ckpt/llama"


def converted(source: Path, target: Path | None, out: Path) -> Any:
    return convert(request_of(str(source), {"target_model": target and str(target), "out": str(out)}))[0]


def bound(source: Path, target: Path) -> Any:
    request = request_of(str(source), {"target_model": str(target)})
    return understand(open_source_of(request))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_is_proved_over_fixed_states_and_has_its_targets_vocabulary(
    name: str, target: Path, tmp_path: Path
) -> None:
    DRAFTS[name][2](tmp_path / "hf")
    done = converted(tmp_path / "hf", target, tmp_path / "x.gguf")
    assert done.proof.logits.relative_rms <= done.proof.logits.limit
    assert "over fixed states of the model it guesses for" in done.receipt["logits"]["what"]
    assert not [note for note in done.receipt["notes"] if "does not use" in note]
    made = graph_of(done.path)
    assert len(made.checkpoint.metadata["tokenizer.ggml.tokens"].data) == 512
    assert made.sizes["target_layers"][0] == 1 and done.receipt["options"]["target_model"] == "llama"
    if name.startswith("d"):
        assert made.checkpoint.metadata["tokenizer.ggml.mask_token_id"].data == MASK


@pytest.fixture(scope="module")
def target_file(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("target") / "target.gguf"
    convert(request_of(str(target), {"out": str(out)}))
    return out


@pytest.fixture(scope="module")
def told(target: Path) -> tuple[list[int], list[np.ndarray], np.ndarray, np.ndarray]:
    """transformers' continuation of the prompt by the target, the inputs of its blocks, its embeddings, its output."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(9):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    both = (model.get_input_embeddings(), model.lm_head)
    return tokens, [one[0].numpy() for one in states], *(one.weight.detach().numpy() for one in both)


def proposed(graph: Any, tokens: list[int], told: Any, most: int) -> np.ndarray:
    """The logits of what our pass proposes behind these tokens: `(most, n_vocab)`."""
    _, layers, embeddings, output = told
    states = np.concatenate([layers[number][: len(tokens) - 1] for number in graph.sizes["target_layers"]], -1)
    if graph.architecture.name == "eagle3":
        given = {"states": states, "embeddings": embeddings[tokens[1:]]}
        return forward(graph, tokens[1:], inputs=given)[-1:]
    late = not graph.sizes["sample_from_anchor"] or "markov_w1.weight" not in graph.by_name
    noise = [tokens[-1], *[MASK] * (most - (not late))]
    given = {"states": states, "embeddings": embeddings[noise]}
    before = [tokens[-1]] * len(noise)

    def logits() -> np.ndarray:
        """Those of the draft; where it has no output matrix, of its states by its target's, and what its head adds."""
        rows, width = forward(graph, noise, inputs={**given, "previous": before}), graph.sizes["n_embd"]
        if "output.weight" in graph.by_name:
            return rows[:, : graph.sizes["n_vocab"]]
        head = rows[:, width : width + len(output)] if "markov_w1.weight" in graph.by_name else 0
        return rows[:, :width] @ output.T + head

    for row in range(late, len(noise) if "markov_w1.weight" in graph.by_name else 0):  # each hangs on the last choice
        if row > late:
            before[row] = int(logits()[row - 1].argmax())
    return logits()[late:]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, draft in DRAFTS.items() if draft[0]])
def test_llama_cpp_proposes_what_our_pass_does(
    name: str, target: Path, target_file: Path, told: Any, tmp_path: Path
) -> None:
    kind, most, make = DRAFTS[name]
    make(tmp_path / "hf")
    converted(tmp_path / "hf", target, tmp_path / "x.gguf")
    graph = bound(tmp_path / "hf", target)
    steps, taken = draft_candidates(PROMPT, 8, target_file, tmp_path / "x.gguf", kind, most)
    assert len(steps) >= 4 and taken == 0  # so that each step stands behind one more token of the target's
    for number, step in enumerate(steps[:4]):
        tokens = told[0][: len(PROMPT) + 1 + number]
        rows = proposed(graph, tokens, told, most).astype(np.float64)
        check_step(step, rows, number)


def check_step(step: dict[tuple[int, int], tuple[int, float]], rows: np.ndarray, number: int) -> None:
    """That the candidates of one step are the likeliest tokens of our rows, of the same probability."""
    first = min(place for _, place in step)
    assert {place - first for _, place in step} == set(range(len(rows)))
    for (rank, at), (token, probability) in step.items():
        place = at - first
        likeliest = np.sort(rows[place])[::-1][:10]
        shares = np.exp(likeliest - likeliest[0]) / np.exp(likeliest - likeliest[0]).sum()
        assert shares[rank] == pytest.approx(probability, abs=2e-3), (number, place)
        assert rows[place][token] == pytest.approx(likeliest[rank], abs=2e-2)


def test_muse_glimmers_assistant_is_transformers(target: Path, tmp_path: Path) -> None:
    import torch
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    config = MuseGlimmerAssistantConfig(
        hidden_size=WIDTH, intermediate_size=88, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
        head_dim=12, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        max_position_embeddings=64, sliding_window=2048, block_size=5, mask_token_id=MASK, target_layer_ids=[0, 1],
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], attn_implementation="eager",
    )
    torch.manual_seed(7)
    model = MuseGlimmerAssistantModel(config).eval()
    shake(model)
    model.save_pretrained(tmp_path / "hf")
    random = np.random.default_rng(7)
    states, noise = (random.standard_normal((n, width), np.float32) for n, width in ((9, 2 * WIDTH), (5, WIDTH)))
    with torch.inference_mode():
        expected = model(
            noise_embeds=torch.from_numpy(noise)[None], context_hidden_states=torch.from_numpy(states)[None],
            attention_mask={"full_attention": None, "sliding_attention": None},
        ).last_hidden_state[0].numpy()
    given = {"states": states, "embeddings": noise}
    done = converted(tmp_path / "hf", target, tmp_path / "x.gguf")
    assert not [note for note in done.receipt["notes"] if "does not use" in note]
    for graph in (bound(tmp_path / "hf", target), graph_of(done.path)):
        assert relative(expected, forward(graph, [1, MASK, MASK, MASK, MASK], inputs=given)) <= 2e-6
        assert graph.sizes["target_layers"] == (1, 2) and graph.sizes["n_swa"] == 2048


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_draft_needs_its_target(target: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="speculative draft: it takes the vocabulary of its target model") as told_so:
        converted(eagle(tmp_path / "hf"), None, tmp_path / "x.gguf")
    assert told_so.value.hint == "--target-model DIR"
    with pytest.raises(UsageError, match="--target-model is for drafts"):
        converted(target, target, tmp_path / "x.gguf")
    with pytest.raises(UsageError, match=r"no config.json in the folder"):
        converted(tmp_path / "hf", tmp_path, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_a_draft_is_as_wide_as_what_it_takes_over(target: Path, tmp_path: Path) -> None:
    """llama.cpp would end at the first token."""
    config = json.loads((target / "config.json").read_text()) | {"hidden_size": 80}
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide/config.json").write_text(json.dumps(config))
    told = {"target_hidden_size": 64}
    with pytest.raises(InconsistentError, match="takes over its target's"):
        converted(eagle(tmp_path / "hf", **told), tmp_path / "wide", tmp_path / "x.gguf")


def edited(folder: Path, **keys: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return folder


def without(folder: Path, name: str) -> Path:
    from safetensors.numpy import load_file, save_file

    save_file({key: x for key, x in load_file(folder / "model.safetensors").items() if key != name},
              folder / "model.safetensors")
    return folder


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "two blocks": (lambda folder: edited(eagle(folder), num_hidden_layers=2), "block|only"),
    "another vocabulary": (lambda folder: edited(eagle(folder), vocab_size=600), "target_vocab"),
    "another number of rows": (lambda folder: edited(eagle(folder), draft_vocab_size=97), "does not fit its role"),
    "blocks of a target that has two": (
        lambda folder: edited(eagle(folder), eagle_aux_hidden_state_layer_ids=None), "a target of 2 blocks"),
    "a head of another kind": (lambda folder: edited(spark(folder), markov_head_type="gated"), "markov_head_type"),
    "pairs in another family": (lambda folder: edited(flash(folder), rope_is_neox_style=False), "neox"),
    "rows of which nothing says what they are": (lambda folder: without(eagle(folder), "d2t"), "n_told"),
    "a mask beyond the vocabulary": (
        lambda folder: edited(flash(folder), dflash_config={"mask_token_id": 512, "target_layer_ids": [0, 0]}),
        "mask_token"),
    "a width that the target's embeddings lack": (
        lambda folder: edited(eagle(folder), target_hidden_size=48), "does not fit its role"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_runtime_would_read_so_is_refused_in_a_line(name: str, target: Path, tmp_path: Path) -> None:
    make, says = REFUSED[name]
    with pytest.raises(GgferryError, match=says):
        converted(make(tmp_path / "hf"), target, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_ids_that_no_token_has_are_refused(target: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = eagle(tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "d2t": tensors["d2t"] * 0 + 500}, folder / "model.safetensors")
    with pytest.raises(InconsistentError, match="d2t"):
        converted(folder, target, tmp_path / "x.gguf")


def test_the_targets_blocks_follow_from_what_is_stated(target: Path, tmp_path: Path) -> None:
    """Where a draft lists none they are EAGLE-3's three; SpecForge lists outputs."""
    deep = tmp_path / "deep"
    deep.mkdir()
    config = json.loads((target / "config.json").read_text())
    (deep / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 32}))
    folder = edited(eagle(tmp_path / "hf"), eagle_aux_hidden_state_layer_ids=None)
    assert bound(folder, deep).sizes["target_layers"] == (2, 16, 29)
    edited(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 4, 5], "use_aux_hidden_state": True})
    assert bound(folder, deep).sizes["target_layers"] == (4, 5, 6)


def test_a_target_with_axes_or_of_gemma_tells_its_draft(target: Path, tmp_path: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    rope = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10000.0}
    for number, changes in enumerate(({"rope_parameters": rope}, {"architectures": ["Gemma3ForCausalLM"]})):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | changes))
        keys = {key: value for key, value, _ in bound(flash(tmp_path / "hf"), folder).written()}
        assert ("dflash.rope.dimension_sections" in keys) is (number == 0)
        assert keys.get("dflash.embedding_scale", Value).__class__ is (type if number == 0 else Value)


@pytest.mark.parametrize("kind", ["Gemma4Assistant", "Gemma4UnifiedAssistant"])
def test_gemmas_assistant_is_transformers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.23 makes no assistant by itself: its text model asks for a block that has keys of its own."""
    import torch
    import transformers

    for part in (transformers.Gemma4TextConfig, transformers.Gemma4UnifiedTextConfig):
        monkeypatch.setattr(part, "kv_sharing_modes", property(lambda self: ["reuse"] * self.num_hidden_layers))
    text = {**GEMMA4, "vocab_size_per_layer_input": 0, "sliding_window": 64, "hidden_size": 40}
    config = getattr(transformers, f"{kind}Config")(
        text_config={**text, "model_type": "gemma4_text" if kind == "Gemma4Assistant" else "gemma4_unified_text"},
        backbone_hidden_size=56, attn_implementation="eager",
    )
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    shake(model)
    model.save_pretrained(tmp_path / "hf")
    random = np.random.default_rng(7)

    def some(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    given = {"states": some(5, 56), "embeddings": some(5, 56) * np.float32(0.2), "keys": some(9, 2, 12),
             "values": some(9, 2, 12), "keys_swa": some(9, 2, 10), "values_swa": some(9, 2, 10)}
    both = np.concatenate([given["embeddings"] * np.float32(56**0.5), given["states"]], -1)
    shared = {
        name: tuple(torch.from_numpy(given[f"{part}{end}"]).transpose(0, 1)[None] for part in ("keys", "values"))
        for name, end in (("full_attention", ""), ("sliding_attention", "_swa"))
    }
    with torch.inference_mode():
        found = model(
            inputs_embeds=torch.from_numpy(both)[None],
            position_ids=torch.arange(9, 14)[None],
            shared_kv_states=shared,
            output_hidden_states=True,  # else it leaves out tokens whose logits nobody asked for
        )
    expected = np.concatenate([found.logits[0].numpy(), found.last_hidden_state[0].numpy()], -1)
    request = request_of(str(tmp_path / "hf"), {"no_vocab": True, "out": str(tmp_path / "x.gguf")})
    done = convert(request)[0]
    assert not [note for note in done.receipt["notes"] if "does not use" in note]
    for graph in (graph_of(str(tmp_path / "hf")), graph_of(done.path)):
        assert graph.architecture.name == "gemma4-assistant"
        assert relative(expected, forward(graph, [1, 2, 3, 4, 5], inputs=given)) <= 3e-6


@pytest.mark.slow
def test_llama_cpp_proposes_what_gemmas_assistant_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the keys and values that transformers keeps of the target's last blocks of either kind."""
    import torch
    import transformers

    make("gemma4 keys as values", tmp_path / "target", sliding_window=64)
    target = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float32)
    tokens = list(PROMPT)
    with torch.inference_mode():
        tokens.append(int(target(torch.tensor([tokens])).logits[0, -1].argmax()))
        told = target(torch.tensor([tokens[:-1]]), use_cache=True, output_hidden_states=True)
    text = json.loads((tmp_path / "target/config.json").read_text())
    part = transformers.Gemma4TextConfig
    monkeypatch.setattr(part, "kv_sharing_modes", property(lambda self: ["reuse"] * self.num_hidden_layers))
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    config = transformers.Gemma4AssistantConfig(
        text_config={**{key: text[key] for key in GEMMA4 if key in text}, "model_type": "gemma4_text",
                     "hidden_size": 40, "num_hidden_layers": 3, "layer_types": kinds, "global_head_dim": 12,
                     "attention_k_eq_v": True, "num_global_key_value_heads": 4, "vocab_size_per_layer_input": 0},
        backbone_hidden_size=48,
    )
    torch.manual_seed(3)
    model = transformers.Gemma4AssistantForCausalLM(config).eval()
    shake(model)
    model.save_pretrained(tmp_path / "hf")
    graph = graph_of(str(tmp_path / "hf"))
    files = (write(graph_of(str(tmp_path / "target")), tmp_path / "t.gguf"), write(graph, tmp_path / "x.gguf"))
    (step, *_), _ = draft_candidates(PROMPT, 4, *files, "MTP", 1)
    given = {"states": told.hidden_states[-1][0, -1:].numpy(),
             "embeddings": target.get_input_embeddings().weight[tokens[-1:]].detach().numpy()}
    for end, number in (("", 5), ("_swa", 4)):
        layer = told.past_key_values.layers[number]
        kept = {"keys": layer.keys, "values": layer.values}
        given |= {f"{name}{end}": x[0].transpose(0, 1).numpy() for name, x in kept.items()}
    rows = forward(graph, tokens[-1:], inputs=given)[:, : graph.sizes["n_vocab"]].astype(np.float64)
    check_step(step, rows, 0)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["", "model."])
def test_a_draft_in_its_targets_checkpoint(at: str, target: Path, tmp_path: Path) -> None:
    """DeepSeek V4 with DSpark: --mtp-only writes the draft as from a checkpoint of its own; the decoder is dropped."""
    own, bundle = tmp_path / "own", tmp_path / "bundle"
    stages(own)
    stages(bundle, "DeepseekV4ForCausalLM", at)
    from safetensors.numpy import load_file, save_file

    tensors = load_file(bundle / "model.safetensors")
    for name in ("embed.weight", "layers.0.attn.wq_a.weight", "head.weight", "norm.weight", "hc_head_fn"):
        tensors[name] = np.ones((4, 4), "f4")
    save_file(tensors, bundle / "model.safetensors")
    for path in target.glob("tokenizer*"):
        (bundle / path.name).write_bytes(path.read_bytes())
    alone = converted(own, target, tmp_path / "own.gguf")
    done = convert(request_of(str(bundle), {"mtp_only": True, "out": str(tmp_path / "bundle.gguf")}))[0]
    assert done.proof.logits.relative_rms <= done.proof.logits.limit
    one, other = graph_of(alone.path), graph_of(done.path)
    assert one.hparams == other.hparams and [node.name for node in one.nodes] == [node.name for node in other.nodes]
    for first, second_ in zip(one.nodes, other.nodes, strict=True):
        made = [values_of(graph.checkpoint, node.inputs[0], 0, node.inputs[0].rows)
                for graph, node in ((one, first), (other, second_))]
        assert np.array_equal(*made), first.name
    assert len(done.receipt["dropped"]) == 5
    assert reverify(request_of(str(bundle), {}), done.path, silent).proof.logits.relative_rms <= 2e-6
