"""What is kept while an archive is looked at: by content, bounded, and never elsewhere."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ggferry.converters.model_graph.open_checkpoint import header_layouts, open_checkpoint
from ggferry.formats.errors import GgferryError
from ggferry.formats.fields import Cursor
from ggferry.formats.ggml import prelude as ggml_prelude
from ggferry.formats.ggml.records import _careful, _plain, _record
from ggferry.support.content_cache import ITEM_BYTES, Recent, held, keeping
from helpers.builders import Llama


def test_the_oldest_goes_when_the_room_is_full_and_what_is_too_large_is_never_kept() -> None:
    recent: Recent[str] = Recent(100)
    with keeping():
        recent.put("a", "A", 40)
        recent.put("b", "B", 40)
        assert recent.get("a") == "A"  # used: now b is the oldest
        recent.put("c", "C", 40)
        recent.put("d", "D", 101)
        assert [recent.get(key) for key in "abcd"] == ["A", None, "C", None]
        recent.put("a", "A2", 90)  # in place of the old one, whose room is free again
        assert [recent.get(key) for key in "ac"] == ["A2", None]
        recent.put("e", "E", 10)
        assert [recent.get(key) for key in "ae"] == ["A2", "E"]


def test_nothing_is_kept_or_found_elsewhere() -> None:
    recent: Recent[str] = Recent(100)
    recent.put("a", "A", 1)
    with keeping():
        assert recent.get("a") is None
        recent.put("a", "A", 1)
        with keeping():
            assert recent.get("a") == "A"
        assert recent.get("a") == "A"
    assert recent.get("a") is None and not recent.takes(1)


def test_texts_are_reckoned_with_what_they_cost_beside_their_characters() -> None:
    assert held(["ab", "c"]) == 3 + 2 * ITEM_BYTES


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(Offset, count) of every run of strings that is parsed; nothing is known from before."""
    found: list[tuple[int, int]] = []
    strings = Cursor._strings

    def counted(self: Cursor, count: int, *rest: object) -> object:
        found.append((self.offset, count))
        return strings(self, count, *rest)

    monkeypatch.setattr(Cursor, "_strings", counted)
    monkeypatch.setattr(ggml_prelude, "_KNOWN", Recent(64 << 20))
    return found


def test_layouts_that_lead_to_one_vocabulary_read_it_once(tmp_path: Path, reads: list[tuple[int, int]]) -> None:
    path = Llama(container="ggml", version=None, kind="F16").write(tmp_path / "a.bin")  # falcon, gptneox and llama fit
    vocab = open_checkpoint(str(path)).vocab
    assert [count for offset, count in reads if offset == 32] == [300]
    assert vocab is not None and list(vocab.tokens) == Llama().vocabulary()


@pytest.mark.parametrize(("container", "version"), [("ggml", None), ("ggmf", 1), ("ggjt", 3)])
def test_a_known_vocabulary_is_the_one_that_would_be_read(
    container: str, version: int | None, tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    model = Llama(container=container, version=version, kind="F16")
    first, second = model.write(tmp_path / "a.bin"), model.write(tmp_path / "b.bin")
    alone = open_checkpoint(str(first)).vocab
    with keeping():
        open_checkpoint(str(first))
        before = len(reads)
        assert open_checkpoint(str(second)).vocab == alone
        known = len(reads) - before
    assert known < before / 2  # of the layouts that fail in the vocabulary, each fails again


@pytest.mark.parametrize("place", ["text", "score", "cut"])
def test_another_vocabulary_of_the_same_size_is_read(place: str, tmp_path: Path) -> None:
    path = Llama(kind="F16").write(tmp_path / "a.bin")
    data = bytearray(path.read_bytes())
    at = data.index(b"w17") - 4
    if place == "cut":
        data = data[:at]
    else:
        data[at + (6 if place == "text" else 7)] ^= 1
    other = tmp_path / "b.bin"
    other.write_bytes(data)

    def told(source: Path) -> object:
        try:
            return open_checkpoint(str(source)).vocab
        except GgferryError as error:
            return str(error)

    alone = told(other)
    with keeping():
        usual = told(path)
        assert told(other) == alone != usual


RECORD = struct.pack("<5i", 2, 5, 2, 64, 3) + b"a.b\xc3\xa9"


@pytest.mark.parametrize("alignment", [1, 32])
@pytest.mark.parametrize("at", range(len(RECORD)))
@pytest.mark.parametrize("value", [0, 1, 0x80, 0xFF])
def test_a_record_in_one_piece_is_the_one_read_field_by_field(
    alignment: int, at: int, value: int, tmp_path: Path
) -> None:
    from ggferry.formats.files.sources import LocalFile

    data = bytearray(b"???" + RECORD + bytes(-(3 + len(RECORD)) % alignment) + b"data")
    data[3 + at] = value
    path = tmp_path / "record"
    for cut in (len(data), len(data) - 4, len(data) - 5, 3 + at):
        path.write_bytes(data[:cut])
        codes = {2: "Q4_0"}
        with LocalFile(path) as source:
            head = source.read(3, source.size - 3)
            try:
                careful: object = _careful(source, 3, source.size, codes, alignment, 2)
            except GgferryError as error:
                careful = str(error)
                with pytest.raises(type(error)) as raised:
                    _record(source, 3, codes, alignment, 2)
                assert str(raised.value) == careful
                assert _plain(head, 3, codes, alignment, 2) is None
            else:
                assert _plain(head, 3, codes, alignment, 2) == careful


def test_a_vocabulary_of_one_token_that_may_be_short(tmp_path: Path) -> None:
    """The layout of LLaMA reads all tokens but the last first: here none."""
    path = Llama(container="ggml", version=None, n_vocab=1).write(tmp_path / "a.bin")
    vocab = open_checkpoint(str(path), arch="llama").vocab
    assert vocab is not None and len(vocab.tokens) == 1


def test_every_layout_still_says_what_it_said(tmp_path: Path) -> None:
    """A layout that is tried alone reads what it reads behind the others."""
    path = Llama(container="ggml", version=None).write(tmp_path / "a.bin")
    (llama,) = (layout for layout in header_layouts() if layout.name == "llama")
    from ggferry.formats.readers.ggml import read

    alone, behind = read(str(path), [llama]), read(str(path), header_layouts())
    assert alone.vocab == behind.vocab and alone.tensors == behind.tensors and alone.notes == behind.notes
