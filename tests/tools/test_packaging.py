"""The recipes of other package managers, and the lock, say what pyproject.toml says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ggferry

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"torch": "pytorch", "blake3": "python-blake3"}
"""What conda-forge calls packages of other names; ml_dtypes and typing_extensions keep their underscores there."""


def conda_recipe() -> dict[str, Any]:
    """Return the recipe as conda-build reads it, whose templates are jinja's."""
    text = (ROOT / "packaging" / "conda-forge" / "meta.yaml").read_text()
    values = dict(re.findall(r'{% set (\w+) = "([^"]*)" %}', text))
    text = re.sub(r"{%.*%}\n", "", text).replace("{{ PYTHON }}", "python")
    found: dict[str, Any] = yaml.safe_load(re.sub(r"{{ (\w+) }}", lambda match: values[match[1]], text))
    return found


def test_the_recipe_of_conda_forge() -> None:
    recipe = conda_recipe()
    assert recipe["package"] == {"name": PROJECT["name"], "version": ggferry.__version__}
    assert recipe["source"]["url"].endswith(f"/ggferry-{ggferry.__version__}.tar.gz")
    required = [Requirement(text) for text in PROJECT["dependencies"]]
    expected = {CONDA_NAMES.get(each.name, each.name): each.specifier for each in required}
    stated = [Requirement(text) for text in recipe["requirements"]["run"]]
    assert {each.name: each.specifier for each in stated} == {
        **expected,
        "python": Requirement(f"python{PROJECT['requires-python']}").specifier,
    }
    assert recipe["build"]["entry_points"] == [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert recipe["about"]["license"] == PROJECT["license"] and recipe["about"]["summary"] == PROJECT["description"]
    assert set(recipe["requirements"]["host"]) >= {"python >=3.11", "setuptools >=77"}


def test_the_formula_of_homebrew() -> None:
    text = (ROOT / "packaging" / "homebrew" / "ggferry.rb").read_text()
    facts = dict(re.findall(r'^  (desc|url|license) "(.*)"$', text, re.MULTILINE))
    assert facts["desc"] == PROJECT["description"] and facts["license"] == PROJECT["license"]
    assert facts["url"].endswith(f"/ggferry-{ggferry.__version__}.tar.gz")
    assert {*re.findall(r'libexec/"bin/(\w+)"', text)} == {"python", *PROJECT["scripts"]}
    [python] = {*re.findall(r"python@?(3\.\d+)", text)}
    assert python in Requirement(f"python{PROJECT['requires-python']}").specifier


def test_the_lock_has_what_the_tests_require() -> None:
    """Every package of the extra `dev`, in a version that pyproject.toml allows, and nothing without a digest."""
    text = (ROOT / "requirements" / "dev.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==([^\s;]+)([^\n]*)\n((?: {4}--hash=.*\n)*)", text, re.MULTILINE)
    pinned: dict[str, list[str]] = {}
    for name, version, *_ in entries:  # some have another version for some Pythons
        pinned.setdefault(canonicalize_name(name), []).append(version)
    assert len(entries) > 150 and all("--hash=sha256:" in hashes for *_, hashes in entries)
    extras = PROJECT["optional-dependencies"]
    waiting, required = [*PROJECT["dependencies"], *extras["dev"]], []
    while waiting:
        each = Requirement(waiting.pop())
        if each.name == PROJECT["name"]:
            waiting += [text for extra in each.extras for text in extras[extra]]
        elif each.name != "torch":  # its CPU build is of another index
            required.append(each)
    assert len(required) > 50 and not [name for name in pinned if name.startswith(("torch", "nvidia", "cuda"))]
    assert [
        str(each)
        for each in required
        if not any(version in each.specifier for version in pinned[canonicalize_name(each.name)])
    ] == []
