"""An output and its receipt appear together or not at all, and no receipt ever stands beside another file."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.write.output_files import OutputSet
from ggferry.converters.write.recovery import recover
from ggferry.formats.errors import GgferryError, RefusedError
from ggferry.formats.files.partial_files import Partial
from ggferry.formats.files.partial_names import is_partial
from ggferry.formats.gguf.header_layout import lay_out
from ggferry.formats.gguf.values import string
from ggferry.quant.codec import block_type
from helpers import as_system
from helpers.builders import Llama

pytestmark = pytest.mark.attack


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Llama(n_layer=1).write(tmp_path / "old.bin")


def run(source: Path, out: Path, **more: object) -> None:
    convert(Request(str(source), str(out), level="none", **more))  # type: ignore[arg-type]


def receipt_of(out: Path) -> Path:
    return out.with_name(out.name + ".receipt.json")


def check_pair(out: Path) -> None:
    """The receipt is there and states the bytes of every file beside it."""
    records = json.loads(receipt_of(out).read_text())["output"]["files"]
    assert records[0]["name"] == out.name
    for record in records:
        assert blake3((out.parent / record["name"]).read_bytes()).hexdigest() == record["blake3"]


# --- files that appear meanwhile ---


@pytest.mark.parametrize("appears", [("new.gguf",), ("new.gguf.receipt.json",), ("new.gguf", "new.gguf.receipt.json")])
def test_what_appears_meanwhile_keeps_its_bytes_and_its_receipt(
    appears: tuple[str, ...], source: Path, tmp_path: Path
) -> None:
    def approve(receipt: object) -> None:
        for name in appears:
            (tmp_path / name).write_text(f"somebody's {name}")

    with pytest.raises(RefusedError, match="exists already"):
        convert(Request(str(source), str(tmp_path / "new.gguf"), level="none"), approve=approve)
    assert sorted(os.listdir(tmp_path)) == sorted([*appears, "old.bin"])
    assert all((tmp_path / name).read_text() == f"somebody's {name}" for name in appears)


@pytest.mark.parametrize("appears", ["new-00001-of-00002.gguf", "new-00002-of-00002.gguf"])
def test_a_shards_name_taken_meanwhile_takes_all_names_back(appears: str, source: Path, tmp_path: Path) -> None:
    def approve(receipt: object) -> None:
        (tmp_path / appears).write_text("somebody's")

    request = Request(str(source), str(tmp_path / "new.gguf"), Options(split_max_tensors=6), level="none")
    with pytest.raises(RefusedError, match="exists already"):
        convert(request, approve=approve)
    assert sorted(os.listdir(tmp_path)) == sorted([appears, "old.bin"])


def test_a_receipt_whose_name_is_taken_at_the_last_instant_takes_the_output_back(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_name = Partial.give_name

    def late(self: Partial, *, overwrite: bool = False) -> None:
        if self.target.endswith(".json"):
            Path(self.target).write_text("somebody's")
        give_name(self, overwrite=overwrite)

    monkeypatch.setattr(Partial, "give_name", late)
    with pytest.raises(RefusedError, match="exists already"):
        run(source, tmp_path / "new.gguf")
    assert sorted(os.listdir(tmp_path)) == ["new.gguf.receipt.json", "old.bin"]
    assert (tmp_path / "new.gguf.receipt.json").read_text() == "somebody's"


def test_a_strangers_file_with_the_receipts_name_is_replaced_only_by_force(source: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "new.gguf", tmp_path / "new.gguf.receipt.json"
    for text in ("a shop's receipt", '{"ggferry": "0.1.0", "format": 1, "output": {"files": [{"name": "else"}]}}'):
        other.write_text(text)
        with pytest.raises(RefusedError, match="not a receipt of this output"):
            run(source, out)
        assert other.read_text() == text and not out.exists()
    run(source, out, force=True)
    check_pair(out)


def test_the_receipt_of_an_output_that_is_gone_makes_way(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.gguf"
    run(source, out)
    out.unlink()
    run(source, out, options=Options(outtype="f16"))
    check_pair(out)
    assert len(os.listdir(tmp_path)) == 3


def test_replacing_by_force_that_fails_leaves_the_older_pair(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new.gguf"
    run(source, out)
    before = out.read_bytes(), receipt_of(out).read_bytes()

    def fail(self: Partial, *, overwrite: bool = False) -> None:
        raise GgferryError("no")

    monkeypatch.setattr(Partial, "give_name", fail)
    with pytest.raises(GgferryError):
        run(source, out, options=Options(outtype="f16"), force=True)
    assert before == (out.read_bytes(), receipt_of(out).read_bytes()) and len(os.listdir(tmp_path)) == 3


# --- a disk that is full ---


def test_a_disk_full_at_the_receipt_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(GgferryError, match="No space left"):
        run(source, tmp_path / "new.gguf")
    assert os.listdir(tmp_path) == ["old.bin"]


def test_file_systems_without_links_publish_and_refuse_alike(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(path: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    out = tmp_path / "new.gguf"
    run(source, out, options=Options(outtype="f16"))
    check_pair(out)
    out.write_text("somebody's")
    with pytest.raises(RefusedError, match="exists already"):
        run(source, out)
    assert len(os.listdir(tmp_path)) == 3


# --- kills between any two steps ---

KILLED = """
import os, signal, sys
from blake3 import blake3
from ggferry.converters.write.output_files import OutputSet
from ggferry.converters.proof.receipt import to_json
from ggferry.formats.gguf.header_layout import lay_out
from ggferry.formats.gguf.values import string
from ggferry.quant.codec import block_type

target, shards, force, byte, step = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "force", int(sys.argv[4]), sys.argv[5]
paths = [target] if shards == 1 else [f"{target[:-5]}-0000{n}-of-0000{shards}.gguf" for n in range(1, shards + 1)]
layout = lay_out({"general.architecture": string("llama")}, [("a", block_type("F32"), (5,))])
with OutputSet(paths, [layout] * shards, overwrite=force) as output:
    for file in output._files:
        file.pwrite("a", 0, bytes([byte]) * 20)
    output.finish()
    files = [
        {"name": os.path.basename(path), "bytes": layout.size, "blake3": blake3(open(partial, "rb").read()).hexdigest()}
        for path, partial in zip(paths, output.partials)
    ]
    left = int(step)
    def counted(real):
        def call(*arguments, **named):
            global left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*arguments, **named)
        return call
    for name in ("link", "unlink", "rename", "replace", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    output.publish(to_json({"ggferry": "0", "format": 1, "output": {"files": files}}).encode())
"""


SKIPPED = int(as_system.current() == "windows")
"""Of each pair of fsyncs one is of a folder, which Windows does not have."""


def publish(out: Path, shards: int, step: int, *, force: bool = False, byte: int = 1) -> int:
    arguments = [str(out), str(shards), "force" if force else "", str(byte), str(step)]
    return subprocess.run([sys.executable, "-c", KILLED, *arguments]).returncode


def first_of(out: Path, shards: int) -> Path:
    return out if shards == 1 else out.with_name(f"{out.stem}-00001-of-0000{shards}.gguf")


def last(shards: int) -> int:
    """Steps of a publication of new names: two fsyncs, the names, another fsync, and the partials' ends."""
    return 2 - SKIPPED + (shards + 1) + 1 - SKIPPED + (shards + 1)


REPLACING = 14 - 3 * SKIPPED
"""Steps in which a file and its receipt are replaced: two fsyncs, the record with two more, the older receipt aside, a
second name for the older file, the new names, a fsync, and the ends of what was aside, the partials and the record."""


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "step"), [(shards, step) for shards in (1, 3) for step in range(last(shards) + 1)])
def test_killed_at_any_step_of_publishing(shards: int, step: int, tmp_path: Path) -> None:
    """No receipt without all its files; what else is left are unfinished files of ours; the next run ends it."""
    out, first = tmp_path / "new.gguf", first_of(tmp_path / "new.gguf", shards)
    ended = publish(out, shards, step)
    assert ended == (0 if step == last(shards) else -signal.SIGKILL)
    outputs = sorted(tmp_path.glob("new*.gguf"))
    if receipt_of(first).exists():
        check_pair(first)
    recover(str(first))
    assert not any(map(is_partial, os.listdir(tmp_path))) or not outputs
    if outputs:
        check_pair(first)
        assert len(os.listdir(tmp_path)) == shards + 1
    else:
        assert publish(out, shards, last(shards)) == 0
        check_pair(first)
    assert len(os.listdir(tmp_path)) == shards + 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", range(REPLACING + 1))
def test_killed_while_it_replaces_by_force(step: int, tmp_path: Path) -> None:
    """There is always an output, old or new; never a receipt of the other."""
    out = tmp_path / "new.gguf"
    assert publish(out, 1, last(1), byte=1) == 0
    old = out.read_bytes()
    ended = publish(out, 1, step, force=True, byte=2)
    assert ended == (0 if step == REPLACING else -signal.SIGKILL)
    assert out.exists()
    if receipt_of(out).exists():
        check_pair(out)
    recover(str(out))
    check_pair(out)
    assert sorted(os.listdir(tmp_path)) == ["new.gguf", "new.gguf.receipt.json"]
    assert (out.read_bytes() == old) == (step < 7 - 2 * SKIPPED)


def test_a_killed_publication_is_not_finished_over_a_strangers_file(tmp_path: Path) -> None:
    out = tmp_path / "new.gguf"
    assert publish(out, 1, 3 - SKIPPED) == -signal.SIGKILL
    assert out.exists() and not receipt_of(out).exists()
    out.unlink()
    out.write_text("somebody's")
    layout = lay_out({"general.architecture": string("llama")}, [("a", block_type("F32"), (5,))])
    with pytest.raises(RefusedError, match="exists already"), OutputSet([str(out)], [layout]):
        pass
    assert os.listdir(tmp_path) == ["new.gguf"] and out.read_text() == "somebody's"


def test_the_same_command_ends_what_a_kill_left(source: Path, tmp_path: Path) -> None:
    """A receipt whose partial is all that is missing comes into its place; another command is refused as ever."""
    out = tmp_path / "new.gguf"
    run(source, out)
    receipt = receipt_of(out)
    text = receipt.read_bytes()
    receipt.rename(tmp_path / ".new.gguf.receipt.json.ggferry-0123456789abcdef.partial")
    with pytest.raises(RefusedError, match="exists already"):
        run(source, out, options=Options(outtype="f16"))
    assert receipt.read_bytes() == text and len(os.listdir(tmp_path)) == 3
    receipt.rename(tmp_path / ".new.gguf.receipt.json.ggferry-0123456789abcdef.partial")
    run(source, out)
    assert receipt.read_bytes() == text and len(os.listdir(tmp_path)) == 3
