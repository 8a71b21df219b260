"""A model that also sees becomes two files, together or not at all; each says what the other holds."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import ggferry
from ggferry.converters.conversion.request import Request, request_of
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.errors import MissingError, RefusedError, UsageError, VerificationError
from ggferry.formats.files.digests import without_blocks
from helpers.multimodal import TEXT, save

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Path:
    import transformers

    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "vision_use_head": False,
    }
    text = {
        **TEXT,
        "vocab_size": 400,
        "max_position_embeddings": 512,
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 16,
    }
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config)
    found = save(tmp_path_factory.mktemp("second") / "tiny-eyed", model, {"image_seq_length": 4})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(fixtures / "tokenizers" / "bpe_llama3" / name, found / name)
    return found


def request(folder: Path, out: Path | None, outtype: str = "f16", **more: Any) -> Request:
    return Request(
        str(folder),
        None if out is None else str(out),
        Options(outtype=outtype),
        level="fast",
        vocab=VocabOptions(none=True),
        **more,
    )


def receipt(path: Path) -> Any:
    return json.loads(Path(f"{path}.receipt.json").read_text())


def types(path: Path) -> set[str]:
    return {tensor["type"] for tensor in receipt(path)["tensors"]}


def test_both_files_are_written_and_each_receipt_names_the_other(folder: Path, tmp_path: Path) -> None:
    made = convert(request(folder, tmp_path / "a.gguf"))
    assert [one.path for one in made] == [str(tmp_path / "a.gguf"), str(tmp_path / "mmproj-a.gguf")]
    text, second = receipt(tmp_path / "a.gguf"), receipt(tmp_path / "mmproj-a.gguf")
    own = [[without_blocks(each) for each in one["output"]["files"]] for one in (text, second)]
    assert [second["text"], text["mmproj"]] == own
    assert (text["architecture"], second["architecture"]) == ("gemma3", "clip")
    assert {tuple(one["source"]["files"][0].items()) for one in (text, second)} == {
        tuple(text["source"]["files"][0].items())
    }
    for one, other in ((text, "mmproj-a.gguf"), (second, "a.gguf")):
        assert one["dropped"] and all(not drop["loses"] for drop in one["dropped"])
        assert {drop["reason"] for drop in one["dropped"]} == {f"in the other file, {other}"}
        assert not [note for note in one["notes"] if "not copied" in note]
    both = {name for one in (text, second) for tensor in one["tensors"] for name in tensor["from"]}
    assert both == {drop["name"] for one in (text, second) for drop in one["dropped"]}, "every tensor has its file"


def test_what_neither_file_takes_is_said_to_be_lost(folder: Path, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    more = shutil.copytree(folder, tmp_path / "more")
    tensors = load_file(more / "model.safetensors")
    name = next(name for name in tensors if "vision_tower" in name).partition("vision_tower.")[0]
    save_file({**tensors, f"{name}vision_tower.head.probe": np.ones((1, 4), np.float32)}, more / "model.safetensors")
    text, mmproj = convert(request(more, tmp_path / "a.gguf"))
    for one in (text.receipt, mmproj.receipt):
        assert [drop["name"] for drop in one["dropped"] if drop["loses"]] == [f"{name}vision_tower.head.probe"]


@pytest.mark.parametrize(
    "outtype, asked, second",
    [
        ("keep", None, {"F32"}),
        ("bf16", None, {"BF16", "F32"}),
        ("q8_0", None, {"F16", "F32"}),
        ("f16", "q8_0", {"Q8_0", "F32"}),
    ],
)
def test_the_second_file_has_a_type_of_its_own(
    outtype: str, asked: str | None, second: set[str], folder: Path, tmp_path: Path
) -> None:
    _, mmproj = convert(request(folder, tmp_path / "a.gguf", outtype, mmproj_outtype=asked))
    assert types(tmp_path / "mmproj-a.gguf") == second
    kinds = {tensor["name"]: tensor["type"] for tensor in mmproj.receipt["tensors"]}
    plain = {kinds[name] for name in ("v.patch_embd.weight", "mm.input_projection.weight")}
    assert plain == ({"F16"} if "F16" in second else {"F32"}), "runtimes take nothing else"
    assert kinds["v.position_embd.weight"] == "F32"


@pytest.mark.parametrize(
    "out, outtype, name",
    [
        ("m-q8_0.gguf", "q8_0", "mmproj-m-f16.gguf"),
        ("M-Q8_0.gguf", "q8_0", "mmproj-M-F16.gguf"),
        ("m.gguf", "q8_0", "mmproj-m.gguf"),
    ],
)
def test_names(out: str, outtype: str, name: str, folder: Path, tmp_path: Path) -> None:
    convert(request(folder, tmp_path / out, outtype))
    assert (tmp_path / name).is_file()


def test_in_a_folder_it_has_the_conventions_name(folder: Path, tmp_path: Path) -> None:
    _, mmproj = convert(request(folder, tmp_path))
    assert os.path.basename(mmproj.path) == "mmproj-Tiny-Eyed-F16.gguf"


def test_only_and_none(folder: Path, tmp_path: Path) -> None:
    (only,) = convert(request(folder, tmp_path / "a.gguf", mmproj="only"))
    assert os.listdir(tmp_path) and only.path == str(tmp_path / "mmproj-a.gguf")
    assert sorted(os.listdir(tmp_path)) == ["mmproj-a.gguf", "mmproj-a.gguf.receipt.json"]
    assert [drop for drop in only.receipt["dropped"] if drop["loses"]], "the text model is in no file"
    (text,) = convert(request(folder, tmp_path / "b.gguf", mmproj="none"))
    assert "mmproj" not in text.receipt
    assert [note for note in text.receipt["notes"] if "not copied" in note]


def test_types_of_the_text_model_share_one_second_file(folder: Path, tmp_path: Path) -> None:
    out = ggferry.convert_many(folder, tmp_path / "m-{outtype}.gguf", outtype="q8_0,f16", verify="fast", no_vocab=True)
    assert sorted(path.name for path in tmp_path.glob("*.gguf")) == ["m-f16.gguf", "m-q8_0.gguf", "mmproj-m-f16.gguf"]
    assert {one.mmproj.output for one in out if one.mmproj} == {str(tmp_path / "mmproj-m-f16.gguf")}
    assert len(receipt(tmp_path / "mmproj-m-f16.gguf")["text"]) == 2


def test_an_equal_second_file_may_be_there_and_another_one_not(folder: Path, tmp_path: Path) -> None:
    convert(request(folder, tmp_path / "a.gguf"))
    there = (tmp_path / "mmproj-a.gguf").read_bytes()
    (tmp_path / "a.gguf").unlink()
    (tmp_path / "a.gguf.receipt.json").unlink()
    convert(request(folder, tmp_path / "a.gguf"))
    assert (tmp_path / "mmproj-a.gguf").read_bytes() == there
    (tmp_path / "a.gguf").unlink()
    (tmp_path / "a.gguf.receipt.json").unlink()
    for other in (there[:-1] + bytes([there[-1] ^ 1]), b"another"):
        (tmp_path / "mmproj-a.gguf").write_bytes(other)
        with pytest.raises(RefusedError, match="exists already"):
            convert(request(folder, tmp_path / "a.gguf"))
        assert (tmp_path / "mmproj-a.gguf").read_bytes() == other and not (tmp_path / "a.gguf").exists()


def test_a_class_whose_tower_no_table_reads_is_converted_as_before(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "architectures": ["Gemma3ForCausalLM"]}))
    (result,) = convert(request(other, tmp_path / "a.gguf"))
    told = [note for note in result.receipt["notes"] if "no mmproj file is written" in note]
    assert len(told) == 1 and "Gemma3ForCausalLM" in told[0]
    with pytest.raises(UsageError, match="no table reads the projector of Gemma3ForCausalLM"):
        convert(request(other, tmp_path / "b.gguf", mmproj="only"))


def test_a_folder_without_its_processors_settings_has_its_text_model(folder: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("preprocessor_config.json"))
    (result,) = convert(request(bare, tmp_path / "m.gguf"))
    (note,) = (note for note in result.receipt["notes"] if "no mmproj file is written" in note)
    assert "preprocessor_config.json" in note and "vision.image_mean" in note
    assert not (tmp_path / "mmproj-m.gguf").exists()
    with pytest.raises(MissingError, match="image_mean"):
        convert(request(bare, tmp_path / "n.gguf", mmproj="only"))


def test_verify_knows_both_files(folder: Path, tmp_path: Path) -> None:
    convert(request(folder, tmp_path / "a.gguf", "f32"))
    for name in ("a.gguf", "mmproj-a.gguf"):
        assert ggferry.verify(folder, tmp_path / name).proof.logits is not None
    changed = bytearray((tmp_path / "mmproj-a.gguf").read_bytes())
    changed[-40] ^= 64
    (tmp_path / "mmproj-a.gguf").write_bytes(changed)
    (tmp_path / "mmproj-a.gguf.receipt.json").unlink()
    with pytest.raises(VerificationError):
        ggferry.verify(folder, tmp_path / "mmproj-a.gguf")


def test_a_second_file_is_quantized_but_for_what_must_stay(folder: Path, tmp_path: Path) -> None:
    convert(request(folder, tmp_path / "a.gguf", "f32", mmproj="only"))
    done = ggferry.quantize(tmp_path / "mmproj-a.gguf", tmp_path / "mmproj-q.gguf", "q8_0")
    kinds = {tensor["name"]: tensor["type"] for tensor in done.receipt["tensors"]}
    assert kinds["v.blk.0.attn_q.weight"] == "Q8_0"
    for name in ("v.patch_embd.weight", "v.position_embd.weight", "mm.input_projection.weight", "v.blk.0.ln1.weight"):
        assert kinds[name] == "F32"
    assert done.proof.logits is not None and done.proof.logits.relative_rms < 0.05


def test_the_plan_shows_both(folder: Path, tmp_path: Path) -> None:
    made = ggferry.plan(folder, no_vocab=True, outtype="q8_0")
    assert made.mmproj is not None and (made.architecture, made.mmproj.architecture) == ("gemma3", "clip")
    assert request_of(str(folder), {"mmproj": "only"}).mmproj == "only"


@pytest.mark.slow
def test_an_archive_has_one_line_and_two_outputs(folder: Path, tmp_path: Path) -> None:
    from helpers.archive_tools import command, plan

    (tmp_path / "in").mkdir()
    shutil.copytree(folder, tmp_path / "in" / "tiny-eyed")
    path, dest = tmp_path / "plan.jsonl", tmp_path / "out"
    plan(tmp_path / "in", path, "--dest", dest, "--outtype", "q8_0", "--verify", "fast", "-j", "1")
    line = json.loads(path.read_text().splitlines()[1])
    assert "lost" not in line and any("an mmproj file beside the output" in note for note in line["notes"])
    command("apply", path, "-j", "1")
    out = {found.name for found in dest.rglob("*.gguf")}
    assert len(out) == 2 and sum(name.startswith("mmproj-") and name.endswith("-F16.gguf") for name in out) == 1
    shutil.rmtree(f"{path}.ledger", ignore_errors=True)
    Path(f"{path}.ledger").unlink(missing_ok=True)
    command("apply", path, "-j", "1")  # both are recognized
    (second,) = dest.rglob("mmproj-*.gguf")
    second.write_bytes(second.read_bytes()[:-1] + b"?")
    command("ledger", "recheck", path, code=1)


def test_a_look_at_either_half_shows_the_other(folder: Path, tmp_path: Path) -> None:
    convert(request(folder, tmp_path / "a.gguf", "f32"))
    halves = [ggferry.inspect(path).other_half for path in (folder, tmp_path / "a.gguf", tmp_path / "mmproj-a.gguf")]
    assert [(half["kind"], half["architecture"], half["file"]) for half in halves if half] == [
        ("mmproj", "gemma3", None),
        ("mmproj", "gemma3", "mmproj-a.gguf"),
        ("text", "gemma3", "a.gguf"),
    ]
    for name in ("a.gguf", "mmproj-a.gguf"):
        (tmp_path / f"{name}.receipt.json").unlink()
        assert ggferry.inspect(tmp_path / name).other_half, "by llama.cpp's prefix"


def test_a_second_file_is_judged_by_its_table(folder: Path, tmp_path: Path) -> None:
    from ggferry.converters.analysis.validate import examine

    convert(request(folder, tmp_path / "a.gguf", "f32", mmproj="only"))
    said = [finding.text for finding in examine(str(tmp_path / "mmproj-a.gguf")).findings]
    assert any("gemma3 (Gemma 3, vision encoder)" in line for line in said)


@pytest.mark.slow
def test_llama_cpp_answers_with_both_files(folder: Path, tmp_path: Path) -> None:
    """Its server loads both, and reads a picture beside the text."""
    import numpy as np

    from helpers.llama_pictures import answers

    ggferry.convert(folder, tmp_path / "a.gguf", outtype="f32", verify="fast")
    picture = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    (told,) = answers(tmp_path / "a.gguf", tmp_path / "mmproj-a.gguf", [picture])
    assert told.get("choices"), told
