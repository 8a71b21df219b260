"""The examples of the pages: each command can be typed; on files in hand it is run, and shows what the page shows."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ggferry.service.cli.app import COMMANDS
from helpers.page_examples import (
    INLINE,
    NAMES,
    PAGES,
    Example,
    equal_to_shown,
    examples,
    line_of,
    prepare,
    run,
)
from helpers.third_party_fixtures import ROOT

WITH_EXAMPLES = [page for page in PAGES if examples(page)]
SLOW = (
    "README.md",
    *(f"docs/{name}.md" for name in ("archives", "cli", "compare", "export", "formats/whisper-cpp")),
    *(f"docs/{name}.md" for name in ("ollama", "quality", "traces")),
)
MEASURED = ("docs/compare.md",)
"""Pages of figures that another library's last digits change."""

ELSEWHERE = {
    r"^(?!ggferry publish .*--dry-run).*(hf://|https://|s3://)|^pip install": "needs the network",
    r"^make |^(podman|docker) ": "installs, builds or runs for minutes: .ci/run and tools/check_container.py do",
    r"^(llama-server|mlx_lm)": "another program's command",
    r"^ggferry (serve|remote)|^curl|^api=|^export": "needs a server: tests/service/client/test_service_pages.py",
    r"gemma-3-4b-it": "needs a tokenizer with tokens for pictures: tests/converters/projectors convert such models",
    r"speech\.wav": "needs an encoder for whole recordings: tests/converters/forward/test_senses.py",
    r"model\.nemo": "needs an archive of NeMo: tests/converters/test_megatron_names.py makes some",
}
"""Commands that are not run here: a pattern, and the reason. Each is still held against the command line."""


def reason(example: Example) -> str | None:
    """Return why an example is not run here; None if it is."""
    return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, line_of(example))), None)


def test_every_reason_is_needed() -> None:
    lines = [line_of(example) for page in WITH_EXAMPLES for example in examples(page)]
    assert [each for each in ELSEWHERE if not any(re.search(each, line) for line in lines)] == []
    assert set(NAMES) | set(SLOW) <= set(WITH_EXAMPLES)


def test_no_example_is_overlooked() -> None:
    """A command stands in a block of its kind: what is shown begins with `$`, and is called console."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert not re.search(r"^ {4}(ggferry|convert) ", re.sub(r"```.*?```", "", text, flags=re.S), re.M), page
        assert not re.search(r"^```(?!console)\w*\n\$ ", text, re.M), page


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in WITH_EXAMPLES]
)
def test_the_page_shows_what_happens(
    page: str, tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [example for example in examples(page) if not reason(example)]
    monkeypatch.chdir(tmp_path)
    prepare(page, tmp_path, fixtures)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / ".home"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    for example in mine:
        done = run(line_of(example))
        if example.shown is None:
            assert done.code == 0, (example.command, done)
        else:
            assert equal_to_shown(done.err + done.out, example.shown, page not in MEASURED), (
                example.command,
                done.err + done.out,
            )


# --- what can be typed ---


def command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words begin with, and the words that follow it."""
    module = next((module for module, names in COMMANDS.items() if words[0] in names), None)
    assert module, f"no command {words[0]}"
    app = typer.Typer()
    app.add_typer(import_module(f"ggferry.service.cli.{module}").commands)
    app.command("other")(lambda: None)
    found: Any = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    rest, first = words[1:], []
    while rest and hasattr(found, "commands"):
        taken = next((n for n, word in enumerate(rest) if word in found.commands), None)
        if taken is None:
            break
        options = {flag for each in found.params for flag in each.opts}
        first += [word for word in rest[:taken] if word not in options]
        found, rest = found.commands[rest[taken]], rest[taken + 1 :]
    return found, [*first, *rest]


@pytest.mark.parametrize("page", PAGES)
def test_options_of_a_page_exist(page: str) -> None:
    text = re.sub(r"<!-- generated.*?(<!-- end|\Z)", "", (ROOT / page).read_text(), flags=re.S)
    inline = [line for line in INLINE.findall(text) if "[OPTIONS]" not in line]
    lines = [example.command for example in examples(page)] + inline
    for line in lines:
        first = re.search(r"(?:^|\s)(?:ggferry|(convert))\s+(.*)", line.replace("\\|", "|"), re.S)
        if not first or re.match(r"(?!ggferry|convert|GGFERRY)", line) or not re.match(r"[a-z]", first[2]):
            continue
        words = shlex.split(re.sub(r"[\[\]]", " ", first[2].replace("'", '"')), comments=True)
        words = ["convert", *words] if first[1] else words
        if words[0].startswith("-"):
            continue
        found, rest = command(words)
        options = {flag for each in found.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert given <= options, (line, given - options)


def test_python_of_the_page_of_recipes_runs() -> None:
    """The other pages' Python is run by tests/service/library and tests/service/client."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "recipes.md").read_text(), re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/recipes.md", "exec"), names)
    line, shown = next(line.split("  # ") for line in block.splitlines() if "# Choice(" in line)
    assert repr(eval(line, names)) == shown


def test_every_block_is_of_a_kind_that_a_test_reads() -> None:
    """Commands and their output here; recipes, tables, Python and the server's pages in tests of their own."""
    kinds = {"console", "sh", "recipe"}
    own = {"docs/python.md": {"python"}, "README.md": {"python", ""}, "docs/recipes.md": {"python"}}
    own |= {"docs/service.md": {"python"}, "docs/tables.md": {"pycon"}, "docs/doctor.md": {"yaml"}}
    own |= {"docs/api.md": {"{eval-rst}"}}
    for page in PAGES:
        found = set(re.findall(r"^```(\S*)\n.*?^```$", (ROOT / page).read_text(), re.S | re.M))
        assert found <= kinds | own.get(page, set()), page


def test_what_the_page_of_doctor_gives_to_other_programs_is_there() -> None:
    hook, action = (
        yaml.safe_load(text)
        for text in re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "doctor.md").read_text(), re.S | re.M)
    )
    (named,) = hook["repos"][0]["hooks"]
    assert named["id"] in {each["id"] for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert set(action[0]["with"]) <= set(yaml.safe_load((ROOT / "action.yml").read_text())["inputs"])
