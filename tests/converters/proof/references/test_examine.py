"""Witnesses asked in processes of their own: models that they agree on, faults planted on both sides of our tables, and
witnesses that crash, hang, or know nothing of the model."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Param
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.proof.prompts import Prompt
from ggferry.converters.proof.references import child_process, examine, llama_cpp, transformers_model
from ggferry.converters.proof.references.case import GIB, difference
from ggferry.converters.understand import understand
from ggferry.formats.errors import UsageError, VerificationError
from helpers.archive_tools import command, plan
from helpers.builders import Llama
from helpers.checkpoints import write_checkpoint
from helpers.models.sizes import LONG
from helpers.tiny import ROPE
from helpers.tiny_models import make, write

pytestmark = pytest.mark.filterwarnings("ignore")


def sides(name: str, folder: Path, **changes: Any) -> tuple[ModelGraph, ModelGraph]:
    """A tiny model as transformers saved it, and the GGUF that its graph makes."""
    make(name, folder / "hf", **changes)
    source = understand(open_checkpoint(str(folder / "hf")))
    return source, understand(open_checkpoint(str(write(source, folder / "x.gguf"))))


def without(graph: ModelGraph, name: str) -> ModelGraph:
    """The graph as a table makes it that never heard of a key."""
    return replace(graph, hparams={key: param for key, param in graph.hparams.items() if key != name})


def with_value(graph: ModelGraph, name: str, value: Any) -> ModelGraph:
    return replace(graph, hparams={**graph.hparams, name: Param(value, "planted")})


# --- who is asked -------------------------------------------------------------------------------------------


def test_names_of_witnesses() -> None:
    assert examine.chosen(()) == examine.chosen(("none",)) == examine.chosen((), "fast") == ()
    assert examine.chosen(("llama.cpp, transformers", "llama.cpp")) == ("llama.cpp", "transformers")
    for wrong in (("gpt4all",), ("none", "auto"), (",",)):
        with pytest.raises(UsageError, match="witness"):
            examine.chosen(wrong)
    with pytest.raises(UsageError, match="full proof"):
        examine.chosen(("auto",), "fast")


def test_nobody_is_asked_unless_named(tmp_path: Path) -> None:
    source, output = sides("llama", tmp_path)
    assert examine.examine(source, output, ()) == ()


# --- what they say ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral window", {"sliding_window": 30}),
        ("llama llama3", {}),
        ("phi3 longrope", {}),
        ("mixtral", {}),
        ("gpt2", {}),
        ("falcon rw", {}),
        ("mamba2", {}),
    ],
)
def test_transformers_agrees(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    (said,) = examine.examine(*sides(name, tmp_path, **changes), ("transformers",))
    assert said.why is None and said.worst is not None and said.limit is not None
    assert said.worst <= 2e-6 < said.limit <= 2e-5 and said.count >= 8 and said.version.startswith("5.")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama yarn", {}),
        ("gemma2", {"query_pre_attn_scalar": 16}),
        ("mixtral", {"sliding_window": 64, "max_position_embeddings": 128}),
        pytest.param("mamba", {}, marks=pytest.mark.slow),
    ],
)
def test_llama_cpp_agrees(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    (said,) = examine.examine(*sides(name, tmp_path, **changes), ("llama.cpp",))
    assert said.why is None and said.worst is not None and said.version.startswith("b")
    assert said.worst <= (llama_cpp.GELU if name == "gemma2" else 5e-6) and said.side == "output"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "mixtral", "llama tied"])
def test_weights_as_they_are_stored_give_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 does not fit, a block at a time is widened; what follows from the configuration is not rounded."""
    from safetensors.torch import load_file, save_file

    make(name, tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    save_file({key: tensor.bfloat16() for key, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    monkeypatch.setattr(transformers_model, "available_memory", lambda: 0)
    need, dtype = transformers_model.memory(source)
    assert dtype == "bfloat16"
    monkeypatch.setattr(transformers_model, "available_memory", lambda: need)
    (said,) = examine.examine(source, source, ("transformers",))
    assert said.why is None and said.worst is not None and said.worst <= 2e-6


@pytest.mark.slow
def test_the_row_of_a_padding_token_is_the_files(tmp_path: Path) -> None:
    """transformers 5.23 makes it zero in models of this class, whose output is tied to it."""
    import torch
    import transformers

    sizes = {"kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
    base = {"vocab_size": 328, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 64, "pad_token_id": 7}
    model = transformers.YoutuForCausalLM(transformers.YoutuConfig(**sizes, **base, **heads, tie_word_embeddings=True))
    torch.nn.init.normal_(model.model.embed_tokens.weight.data[7])
    model.save_pretrained(tmp_path)
    source = understand(open_checkpoint(str(tmp_path)))
    (said,) = examine.examine(source, source, ("transformers",))
    assert said.why is None and said.worst is not None and said.worst <= 2e-6


@pytest.mark.slow
def test_rows_behind_a_choice_that_rounding_decides_are_not_compared(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    make("mixtral", tmp_path / "hf", num_experts_per_tok=1)
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    for name in [name for name in tensors if name.endswith("gate.weight")]:
        tensors[name][1] = tensors[name][0]
    save_file(tensors, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    (said,) = examine.examine(source, source, ("transformers",))
    assert said.missed and all("too close to compare" in line for line in said.missed)


@pytest.mark.slow
def test_llama_cpp_comes_to_both_regimes_and_to_the_window(tmp_path: Path) -> None:
    rope = {**LONG, **ROPE, "original_max_position_embeddings": 300}
    long = sides("phi3 longrope", tmp_path / "a", rope_parameters=rope, original_max_position_embeddings=300)
    (said,) = examine.examine(*long, ("llama.cpp",))
    assert said.why is None and not said.missed and said.count == 6
    (said,) = examine.examine(
        *sides("gemma2", tmp_path / "b", query_pre_attn_scalar=16, sliding_window=20), ("llama.cpp",)
    )
    assert said.why is None and not said.missed and said.count == 5


# --- faults that both sides of our tables share ----------------------------------------------------------------


FAULTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "a rope key nobody reads": ("llama linear", {}, lambda graph: without(graph, "rope_factor")),
    "a frequency base of elsewhere": ("llama", {}, lambda graph: with_value(graph, "rope_base", 1e4)),
    "a window nobody reads": ("mistral window", {"sliding_window": 30}, lambda graph: without(graph, "n_swa")),
    "a window off by one": ("mistral window", {"sliding_window": 30}, lambda graph: with_value(graph, "n_swa", 31)),
    "factors of long texts taken for short ones": (
        "llama longrope short",
        {},
        lambda graph: with_value(graph, "rope_long", graph.sizes["rope_short"]),
    ),
    "weights of experts not scaled": ("mixtral", {}, lambda graph: with_value(graph, "n_expert_used", 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_both_sides_passes_our_proof_and_not_the_witness(fault: str, tmp_path: Path) -> None:
    name, changes, plant = FAULTS[fault]
    make(name, tmp_path / "hf", **changes)
    source = plant(understand(open_checkpoint(str(tmp_path / "hf"))))
    check_logits(source, source)  # both sides read the same wrong table
    with pytest.raises(
        VerificationError, match=r"transformers 5\.\S+ (computes other logits|reads another window)"
    ) as caught:
        examine.examine(source, source, ("transformers",))
    assert caught.value.exit_code == 6 and caught.value.expected is not None


def test_a_key_that_llama_cpp_reads_and_we_do_not(tmp_path: Path) -> None:
    """Our own reader ignores a key of the output: both our sides agree, llama.cpp does not."""
    source, _ = sides("llama linear", tmp_path)
    output = without(understand(open_checkpoint(str(tmp_path / "x.gguf"))), "rope_factor")
    output = without(output, "rope_scaling")
    with pytest.raises(VerificationError, match=r"llama\.cpp b\d+ computes other logits") as caught:
        examine.examine(source, output, ("llama.cpp",))
    assert "token" in str(caught.value.found)


# --- those that cannot testify --------------------------------------------------------------------------------


def test_what_is_known_to_be_computed_otherwise_is_no_failure(tmp_path: Path) -> None:
    (said,) = examine.examine(*sides("qwen3moe not normed", tmp_path), ("llama.cpp",))
    assert said.why is not None and "as is known" in said.why and said.worst is not None and said.limit is not None
    assert said.worst > said.limit


def test_memory_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transformers_model, llama_cpp):
        monkeypatch.setattr(module, "available_memory", lambda: GIB // 4)
    said = examine.examine(*sides("llama", tmp_path), ("auto",))
    assert [s.witness for s in said] == ["transformers", "llama.cpp"]
    assert all(s.why is not None and "GiB of memory, 0.2 GiB are free" in s.why for s in said)


@pytest.mark.slow
def test_auto_says_nothing_of_those_that_have_no_business_here(tmp_path: Path) -> None:
    path = tmp_path / "old.bin"
    path.write_bytes(Llama(kind="F32", version=1).bytes())
    graph = understand(open_checkpoint(str(path)))
    assert not [said for said in examine.examine(graph, graph, ("auto",)) if said.witness == "transformers"]
    (said,) = examine.examine(graph, graph, ("transformers",))
    assert said.why == "the source is no local Hugging Face checkpoint"


@pytest.mark.slow
def test_code_of_the_model_is_never_run(tmp_path: Path) -> None:
    source, output = sides("llama", tmp_path)
    folder, canary = tmp_path / "hf", tmp_path / "canary"
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}, "model_type": "evil"}
    (folder / "config.json").write_text(json.dumps(config))
    (said,) = examine.examine(source, output, ("transformers",))
    assert said.why is not None and not canary.exists()


# --- processes of their own -----------------------------------------------------------------------------------


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> child_process.Answer:
    """What `ask` makes of a program."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "rogue.py").write_text(text)
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(child_process, "PROGRAMS", str(tmp_path / "programs"))
    return child_process.ask("rogue", {"prompts": [{}]}, str(tmp_path / "work"), 0)


WINDOWLESS = {"layer_types": ["full_attention"] * 5}
"""A window that no block has: llama.cpp ends with an assertion when it makes a cache for it."""


def unaware(graph: ModelGraph) -> ModelGraph:
    """The graph as a table makes it whose remarks nobody wrote."""
    spec = graph.architecture
    dialects = tuple(replace(dialect, caveats=()) for dialect in spec.dialects)
    return replace(graph, architecture=replace(spec, caveats=(), dialects=dialects))


@pytest.mark.slow
def test_a_file_that_llama_cpp_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = map(unaware, sides("cohere2", tmp_path, **WINDOWLESS))
    with pytest.raises(VerificationError, match=r"does not take the output.*SIGABRT.*is_swa_any") as caught:
        examine.examine(source, output, ("llama.cpp",))
    assert caught.value.exit_code == 6
    (said,) = examine.examine(source, output, ("auto",))[-1:]
    assert said.refused and str(said.note).startswith("WARNING: llama.cpp does not run this file, though it should")


@pytest.mark.slow
def test_a_refused_file_is_run_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = child_process.Answer(why="it does not load the file: odd", refused=True)
    monkeypatch.setattr(llama_cpp, "ask", lambda *_: refusal)
    folder = write_checkpoint(tmp_path / "m", Path(__file__).parents[4] / "fixtures")
    made = convert(Request(str(folder), str(tmp_path / "x.gguf"), witness=("auto",)))[0]
    notes = [str(said.note) for said in made.proof.testimonies if said.refused]
    assert notes and notes[0].startswith("WARNING: llama.cpp does not run this file")
    assert made.receipt["runtimes"]["run_it"] == []
    with pytest.raises(VerificationError, match="does not take the output: found it does not load the file: odd"):
        convert(Request(str(folder), str(tmp_path / "y.gguf"), witness=("llama.cpp",)))
    assert not (tmp_path / "y.gguf").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "blocks"), [("gemma2", 3), ("gemma3", 7), ("cohere2", 5), ("olmo3", 4), ("exaone_moe", 4), ("mimo2", 4)]
)
def test_a_model_whose_window_no_block_has_is_not_said_to_run(name: str, blocks: int, tmp_path: Path) -> None:
    source, output = sides(name, tmp_path, layer_types=["full_attention"] * blocks)
    assert source.runtimes == output.runtimes == ()
    with pytest.raises(VerificationError, match="is_swa_any"):
        examine.examine(unaware(source), unaware(output), ("llama.cpp",))


@pytest.mark.unix("signals by which a process ends")
def test_whose_fault_an_end_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert program(tmp_path / "a", monkeypatch, "import os; os.abort()").refused
    ended = program(tmp_path / "b", monkeypatch, "import os; print('std::bad_alloc', flush=True); os.abort()")
    assert ended.why and not ended.refused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os; os.abort()", "its process ended with SIGABRT"),
        ("import sys; print('GGML_ASSERT: no'); sys.exit(3)", "its process ended with exit status 3: GGML_ASSERT: no"),
        ("pass", "its answer cannot be read"),
        ("open('answer.json', 'w').write('{}')", "its answer cannot be read"),
        ("open('answer.json', 'w').write('{\"why\": \"no such model\"}')", "no such model"),
    ],
)
def test_a_process_that_fails_is_a_line(text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(program(tmp_path, monkeypatch, text).why).startswith(why)


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "SECONDS", 1.5)
    text = "import os, time; child = os.fork() or os.getpid(); open('pid', 'w').write(str(child)); time.sleep(60)"
    assert program(tmp_path, monkeypatch, text).why == "it took more than 2 s"
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int((tmp_path / "work" / "pid").read_text()), 0)
            time.sleep(0.1)


def test_a_process_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = sides("llama", tmp_path)
    monkeypatch.setattr(child_process.sys, "executable", str(tmp_path / "none"))
    (said,) = examine.examine(source, output, ("llama.cpp",))
    assert said.why == "it cannot be asked: No such file or directory"


def test_programs_import_nothing_of_ours() -> None:
    texts = [path.read_text() for path in Path(child_process.PROGRAMS).glob("*.py")]
    assert len(texts) == 9 and not [text for text in texts if "import ggferry" in text or "from ggferry" in text]


def test_rows_that_are_no_numbers_are_infinitely_far() -> None:
    text, good = Prompt("start", (1, 2)), np.ones((2, 4), np.float32)
    bad = good.copy()
    bad[1, 2] = np.nan
    found = difference([text], [good], [bad], [1.0])
    assert not found.allowed and found.place == "prompt 'start', token 1"
    assert not difference([text], [good], [good[:, :3]], [1.0]).allowed


# --- on the command line --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_conversion_asks_and_says_who_testified(fixtures: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "hf", fixtures)
    result = convert(Request(str(folder), str(tmp_path / "x.gguf"), witness=("auto",)))[0]
    assert result.lines[2].startswith("proved   self-consistent; tokenizers 0.")
    assert "; transformers 5." in result.lines[2] and "; llama.cpp b" in result.lines[2]
    texts, first, second, *more = result.receipt["testimonies"]
    assert more[0]["witness"] == "llama.cpp" and more[0]["what"] == "texts" and more[0]["count"] > 50
    assert texts["witness"] == "tokenizers" and texts["what"] == "texts" and texts["count"] > 290
    assert first["witness"] == "transformers" and first["count"] >= 16 and first["worst"] <= first["limit"]
    assert (
        second["witness"] == "llama.cpp"
        and second["what"] == "logits"
        and result.receipt["options"]["witness"] == ["auto"]
    )


@pytest.mark.slow
def test_a_plan_asks_for_witnesses(tmp_path: Path) -> None:
    path = tmp_path / "in" / "old.bin"
    path.parent.mkdir()
    path.write_bytes(Llama(kind="F32", version=1).bytes())
    (entry,) = plan(tmp_path / "in", tmp_path / "plan.jsonl", "--witness", "llama.cpp", "--dest", tmp_path / "out")
    assert entry["options"]["witness"] == ["llama.cpp"]
    command("apply", tmp_path / "plan.jsonl", "--jobs", "1")
    (receipt,) = (tmp_path / "out").glob("*.receipt.json")
    said = json.loads(receipt.read_text())["testimonies"][0]
    assert said["witness"] == "llama.cpp" and said["why"] is None and said["worst"] <= said["limit"]
    command("plan", tmp_path / "in", "-o", tmp_path / "wrong.jsonl", "--witness", "gpt4all", code=2)


def test_a_fault_ends_with_exit_code_6(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is published that a witness contradicts."""
    folder = write_checkpoint(tmp_path / "hf", fixtures)
    monkeypatch.setattr(llama_cpp, "limit_of", lambda graph: 1e-12)
    with pytest.raises(VerificationError, match=r"llama\.cpp b\d+ computes other logits from the output than we do"):
        convert(Request(str(folder), str(tmp_path / "x.gguf"), witness=("llama.cpp",)))
    assert not list(tmp_path.glob("*x.gguf*"))
