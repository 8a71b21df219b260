"""Render the documents as a site: python tools/docs_site.py [FOLDER], into build/docs/html by default.

Sphinx gets a copy of the pages that are under version control, and nothing else. Every warning is an error: a page
that no index lists, a link or an anchor that leads nowhere, a docstring that cannot be rendered.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import generated_docs

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "docs"
PAGES = ("*.md", "LICENSE", "docs", "examples", "benchmarks/README.md", "fixtures/README.md")


def stage(folder: Path) -> None:
    """Copy the pages, their pictures and the files they link into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PAGES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.count("/") and name.split("/")[0] not in ("docs", "examples", "benchmarks", "fixtures"):
            continue  # '*.md' matches in folders, too
        if name.startswith("fixtures/") and name != "fixtures/README.md":
            continue
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def main() -> None:
    """Compare the generated parts, copy, render."""
    if late := generated_docs.late():
        raise SystemExit(f"out of date, run tools/generated_docs.py: {', '.join(late)}")
    stage(PLACE / "source")
    out = sys.argv[1] if sys.argv[1:] else str(PLACE / "html")
    sphinx = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-E"]
    done = subprocess.run(
        [*sphinx, "-c", str(ROOT / "docs"), "-d", str(PLACE / "doctrees"), str(PLACE / "source"), out]
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    print(f"rendered into {out}: open docs/README.html there")


if __name__ == "__main__":
    main()
