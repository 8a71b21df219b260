"""The packages, found by their folders: setuptools cannot look for them under a name that is not a folder's."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = ("support", "quant", "formats", "converters", "service")

found = find_packages(
    str(Path(__file__).parent), include=[pattern for name in FOLDERS for pattern in (name, f"{name}.*")]
)
setup(packages=["ggferry", *(f"ggferry.{name}" for name in found)])
