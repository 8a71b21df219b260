"""A source that changes while it is converted is noticed: nothing is published, and the file is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.errors import ChangedError
from ggferry.formats.files.opened_files import recorded
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.gguf.values import ValueType, array, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import block_type
from ggferry.service.cli.app import _run
from helpers.builders import Llama
from helpers.hf_llama import hf_llama

pytestmark = pytest.mark.attack

CORRUPT = 5


def flip(path: Path) -> None:
    """Another byte near the end, in place; size and mtime are as they were."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-9, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    """Another file of the same bytes under the name."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 64)


def remove(path: Path) -> None:
    path.unlink()


def at(wanted: str, change: Callable[[], object]) -> Any:
    """A stage callback that makes the change when the stage of that name is over."""

    @contextmanager
    def stage(title: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None
        if title == wanted:
            change()

    return stage


def is_noticed(request: Request, path: Path, change: Callable[[Path], object], when: str = "writing") -> None:
    """The conversion ends by naming the file, and leaves nothing."""
    out = Path(str(request.out))
    with pytest.raises(ChangedError) as noticed:
        convert(request, at(when, lambda: change(path)))
    assert str(noticed.value.path) == str(path) and noticed.value.exit_code == CORRUPT
    assert sorted(os.listdir(out.parent)) == []


@pytest.fixture
def out(tmp_path: Path) -> str:
    (tmp_path / "out").mkdir()
    return str(tmp_path / "out" / "new.gguf")


@pytest.mark.parametrize("when", ["writing", "verifying"])
@pytest.mark.parametrize("change", [flip, replace, shrink, remove, Path.touch])
def test_a_model_file_that_changes(change: Callable[[Path], object], when: str, out: str, tmp_path: Path) -> None:
    source = Llama(n_layer=1).write(tmp_path / "old.bin")
    is_noticed(Request(str(source), out, level="fast"), source, change, when)


def test_a_change_between_digest_and_publication_is_no_receipt_of_the_old_bytes(out: str, tmp_path: Path) -> None:
    """The digest is of the bytes that were converted: none may change from the open on."""
    source = Llama(n_layer=1).write(tmp_path / "old.bin")
    with pytest.raises(ChangedError):
        convert(Request(str(source), out, level="fast"), approve=lambda receipt: flip(source))
    assert not os.listdir(os.path.dirname(out))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model", "README.md"])
def test_any_file_of_a_checkpoint_that_changes(name: str, out: str, tmp_path: Path) -> None:
    folder = hf_llama(tmp_path / "t8")
    is_noticed(Request(str(folder), out, level="fast"), folder / name, flip)


def test_a_sidecar_that_was_not_read_counts_too(out: str, tmp_path: Path) -> None:
    folder = hf_llama(tmp_path / "t8")
    request = Request(str(folder), out, vocab=VocabOptions(none=True), level="fast")
    is_noticed(request, folder / "tokenizer.model", flip)


def test_a_shard_or_an_index_that_changes(out: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    folder = hf_llama(tmp_path / "t8")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {f"model-0000{n}-of-00002.safetensors": dict(list(tensors.items())[n - 1 :: 2]) for n in (1, 2)}
    for name, part in parts.items():
        save_file(part, folder / name)
    where = {tensor: name for name, part in parts.items() for tensor in part}
    index = folder / "model.safetensors.index.json"
    for changed in (index, folder / "model-00002-of-00002.safetensors"):
        index.write_text(json.dumps({"weight_map": where}))
        is_noticed(Request(str(folder), out, level="fast"), changed, Path.touch)


def test_an_imatrix_and_a_gguf_that_change_under_quantize(out: str, tmp_path: Path) -> None:
    source, model, matrix = (tmp_path / name for name in ("old.bin", "a.gguf", "m.gguf"))
    Llama(n_layer=1).write(source)
    convert(Request(str(source), str(model), level="none"))
    sums = [("blk.0.attn_q.weight.in_sum2", np.ones(96, "<f4")), ("blk.0.attn_q.weight.counts", np.ones(1, "<f4"))]
    keys = {
        "general.type": string("imatrix"),
        "imatrix.datasets": array(ValueType.STRING, ["text"]),
        "imatrix.chunk_count": u32(1),
        "imatrix.chunk_size": u32(8),
    }
    write_gguf(matrix, keys, [(name, block_type("F32"), data.shape, data) for name, data in sums])
    request = Request(str(model), out, Options(outtype="q4_0"), imatrix=str(matrix), level="fast")
    is_noticed(request, matrix, flip)
    is_noticed(request, model, flip)


def test_a_tokenizer_named_by_an_option_that_changes(out: str, tmp_path: Path) -> None:
    folder = hf_llama(tmp_path / "t8")
    own = (folder / "tokenizer.model").rename(tmp_path / "own.model")
    is_noticed(Request(str(folder), out, vocab=VocabOptions(model=str(own)), level="fast"), own, flip)


def test_an_adapters_base_that_changes(out: str, tmp_path: Path) -> None:
    base, lora = hf_llama(tmp_path / "base"), tmp_path / "lora"
    lora.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    a, b = np.ones((2, 64), "<f4"), np.ones((64, 2), "<f4")
    save_file({f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}, lora / "adapter_model.safetensors")
    (lora / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    request = Request(str(lora), out, base=str(base), level="fast")
    for changed in (base / "config.json", lora / "adapter_config.json", lora / "adapter_model.safetensors"):
        is_noticed(request, changed, Path.touch)
    convert(request)
    assert os.path.exists(out)


def test_an_option_read_before_the_model_counts_from_then_on(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--metadata is read by the command, before the conversion begins."""
    source, stated = Llama(n_layer=1).write(tmp_path / "old.bin"), tmp_path / "m.json"
    stated.write_text('{"general.author": "me"}')
    stage = at("writing", stated.touch)
    progress = "ggferry.service.cli.progress_bar.progress"
    monkeypatch.setattr(progress, lambda title, total, enabled: stage(title, total))
    assert _run(["convert", str(source), "-o", out, "--metadata", str(stated), "--verify", "fast"]) == CORRUPT
    assert str(stated) in capsys.readouterr().err and not os.listdir(os.path.dirname(out))


def test_what_is_written_just_after_the_open_is_noticed_whatever_the_clock(tmp_path: Path) -> None:
    """Times move by ticks of milliseconds: two writes within one leave the same ctime, but not across an open."""
    path = tmp_path / "x"
    for _ in range(20):
        path.write_bytes(b"before")
        with recorded() as opened, LocalFile(path):
            path.write_bytes(b"after!")
        with pytest.raises(ChangedError):
            opened.check_unchanged()
