"""What every page must be, in every state: well-formed, escaped, without anything inline, every control named."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

import pytest

from ggferry.converters.conversion.summary import OutputSummary
from ggferry.service.server.pages import charts, render, wording
from ggferry.service.server.pages.model_page import Agreement, TensorRow
from ggferry.service.server.pages.views import ArchiveAddress, ModelRow
from helpers.page_samples import NASTY, model, pages, row, tensors

VOID = {"meta", "link", "input", "wbr", "br", "hr", "img", "option"}
MADE = pages()


class Page(HTMLParser):
    """A page's elements with their attributes, its text, and whether its tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.faults: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.faults += [f"not closed: {tag}" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> within {self._open[-3:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]


@cache
def parsed(name: str) -> Page:
    return Page(MADE[name])


every = pytest.mark.parametrize("name", MADE)


@every
def test_a_page_is_well_formed(name: str) -> None:
    page = parsed(name)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert not page.faults
    assert len(ids) == len(set(ids))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1 and len(page.all("main")) == 1


@every
def test_nothing_is_inline_or_from_elsewhere(name: str) -> None:
    """The policy that the server sends would block it."""
    for tag, attrs in parsed(name).elements:
        assert "style" not in attrs and not [key for key in attrs if key.startswith("on")], (tag, attrs)
        for key in ("href", "src", "action"):
            assert re.match(r"/(?!/)|#|$", attrs.get(key, "")), (tag, attrs)
    assert all(attrs.get("src") for attrs in parsed(name).all("script"))
    assert not parsed(name).all("style")


@every
def test_every_control_has_a_name(name: str) -> None:
    page = parsed(name)
    labeled = {attrs["for"] for attrs in page.all("label")}
    for tag in ("input", "select", "textarea"):
        for attrs in page.all(tag):
            is_named = attrs.get("id") in labeled or attrs.get("aria-label")
            assert attrs.get("type") == "hidden" or is_named, attrs
    assert all(attrs.get("aria-label") for tag in ("progress", "nav") for attrs in page.all(tag))
    assert all(attrs.get("aria-label") for attrs in page.all("svg") if attrs.get("role") == "img")


@every
def test_ids_are_unique(name: str) -> None:
    ids = [attrs["id"] for _, attrs in parsed(name).elements if "id" in attrs]
    assert len(set(ids)) == len(ids), sorted(each for each in ids if ids.count(each) > 1)


def test_no_badge_is_hidden() -> None:
    """The link that skips to the content is out of sight; a badge of the verdict 'skip' has the same class."""
    styles = render.assets()["page.css"][1].decode()
    assert not re.search(r"(^|[\s,}])\.skip\b", styles)


@every
def test_forms_that_change_something_bring_the_token(name: str) -> None:
    forms = re.findall(r'<form[^>]*method="post".*?</form>', MADE[name], re.DOTALL)
    assert all('name="csrf" value="token"' in form or 'action="/login"' in form for form in forms)


@pytest.mark.parametrize("name", ["archive", "tree", "model", "done", "browse", "add"])
def test_text_of_others_is_shown_and_never_obeyed(name: str) -> None:
    page, shown = parsed(name), NASTY.rpartition("/")[2].replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert shown in page.text
    assert "<script>alert" not in MADE[name]
    assert not {"\x1b", "\u202e"} & set(MADE[name])
    assert "49" not in shown and "{{7*7}}" in page.text


def test_the_state_of_a_model_decides_what_its_page_offers() -> None:
    done, failed, running = parsed("model").text, parsed("model-failed").text, parsed("model-running").text
    assert "Download" in done and "Proof" in done and "Try again" not in done
    assert "Try again" in failed and "Download" not in failed
    assert "What to do: “Tokenizer”, or “No vocab”" in failed and "--tokenizer DIR" not in failed
    controls = {attrs.get("name") for attrs in parsed("model-failed").all("input")}
    assert {"tokenizer", "no_vocab"} <= controls and "Plan again with this" in failed
    assert "Cancel" in running and "21 s left" in running and "202.2 MiB/s" in running
    assert [
        attrs for _, attrs in parsed("model-running").elements if attrs.get("data-load", "").endswith("?part=facts")
    ]


def test_who_may_only_read_is_offered_nothing_else() -> None:
    from dataclasses import replace

    from helpers.page_samples import SHELL, plan

    reader = replace(SHELL, may_submit=False)
    assert "This token may only read" in Page(render.page("plan", reader, plan=plan())).text
    failed = Page(render.page("model", reader, model=replace(model("failed"), can_retry=True))).text
    assert "Try again" not in failed


def test_an_archive_without_models_says_what_to_do() -> None:
    assert "No models yet" in parsed("archive-empty").text and "Nothing matches" in parsed("archive-nothing").text
    assert not parsed("archive-empty").all("table")


def test_a_filter_is_kept_from_page_to_page() -> None:
    query = ArchiveAddress("llama 7b", ("done",), "GGJT v1", sort="before", descending=True, page=3)
    assert query.url == "/?state=done&q=llama+7b&container=GGJT+v1&sort=-before&page=3"
    assert query.sorted_by("before").url == "/?state=done&q=llama+7b&container=GGJT+v1&sort=before"
    assert query.only("done").states == () and query.only("failed").states == ("done", "failed")
    assert query.only("failed").page == 1 and ArchiveAddress().url == "/"


def test_what_a_page_loads_is_served() -> None:
    wanted = {match for text in MADE.values() for match in re.findall(r"/static/([\w.]+)\?v=", text)}
    assert wanted <= set(render.assets())
    assert not [
        name for name, (_, content) in render.assets().items() if re.search(rb"https?://(?!www\.w3\.org)", content)
    ]


# --- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "words"), [(1.0, "100%"), (0.99999, "99.9%"), (0.5, "50.0%"), (0.0, "0.0%"), (None, "–")]
)
def test_a_share_is_never_rounded_up_to_all(share: float | None, words: str) -> None:
    assert wording.percent(share) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (None, "–"), (float("inf"), "–")]
)
def test_durations(seconds: float | None, words: str) -> None:
    assert wording.duration(seconds) == words


def test_a_model_in_one_sentence() -> None:
    told = wording.sentence("llama", "GGJT v1", "30 March – 12 May 2023", "Q4_0_V1 ×16, F32 ×5", 557_696, 357_024)
    assert told == (
        "A LLaMA model of 558 thousand weights in a GGJT v1 file of 348.7 KiB, stored as Q4_0_V1 ×16 and F32 ×5; "
        "such files were written 30 March – 12 May 2023."
    )
    assert wording.sentence("", "", "", "", 0, 3) == "A file of 3 B."
    assert wording.sentence("", "GGUF v3", "", "", 0, 1).startswith("A GGUF v3 file of 1 B")
    assert wording.sentence("rwkv", "GGMF v100", "", "", 0, 1).startswith("An RWKV-4 model in a GGMF v100 file")


# --- charts --------------------------------------------------------------------------------------------------------


def test_every_tensor_has_a_mark_and_many_are_shown_by_their_worst() -> None:
    few, many = charts.errors(tensors(100)), charts.errors(tensors(5000))
    assert len(re.findall("<circle", few)) == 100
    assert len(re.findall("<circle", many)) <= charts.POINTS and "5,000 tensors" in many
    worst = max(tensors(5000), key=lambda each: each.relative_rms or 0)
    assert f"{worst.name}: rounded" in many
    assert charts.errors([TensorRow("a", ("a",), (1,), "F32")]) == ""


def test_larger_errors_stand_higher() -> None:
    def heights(*errors: float) -> list[float]:
        rows = [TensorRow("a", ("a",), (1,), "F32", grade="rounded", relative_rms=error) for error in errors]
        return [float(y) for y in re.findall(r'cy="([\d.]+)"', charts.errors(rows))]

    assert heights(0.0, 1e-12) == [charts.HEIGHT - charts.BOTTOM] * 2
    rising = heights(0.0, 1e-6, 1e-3, 1.0, 10.0, float("inf"))
    assert rising == sorted(rising, reverse=True) and rising[-1] == charts.TOP
    assert heights(float("nan")) == [charts.HEIGHT - charts.BOTTOM]


def test_the_bars_of_a_model_add_up() -> None:
    before, after = charts.shares(tensors(290))
    assert sum(part.bytes for part in before) == sum(each.bytes_in or 0 for each in tensors(290))
    assert sum(part.tensors for part in after) == 290
    colors = {part.name: part.color for part in before}
    assert all(colors.get(part.name, part.color) == part.color for part in after)
    widths = [
        float(x)
        for x in re.findall(r'x="[\d.]+%" width="([\d.]+)%"', charts.bar(after, sum(p.bytes for p in after), "x"))
    ]
    assert abs(sum(widths) - 100) < 1


def test_the_limit_stands_where_the_agreement_would_end() -> None:
    strip = charts.agreement(Agreement("llama.cpp", "logits", 1e-3, 1e-1))
    mark, limit = (
        float(re.search(pattern, strip)[1]) for pattern in (r'cx="([\d.]+)%"', r'class="limit" x="([\d.]+)%"')
    )  # type: ignore[index]
    assert mark < limit and "limit 0.1" in strip and 'class="over"' not in strip
    assert 'class="over"' in charts.agreement(Agreement("x", "logits", 0.2, 0.1))
    assert 'class="limit"' not in charts.agreement(Agreement("x", "logits", 0.2))


def test_a_ladder_without_a_difference_stands_at_the_bottom() -> None:
    """And the more a type differs, the higher it stands; the larger it is, the further to the right."""
    made = [("f16", 16.0, 0.0), ("q8_0", 8.5, 2e-4), ("q4_0", 4.5, 0.045)]
    text = str(charts.ladder([OutputSummary(name, "", 1, bits, None, None, kl) for name, bits, kl in made]))
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)%" cy="([\d.]+)"', text)]
    assert sorted(places) == [places[2], places[1], places[0]]
    assert places[0][1] > places[1][1] > places[2][1]
    assert text.count(">0</text>") == 1


def test_a_histogram_is_as_tall_as_its_counts() -> None:
    found = {"name": NASTY, "elements": 7, "smallest": -1.0, "largest": 1.0, "counts": [4, 0, 1, 2]}
    text = str(charts.histogram(found))
    heights = [float(each) for each in re.findall(r'<rect[^>]* height="([\d.]+)"', text)]
    assert heights[0] == pytest.approx(2 * heights[2], abs=0.2) and heights[1] == 0
    assert "<script" not in text


def test_a_name_is_broken_only_after_punctuation() -> None:
    assert wording.broken("blk.0.attn_v.weight") == "blk.<wbr>0.<wbr>attn_<wbr>v.<wbr>weight"
    assert wording.broken("<b>\x1b/a") == "&lt;b&gt;\\x1b/<wbr>a"


def test_a_row_without_a_folder() -> None:
    assert (ModelRow("1", "old.bin", "done").name, ModelRow("1", "old.bin", "done").folder) == ("old.bin", "")
    assert row(2).beside == "/?view=tree&under=%2Farchive%2F2023%2Fteam-2"
