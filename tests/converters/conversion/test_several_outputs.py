"""Several types at once: every output has the bytes and the receipt that a run of its own gives it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.converters.conversion_plan.grades import Grade
from ggferry.converters.model_graph import rows
from ggferry.formats.errors import BadValueError, UsageError
from ggferry.quant.kernels import Compiled
from ggferry.service.cli.app import _run
from helpers.third_party_fixtures import FIXTURES

SOURCE = FIXTURES / "hf" / "ckpt" / "llama_k256"
TYPES = "q4_k_m,keep,f16"
MATRIX = str(FIXTURES / "quantize" / "k256.imatrix.gguf")


@pytest.mark.parametrize("jobs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_bytes_and_receipts_are_those_of_single_runs(jobs: int, tmp_path: Path) -> None:
    made = ggferry.convert_many(SOURCE, tmp_path / "m-{outtype}.gguf", outtype=TYPES, verify="fast", jobs=jobs)
    assert [Path(done.output).name for done in made] == [f"m-{name}.gguf" for name in TYPES.split(",")]
    for done, name in zip(made, TYPES.split(","), strict=True):
        (tmp_path / "alone").mkdir(exist_ok=True)
        alone = ggferry.convert(SOURCE, tmp_path / "alone" / f"m-{name}.gguf", outtype=name, verify="fast")
        assert Path(done.output).read_bytes() == Path(alone.output).read_bytes()
        assert Path(done.receipt_path).read_text() == Path(alone.receipt_path).read_text()
        assert {tensor.tensor_type.name for tensor in gguf.GGUFReader(done.output).tensors}


@pytest.mark.slow
@pytest.mark.parametrize("large", [1 << 26, 0])
def test_logits_are_those_of_single_runs_with_one_pass_of_the_source(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever multiplies, and whatever runs beside: to the last bit, as `apply` compares receipts."""
    from ggferry.converters.forward import weights
    from ggferry.converters.proof import logits

    monkeypatch.setattr(weights, "LARGE", large)
    sides: list[logits.Passes] = []
    run = logits.run_prompts
    monkeypatch.setattr(logits, "run_prompts", lambda some, texts: (sides.extend(some), run(some, texts))[1])
    made = ggferry.convert_many(SOURCE, tmp_path / "m-{outtype}.gguf", outtype="keep,q4_0,q8_0")
    assert len(sides) == 1 + 3 + 1  # the source; each output; the source's values as both rounded ones lay them out
    for one, name in zip(made, ("keep", "q4_0", "q8_0"), strict=True):
        alone = ggferry.convert(SOURCE, tmp_path / f"alone-{name}.gguf", outtype=name)
        assert one.receipt["logits"] == alone.receipt["logits"]
    assert made[1].receipt["logits"]["kl_divergence"] > made[2].receipt["logits"]["kl_divergence"] > 0


def test_a_chunk_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    decode = rows.laid_out_values

    def counted(checkpoint: object, node: rows.Node, start: int, stop: int) -> np.ndarray:
        seen.append((node.name, start * node.shape[-1]))
        return decode(checkpoint, node, start, stop)  # type: ignore[arg-type]

    monkeypatch.setattr(rows, "laid_out_values", counted)
    ggferry.convert_many(SOURCE, tmp_path / "m-{outtype}.gguf", outtype="q4_0,q8_0,q5_1", verify="none")
    own = [name for name in seen if name[0].startswith("blk.0.ffn")]
    assert own and len(own) == len(set(own))


def test_the_source_is_understood_and_its_vocabulary_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggferry.converters.conversion.kinds import gguf as kind
    from ggferry.converters.conversion.kinds import gguf_plan as planning
    from ggferry.converters.proof import vocabulary

    called: list[str] = []

    def count(module: object, name: str) -> None:
        call = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (called.append(name), call(*a, **k))[1])

    count(kind, "understand")
    for name in ("understand", "load_tokenizer", "read_imatrix"):
        count(planning, name)
    count(vocabulary, "cross_check")
    ggferry.convert_many(SOURCE, tmp_path / "m-{outtype}.gguf", outtype="q4_0,q8_0,f16", verify="fast", imatrix=MATRIX)
    assert called.count("understand") == called.count("load_tokenizer") == 1 + 3  # the source, and every output
    assert called.count("cross_check") == called.count("read_imatrix") == 1


def test_the_command_writes_them_and_ends_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = ["--outtype", "q4_k_m,q8_0", "--verify", "fast"]
    assert _run(["convert", str(SOURCE), "-o", "m-{outtype}.gguf", *told]) == 0
    *_, head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["type", "size", "bits/weight"]
    for line, name in ((first, "q4_k_m"), (second, "q8_0")):
        size = Path(f"m-{name}.gguf").stat().st_size
        assert line.startswith(name) and f"{size:,}" in line and line.endswith(f"m-{name}.gguf")
        reader = gguf.GGUFReader(f"m-{name}.gguf")
        bits = 8 * sum(int(t.n_bytes) for t in reader.tensors) / sum(int(t.n_elements) for t in reader.tensors)
        assert f" {bits:.2f} " in line
    assert _run(["quantize", "m-q8_0.gguf", "n-{outtype}.gguf", "q5_0,q4_0", "--allow-requantize", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["path"] for one in said["outputs"]] == ["n-q5_0.gguf", "n-q4_0.gguf"]
    assert [one["outtype"] for one in said["table"]] == ["q5_0", "q4_0"]
    assert all(one["kl_divergence"] > 0 and one["worst"] for one in said["table"])
    assert _run(["convert", str(SOURCE), "--dry-run", "--outtype", "q8_0,f16", "--json", "-o", "{outtype}"]) == 0
    assert len(json.loads(capsys.readouterr().out)["plans"]) == 2


@pytest.mark.parametrize(
    ("outtype", "out"),
    [("q8_0,q4_0", "one.gguf"), ("q8_0,q8_0", "{outtype}.gguf"), ("q8_0,", "{outtype}"), ("q8_0,no", "{outtype}")],
)
def test_what_cannot_be_is_refused_before_anything_is_written(outtype: str, out: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        ggferry.convert_many(SOURCE, tmp_path / out, outtype=outtype)
    assert not list(tmp_path.iterdir())


def test_into_a_folder_each_has_the_name_of_its_type(tmp_path: Path) -> None:
    made = ggferry.convert_many(SOURCE, tmp_path, outtype="q8_0,f16", verify="none")
    assert len({done.output for done in made}) == 2
    assert all(Path(done.output).parent == tmp_path for done in made)


def test_none_gets_its_name_where_one_fails(tmp_path: Path) -> None:
    """A value that is beyond float16 stops all of them."""
    import torch
    from safetensors.torch import load_file, save_file

    source = tmp_path / "model"
    shutil.copytree(SOURCE, source)
    (file,) = source.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensors[name] = tensors[name].to(torch.float32)
    tensors[name][0, 0] = 1e6
    save_file(tensors, file)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadValueError):
        ggferry.convert_many(source, tmp_path / "m-{outtype}.gguf", outtype="q8_0,f16")
    assert sorted(tmp_path.iterdir()) == before


def test_compiled_or_not_the_receipt_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are loaded when there is much to do; nobody can tell from the result."""
    before = ggferry.convert_many(SOURCE, tmp_path / "a-{outtype}.gguf", outtype="q4_k_m,q8_0,f16", verify="fast")
    monkeypatch.setattr(Compiled, "after", lambda self, elements: self.load())
    after = ggferry.convert_many(SOURCE, tmp_path / "b-{outtype}.gguf", outtype="q4_k_m,q8_0,f16", verify="fast")
    for a, b in zip(before, after, strict=True):
        assert Path(a.output).read_bytes() == Path(b.output).read_bytes()
        assert a.receipt["tensors"] == b.receipt["tensors"]
        assert {tensor["grade"] for tensor in b.receipt["tensors"]} & {Grade.ROUNDED}


def test_a_folder_in_hugging_faces_form_has_no_second_file(tmp_path: Path) -> None:
    """So that nothing is asked of it that is for GGUF alone."""
    made, out = str(tmp_path / "x.gguf"), str(tmp_path / "hf")
    ggferry.convert(str(FIXTURES / "hf/ckpt/llama"), made, verify="fast")
    assert _run(["convert", made, "--to", "safetensors", "-o", out, "--verify", "fast"]) == 0
    assert (tmp_path / "hf" / "config.json").is_file()
