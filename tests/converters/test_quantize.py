"""Quantizing: the bytes llama-quantize writes, its options, and what it gets wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.quant.codec import codec
from ggferry.service.cli.app import _run
from helpers.builders import Llama
from helpers.llama_cpp import continuations
from helpers.peers import Peers
from helpers.third_party_fixtures import FIXTURES

WITNESSES = [
    f"k256.{name}"
    for name in (
        "F16",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q8_0",
        "Q2_K",
        "Q3_K_M",
        "Q4_K_M",
        "Q5_K_S",
        "Q6_K",
        "IQ4_NL",
        "IQ4_XS",
        "IQ3_S",
        "TQ2_0",
        "MXFP4_MOE",
    )
] + [f"im_k256.{name}" for name in ("Q4_0", "Q4_K_M", "IQ3_XXS", "IQ2_XS", "IQ1_S")]


def tensors(path: str | Path) -> dict[str, tuple[str, bytes]]:
    found = open_gguf(str(path))
    return {
        name: (ref.type.name, found.files[ref.spans[0].file].read(ref.spans[0].offset, ref.nbytes))
        for name, ref in found.tensors.items()
    }


def encodable(types: set[str]) -> bool:
    return all(codec(name).encode for name in types)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WITNESSES)
def test_every_tensor_is_llama_quantizes(name: str, fixtures: Path, peer: Peers, tmp_path: Path) -> None:
    """llama.cpp's F16 model, with and without its importance matrix, tensor by tensor, byte by byte."""
    made = peer(f"quantize/{name}.gguf")
    expected = tensors(made)
    assert encodable({kind for kind, _ in expected.values()}), name
    matrix = str(fixtures / "quantize" / "k256.imatrix.gguf") if name.startswith("im_") else None
    options = Options(outtype=name.split(".")[1])
    source = str(peer("quantize/k256.F16.gguf"))
    result = convert(Request(source, str(tmp_path / "o.gguf"), options, imatrix=matrix, level="fast"))[0]
    found = tensors(result.path)
    assert {n: kind for n, (kind, _) in found.items()} == {n: kind for n, (kind, _) in expected.items()}
    assert found == expected
    ours, theirs = open_gguf(result.path).metadata, open_gguf(str(made)).metadata
    if name != "k256.MXFP4_MOE":  # a dense model under that name is Q8_0 all over, and is called so
        assert ours["general.file_type"] == theirs["general.file_type"]
    if any(codec(kind).type.quantized for kind, _ in expected.values()):
        assert ours["general.quantization_version"] == theirs["general.quantization_version"]
    for key in ("quantize.imatrix.entries_count", "quantize.imatrix.chunks_count"):
        assert ours.get(key) == theirs.get(key)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("quantize")
    llama = Llama(n_vocab=300, n_embd=256, n_head=8, n_head_kv=4, n_layer=3, n_ff=512, kind="F16", version=1)
    source = llama.write(folder / "m.bin")
    return convert(Request(str(source), str(folder / "m.gguf"), level="fast"))[0].path


def test_straight_from_the_source_and_through_a_file_give_the_same_tensors(model: str, tmp_path: Path) -> None:
    source = str(Path(model).with_name("m.bin"))
    direct = convert(Request(source, str(tmp_path / "a.gguf"), Options(outtype="q4_k_m")))[0]
    staged = convert(Request(model, str(tmp_path / "b.gguf"), Options(outtype="q4_k_m")))[0]
    assert tensors(direct.path) == tensors(staged.path)
    assert direct.receipt["logits"]["kl_divergence"] >= 0 and direct.receipt["verified"] == "full"
    worst = max(t["relative_rms"] for t in direct.receipt["tensors"])
    assert 0.01 < worst < 0.2, "a user sees what it cost"


@pytest.mark.parametrize("jobs", [1, 3])
def test_bytes_do_not_depend_on_threads(model: str, tmp_path: Path, jobs: int) -> None:
    one = convert(Request(model, str(tmp_path / "1.gguf"), Options(outtype="q5_k_m"), jobs=jobs, level="none"))[0]
    two = convert(Request(model, str(tmp_path / "2.gguf"), Options(outtype="q5_k_m"), jobs=2, level="none"))[0]
    assert Path(one.path).read_bytes() == Path(two.path).read_bytes()


def types(result) -> dict[str, str]:
    return {tensor["name"]: tensor["type"] for tensor in result.receipt["tensors"]}


def test_options_that_choose_types(model: str, tmp_path: Path) -> None:
    pure = types(
        convert(Request(model, str(tmp_path / "1.gguf"), Options(outtype="q4_k_m", pure=True), level="fast"))[0]
    )
    assert {kind for name, kind in pure.items() if "norm" not in name} == {"Q4_K"}
    options = Options(
        outtype="q4_k_m", output_tensor_type="q8_0", token_embedding_type="f16", tensor_types=(("attn_v", "Q5_K"),)
    )
    chosen = types(convert(Request(model, str(tmp_path / "2.gguf"), options, level="fast"))[0])
    assert chosen["output.weight"] == "Q8_0" and chosen["token_embd.weight"] == "F16"
    assert {kind for name, kind in chosen.items() if "attn_v" in name} == {"Q5_K"}
    left = Options(outtype="q8_0", leave_output_tensor=True)
    assert types(convert(Request(model, str(tmp_path / "3.gguf"), left, level="fast"))[0])["output.weight"] == "F16"
    text = "base q4_k_m\nblk.*.ffn_down.weight -> q6_k\n"
    own = convert(Request(model, str(tmp_path / "4.gguf"), Options(recipe_text=text), level="fast"))[0]
    assert {kind for name, kind in types(own).items() if "ffn_down" in name} == {"Q6_K"}
    with pytest.raises(UsageError):
        convert(Request(model, str(tmp_path / "5.gguf"), Options(recipe_text="nonsense")))


def test_rows_that_do_not_divide_fall_back_and_the_file_type_says_so(tmp_path: Path) -> None:
    source = str(Llama(n_embd=96, n_ff=160, kind="F32", version=1).write(tmp_path / "m.bin"))
    result = convert(Request(source, str(tmp_path / "o.gguf"), Options(outtype="q4_k_m")))[0]
    kinds = set(types(result).values())
    assert kinds == {"F32", "Q5_0", "Q8_0"}
    assert all(t["why"] for t in result.receipt["tensors"] if t["type"] == "Q5_0")
    assert any("became Q" in note and "whole blocks" in note for note in result.receipt["notes"])
    assert open_gguf(result.path).metadata["general.file_type"].data == 8


def test_refusals(model: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="--imatrix"):
        convert(Request(model, str(tmp_path / "o.gguf"), Options(outtype="iq2_xs")))
    once = convert(Request(model, str(tmp_path / "q8.gguf"), Options(outtype="q8_0"), level="fast"))[0].path
    with pytest.raises(RefusedError, match="allow-requantize"):
        convert(Request(once, str(tmp_path / "o.gguf"), Options(outtype="q4_0")))
    convert(Request(once, str(tmp_path / "o.gguf"), Options(outtype="q4_0", allow_requantize=True), level="fast"))
    again = convert(Request(once, str(tmp_path / "copy.gguf"), Options(outtype="copy")))[0]
    assert tensors(again.path) == tensors(once)


def test_prune_override_and_alignment(model: str, tmp_path: Path) -> None:
    """A pruned model with another alignment: llama-quantize writes files of alignment 64 that do not load."""
    aligned = convert(Request(model, str(tmp_path / "a.gguf"), Options(alignment=256), level="fast"))[0].path
    request = Request(
        aligned,
        str(tmp_path / "p.gguf"),
        Options(outtype="q8_0", alignment=256),
        prune="1",
        override_keys=("llama.context_length=int:512", "general.name=str:Pruned"),
    )
    result = convert(request)[0]
    found = open_gguf(result.path)
    assert found.alignment == 256
    assert found.metadata["llama.block_count"].data == 2 and found.metadata["llama.context_length"].data == 512
    assert found.metadata["general.name"].data == "Pruned"
    assert {drop["name"].split(".")[1] for drop in result.receipt["dropped"]} == {"1"}
    assert len({name.split(".")[1] for name in found.tensors if name.startswith("blk")}) == 2
    (answer,) = continuations([1, 260, 17], 3, Path(result.path))
    assert answer
    for bad in ("7", "x"):
        with pytest.raises(UsageError):
            convert(Request(model, str(tmp_path / "x.gguf"), Options(outtype="q8_0"), prune=bad))
    with pytest.raises(UsageError):
        convert(Request(model, str(tmp_path / "x.gguf"), override_keys=("llama.context_length=float:1",)))


def test_an_architecture_without_a_table_is_carried_and_compared(model: str, tmp_path: Path) -> None:
    found = open_gguf(model)
    from dataclasses import replace

    keys = {re.sub(r"^llama\.", "someday.", key): value for key, value in found.metadata.items()}
    keys["general.architecture"] = replace(keys["general.architecture"], data="someday")
    data = tensors(model)
    path = tmp_path / "someday.gguf"
    write_gguf(path, keys, [(n, found.tensors[n].type, found.tensors[n].shape, raw) for n, (_, raw) in data.items()])
    result = convert(Request(str(path), str(tmp_path / "o.gguf"), Options(outtype="q4_k_m")))[0]
    known = convert(Request(model, str(tmp_path / "k.gguf"), Options(outtype="q4_k_m"), level="fast"))[0]
    assert tensors(result.path) == tensors(known.path), "mixtures need the facts, not the table"
    assert result.receipt["logits"] is None and any("no table" in note for note in result.receipt["notes"])


def test_nan_is_refused_with_its_place(tmp_path: Path) -> None:
    llama = Llama(n_embd=256, n_head=8, n_head_kv=4, n_ff=512, kind="F32", version=1)
    data = bytearray(llama.bytes())
    at = data.index(b"layers.1.feed_forward.w1.weight") + 31
    at += -at % 32 + 4 * (256 * 9 + 5)
    data[at : at + 4] = np.float32("nan").tobytes()
    path = tmp_path / "nan.bin"
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"w1") as caught:
        convert(Request(str(path), str(tmp_path / "o.gguf"), Options(outtype="q4_k_m"), level="fast"))
    assert getattr(caught.value, "exit_code", None) == 5 and "9" in str(caught.value)
    assert json.dumps(sorted(p.name for p in tmp_path.iterdir())) == '["nan.bin"]'


def with_outliers(model: str, name: str, path: Path) -> str:
    """The F16 model with one weight in a hundred of a tensor made forty times as large."""
    found, data = open_gguf(model), tensors(model)
    values = np.frombuffer(data[name][1], "<f2").copy()
    values[np.random.default_rng(5).random(len(values)) < 0.01] *= np.float16(40)
    data[name] = (data[name][0], values.tobytes())
    rows = [(n, found.tensors[n].type, found.tensors[n].shape, raw) for n, (_, raw) in data.items()]
    write_gguf(path, found.metadata, rows)
    return str(path)


def test_a_tensor_that_loses_more_than_its_type_costs_is_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = convert(Request(model, str(tmp_path / "1.gguf"), Options(outtype="q8_0"), level="fast"))[0]
    rounded = [t for t in usual.receipt["tensors"] if t["type"] == "Q8_0"]
    assert rounded and all(t["band"][0] < 1.2 * t["relative_rms"] for t in rounded)
    assert not any(t["outlier"] for t in rounded) and not any("lost more" in note for note in usual.receipt["notes"])
    odd = with_outliers(model, "blk.1.ffn_down.weight", tmp_path / "odd.gguf")
    result = convert(Request(odd, str(tmp_path / "2.gguf"), Options(outtype="q8_0"), level="fast"))[0]
    assert [t["name"] for t in result.receipt["tensors"] if t.get("outlier")] == ["blk.1.ffn_down.weight"]
    (note,) = [note for note in result.receipt["notes"] if "lost more" in note]
    assert re.search(r"^blk\.1\.ffn_down\.weight .* Q8_0 .* RMS 0\.0[12]\d*, band 0\.00534 to 0\.00841$", note)
    assert _run(["verify", odd, result.path, "--level", "fast"]) == 0
    assert note in capsys.readouterr().err


def test_many_outliers_take_few_lines(model: str, tmp_path: Path) -> None:
    """Ternary types on weights that are not ternary: every tensor."""
    result = convert(Request(model, str(tmp_path / "t.gguf"), Options(outtype="tq2_0"), level="fast"))[0]
    lines = [note for note in result.receipt["notes"] if "lost more" in note or "more tensors" in note]
    outliers = sum(bool(t.get("outlier")) for t in result.receipt["tensors"])
    assert len(lines) == 6 and outliers > 6 and lines[-1].startswith(f"and so did {outliers - 5} ")


def test_infinite_weights_are_copied_where_allowed_and_never_encoded(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, data = open_gguf(model), tensors(model)
    name = "blk.2.ffn_up.weight"
    values = np.frombuffer(data[name][1], "<f2").copy()
    values[256 * 7 + 3] = np.inf
    data[name] = (data[name][0], values.tobytes())
    source = str(tmp_path / "inf.gguf")
    rows = [(n, found.tensors[n].type, found.tensors[n].shape, raw) for n, (_, raw) in data.items()]
    write_gguf(source, found.metadata, rows)
    for kind, allowed in (("copy", []), ("q8_0", []), ("q8_0", ["--allow-nonfinite"])):
        assert _run(["quantize", source, str(tmp_path / "no.gguf"), kind, *allowed]) == 5
        error = capsys.readouterr().err
        assert f"'{name}', row 7, column 3" in error and "--allow-nonfinite" in error
        assert not (tmp_path / "no.gguf").exists()
    assert _run(["quantize", source, str(tmp_path / "yes.gguf"), "copy", "--allow-nonfinite"]) == 0
    assert tensors(tmp_path / "yes.gguf") == data
    kept = ["quantize", source, str(tmp_path / "mixed.gguf"), "q8_0", "--tensor-type", "blk.2.ffn_up=f16"]
    assert _run([*kept, "--allow-nonfinite"]) == 0
    mixed = tensors(tmp_path / "mixed.gguf")
    assert mixed[name] == data[name] and mixed["blk.1.ffn_up.weight"][0] == "Q8_0"
    assert f"'{name}', row 7, column 3" in capsys.readouterr().err, "what was copied is said"


def test_a_gguf_file_without_its_vocabulary(tmp_path: Path) -> None:
    """`--no-vocab` leaves out every key of the tokenizer, and the proof expects that."""
    source = FIXTURES / "hf/out/llama/llama.q8_0.gguf"
    result = convert(Request(str(source), str(tmp_path / "out.gguf"), vocab=VocabOptions(none=True), level="fast"))[0]
    keys = {key for key in gguf.GGUFReader(result.path).fields if key.startswith("tokenizer.")}
    assert not keys and "tokenizer.ggml.tokens" in gguf.GGUFReader(source).fields
