"""The packages, found by their folders: setuptools cannot look for them under a name that is not a folder's."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = ("support", "quant", "formats", "converters", "service")

found = find_packages(
    str(Path(__file__).parent), include=[pattern for name in FOLDERS for pattern in (name, f"{name}.*")]
)
pages = sorted(str(path.relative_to(Path(__file__).parent)) for path in Path(__file__).parent.glob("docs/man/*.1"))
setup(packages=["ggferry", *(f"ggferry.{name}" for name in found)], data_files=[("share/man/man1", pages)])
