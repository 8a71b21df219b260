"""--split-max-tensors and --split-max-size: shards that are one model again when read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3

from ggferry.converters.conversion.kinds import gguf
from ggferry.converters.conversion.kinds.gguf_plan import plan_of
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reprove, reverify
from ggferry.converters.conversion_plan import steps
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.metadata.file_names import parse_filename
from ggferry.formats.errors import VerificationError
from ggferry.formats.gguf.header_layout import packed_key
from ggferry.formats.gguf.shards import SET_DIGEST
from ggferry.formats.gguf.values import string
from ggferry.formats.readers.gguf import open_gguf
from ggferry.support.progress import silent
from helpers.builders import Llama
from helpers.llama_cpp import continuations


def tensor_bytes(path: str) -> dict[str, bytes]:
    found = open_gguf(path)
    return {n: found.files[r.spans[0].file].read(r.spans[0].offset, r.nbytes) for n, r in found.tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "count"),
    [
        (Options(split_max_tensors=7), 5),
        (Options(split_max_tensors=10, tensor_first_split=False), 4),
        (Options(split_max_size=100_000), None),
        (Options(split_max_tensors=7, alignment=128, big_endian=True), 5),
    ],
)
def test_shards_hold_what_one_file_holds(options: Options, count: int | None, tmp_path: Path) -> None:
    source = str(Llama(kind="F32").write(tmp_path / "tiny.bin"))
    plain = Options(alignment=options.alignment, big_endian=options.big_endian)
    whole = convert(Request(source, str(tmp_path / "whole.gguf"), plain))[0]
    (tmp_path / "shards").mkdir()
    split = convert(Request(source, str(tmp_path / "shards"), options))[0]
    names = sorted(path.name for path in (tmp_path / "shards").glob("*.gguf"))
    assert names[0] == Path(split.path).name and len(split.receipt["output"]["files"]) == len(names)
    assert count is None or len(names) == count
    for number, name in enumerate(names, 1):
        parts = parse_filename(name)
        assert parts is not None and parts.shard == f"{number:05}-of-{len(names):05}"
    assert tensor_bytes(split.path) == tensor_bytes(whole.path)
    if not options.tensor_first_split:
        assert {tensor["file"] for tensor in split.receipt["tensors"]} == set(range(1, len(names)))
    report = reverify(Request(source), split.path, silent)
    assert report.proof.logits is not None and report.proof.logits.relative_rms == 0
    receipt = json.loads(Path(f"{split.path}.receipt.json").read_text())
    assert receipt["output"] == split.receipt["output"]


def test_llama_cpp_loads_shards(tmp_path: Path) -> None:
    source = str(Llama(n_vocab=300, kind="F16", version=1).write(tmp_path / "tiny.bin"))
    whole = convert(Request(source, str(tmp_path / "whole.gguf"), level="fast"))[0]
    split = convert(Request(source, str(tmp_path / "part.gguf"), Options(split_max_tensors=6), level="fast"))[0]
    assert split.path.endswith("part-00001-of-00005.gguf")
    one, many = continuations([1, 260, 17], 4, Path(whole.path), Path(split.path))
    assert one and one == many


@pytest.mark.parametrize("options", [{}, {"big_endian": True, "alignment": 128}, {"tensor_first_split": False}])
def test_every_shard_holds_the_digest_of_all_tensors(options: dict[str, object], tmp_path: Path) -> None:
    source = str(Llama(kind="F32").write(tmp_path / "tiny.bin"))
    request = Request(source, str(tmp_path / "part.gguf"), Options(split_max_tensors=6, **options), level="fast")
    done = convert(request)[0]
    lines = "".join(f"{blake3(data).hexdigest()}\n" for data in tensor_bytes(done.path).values())
    key = packed_key(SET_DIGEST, string(blake3(lines.encode()).hexdigest()), 3, bool(options.get("big_endian")))
    assert all(key in Path(path).read_bytes() for path in done.paths)
    assert done.receipt["metadata"][SET_DIGEST]
    assert [each["output"] for each in reprove(request, ["fast"], silent)] == [done.receipt["output"]]
    last = Path(done.paths[-1])
    last.write_bytes(last.read_bytes().replace(key, packed_key(SET_DIGEST, string("0" * 64), 3, key[0] == 0)))
    with pytest.raises(VerificationError):
        reprove(request, ["fast"], silent)


def test_shards_of_earlier_versions_prove_without_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(Llama(kind="F32").write(tmp_path / "tiny.bin"))
    request = Request(source, str(tmp_path / "part.gguf"), Options(split_max_tensors=6), level="fast")
    with monkeypatch.context() as patch:  # what `plan` and `written` make of shards without the key
        older = steps.with_set_digest
        patch.setattr(gguf, "plan_of", lambda *given: older(plan_of(*given), ""))
        patch.setattr(gguf, "with_set_digest", lambda plan, digest: plan)
        done = convert(request)[0]
    assert SET_DIGEST not in done.receipt["metadata"]
    assert all(SET_DIGEST.encode() not in Path(path).read_bytes() for path in done.paths)
    assert [each["output"] for each in reprove(request, ["fast"], silent)] == [done.receipt["output"]]
