"""What a conversion and a verification say of llama.cpp's loader: one line a case, and nothing where all fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof import runtime_keys as runtime
from ggferry.converters.proof.runtime_notes import runtime_notes
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import understand
from ggferry.formats.gguf.values import Value, array, string, u32
from ggferry.formats.gguf.values import ValueType as T
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import block_type
from ggferry.support.progress import silent
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import make, whole

WHO = f"llama.cpp {runtime.version()}"
BARE = VocabOptions(none=True)


def of_llama_cpp(notes: list[str]) -> list[str]:
    return [note for note in notes if note.startswith(WHO)]


def test_nothing_is_said_where_all_fits(tmp_path: Path) -> None:
    result = convert(Request(str(FIXTURES / "hf/ckpt/llama"), str(tmp_path / "x.gguf")))[0]
    assert of_llama_cpp(result.receipt["notes"]) == [] and result.receipt["runtimes"]["run_it"] == ["llama.cpp"]


def test_an_architecture_without_a_loader_is_one_line(tmp_path: Path) -> None:
    source, out = str(FIXTURES / "hf/ckpt/gptj"), str(tmp_path / "x.gguf")
    notes = convert(Request(source, out))[0].receipt["notes"]
    assert [note for note in notes if "runtime" in note or "llama.cpp" in note] == [f"{WHO} has no loader for gptj"]
    report = reverify(Request(source, level="fast"), out, stage=silent)
    assert of_llama_cpp(report.notes) == [f"{WHO} has no loader for gptj"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Value], dict]:
    folder = tmp_path_factory.mktemp("notes")
    made = open_checkpoint(convert(Request(str(FIXTURES / "hf/ckpt/llama"), str(folder / "x.gguf")))[0].path)
    return dict(made.metadata), whole(understand(made))


def noted(folder: Path, keys: dict[str, Value], tensors: dict) -> tuple[list[str], list[str]]:
    """The notes on llama.cpp, and what runs it, of a GGUF of another hand that is converted again."""
    write_gguf(folder / "a.gguf", keys, [(name, block_type("F32"), x.shape, x) for name, x in tensors.items()])
    receipt = convert(Request(str(folder / "a.gguf"), str(folder / "b.gguf")))[0].receipt
    return of_llama_cpp(receipt["notes"]), receipt["runtimes"]["run_it"]


def test_each_case_is_a_line(model: tuple[dict[str, Value], dict], tmp_path: Path) -> None:
    keys, tensors = model
    odd = {f"llama.odd.{n}": u32(n) for n in range(6)} | {"llama.attention.causal": u32(1)}
    lines, run = noted(tmp_path, keys | odd, tensors)
    assert lines == [
        f"{WHO} reads llama.attention.causal as bool, and u32 is written",
        f"{WHO} does not read llama.odd.0, llama.odd.1, llama.odd.2, llama.odd.3 and 2 more",
    ]
    assert run == []


def test_a_missing_key_and_tensor_are_named(model: tuple[dict[str, Value], dict]) -> None:
    keys = {key: value for key, value in model[0].items() if key != "llama.context_length"}
    tensors = [name for name in model[1] if name != "blk.1.ffn_norm.weight"]
    assert runtime_notes("llama", keys, [*tensors, "blk.0.odd"], ()) == (
        f"{WHO} requires llama.context_length, which is not written",
        f"{WHO} requires the tensor blk.1.ffn_norm.weight, which is not written",
        f"{WHO} would refuse the file for its tensors blk.{{n}}.odd",
    )
    assert runtime_notes("llama", keys, (), (), vocab_only=True) == ()


def test_a_vocabulary_it_does_not_know_is_named(model: tuple[dict[str, Value], dict]) -> None:
    keys, tensors = model
    strange = keys | {"tokenizer.ggml.model": string("mine")}
    assert runtime_notes("llama", strange, tensors, ()) == (f"{WHO} does not know tokenizer.ggml.model 'mine'",)
    merged = keys | {"tokenizer.ggml.model": string("gpt2"), "tokenizer.ggml.merges": array(T.STRING, ("a b",))}
    lines = runtime_notes("llama", merged | {"tokenizer.ggml.pre": string("mine")}, tensors, ())
    assert lines == (f"{WHO} does not know tokenizer.ggml.pre 'mine'",)
    assert runtime_notes("llama", merged | {"tokenizer.ggml.pre": string("qwen2")}, tensors, ()) == ()


def test_files_for_other_loaders_are_none_of_its_business() -> None:
    assert runtime_notes("clip", {}, ["v.blk.0.x"], ()) == ()
    assert runtime_notes("llama", {"general.type": string("adapter")}, ["x.lora_a"], ()) == ()


def test_a_header_may_claim_any_number_of_blocks(model: tuple[dict[str, Value], dict]) -> None:
    keys = model[0] | {"llama.block_count": u32(2**32 - 1)}
    assert any("blk.2.attn_norm.weight" in line for line in runtime_notes("llama", keys, model[1], ()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gemma2", {}, "attention.scale=0.204"),
        ("gemma", {"tie_word_embeddings": False}, "an output of its own"),
        ("stablelm", {"tie_word_embeddings": True}, "the output matrix is the token embedding"),
        ("qwen2moe", {"tie_word_embeddings": True}, "the output matrix is the token embedding"),
        ("command-r", {"attention_bias": True}, "a bias of the attention's output"),
        ("command-r", {"num_hidden_layers": 64}, "queries and keys are not normed"),
    ],
)
def test_what_the_list_showed_our_tables_is_remarked(name: str, changes: dict, said: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf", **changes)
    receipt = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0].receipt
    assert receipt["runtimes"]["run_it"] == [] and any(said in note for note in receipt["notes"])
    assert of_llama_cpp(receipt["notes"]) == []
