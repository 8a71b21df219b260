"""Build the source archive and the wheel, and use the wheel as a stranger would: python tools/dist.py [--keep]

The wheel is made from the archive, and both are dated by the commit; a second build must have the same bytes. Beside
them stands an SBOM (CycloneDX) of what a base install has. The commands of README.md and docs/cli.md are then run from
the wheel, in an environment and a folder that have nothing else; those that need a server, a terminal or an extra are
named in ELSEWHERE. `--keep` leaves that folder; `--python PYTHON` makes the environment for another interpreter, and
`--by pipx` or `--by uv` (uv tool) installs as these do, into a home of its own.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
LEGACY = FIXTURES / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"
CHECKPOINT = FIXTURES / "hf" / "ckpt" / "llama"
COMMANDS = """\
convert old.bin --to gguf
ggferry convert old.bin -o new.gguf --outtype keep --verify full
ggferry convert CHECKPOINT_DIR -o q.gguf --outtype q8_0
ggferry convert CHECKPOINT_DIR -o 'model-{outtype}.gguf' --outtype f16,q8_0
ggferry convert new.gguf --to safetensors -o FOLDER
ggferry compare CHECKPOINT_DIR q.gguf --text FILE
ggferry quantize model-f16.gguf out.gguf q8_0
ggferry convert old.bin --dry-run
ggferry imatrix model-f16.gguf --text FILE -o m.gguf --chunk-size 32
ggferry inspect new.gguf --json
ggferry doctor old.bin new.gguf
ggferry verify old.bin new.gguf
ggferry hash new.gguf
ggferry diff new.gguf new.gguf
ggferry verify new.gguf
ggferry verify new.gguf --sample 2
ggferry edit new.gguf --set general.name=Tin --in-place
ggferry split model-f16.gguf --split-max-tensors 8
ggferry merge model-f16-00001-of-00003.gguf --outfile whole.gguf
ggferry forward new.gguf --tokens 1,30,17 --out logits.npy
ggferry tokenize new.gguf --text 'The cat'
ggferry publish new.gguf --to hf://me/repo --dry-run
ggferry architectures
ggferry types
ggferry plan archive -o plan.jsonl --dest out -j 1
ggferry apply plan.jsonl -j 1
ggferry ledger status plan.jsonl.ledger
"""
ELSEWHERE = {"sign": "the extra sign", "serve": "a server", "remote": "a server", "completion": "a terminal"}
"""Commands of the pages that are not run here, and what they need."""
PAGES = ("README.md", "docs/cli.md")
_FIRST_WORDS = re.compile(r"^(?:ggferry|convert)\s+(?:--install-)?(\w+)", re.MULTILINE)


def build(out: Path) -> tuple[Path, Path]:
    """Make the archive, and the wheel from it; return their paths."""
    when = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    epoch = subprocess.run(when, capture_output=True, text=True, check=True).stdout.strip()
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], env=environment, check=True)
    (archive,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    date(archive, int(epoch))
    return archive, wheel


def date(archive: Path, epoch: int) -> None:
    """Give everything in an archive one date and nobody's name: setuptools dates a wheel by SOURCE_DATE_EPOCH only."""
    with tarfile.open(archive) as old:
        members = [(member, old.extractfile(member) if member.isfile() else None) for member in old.getmembers()]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
            for member, data in sorted(members, key=lambda pair: pair[0].name):
                plain = tarfile.TarInfo(member.name)
                plain.type, plain.mode, plain.size, plain.mtime = member.type, member.mode, member.size, epoch
                new.addfile(plain, data)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def unused() -> set[str]:
    """Return the commands that the pages show and that are neither run here nor excused."""
    blocks = re.findall(r"```sh\n(.*?)```", "".join((ROOT / page).read_text() for page in PAGES), re.DOTALL)
    shown = {line for block in blocks for line in _FIRST_WORDS.findall(block)}
    run = set(_FIRST_WORDS.findall(COMMANDS))
    return {word for word in shown if word not in run | {*ELSEWHERE, "old"}}


def install(wheel: Path, folder: Path, python: str = sys.executable, by: str = "pip") -> tuple[Path, Path]:
    """Install the wheel alone; return the folder of its commands, and the interpreter of its environment."""
    home, programs = folder / "home", folder / "programs"
    if by == "pip":
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
        subprocess.run(pip, check=True, cwd=folder)
        return folder / "bin", folder / "bin" / "python"
    home.mkdir(parents=True)
    places = {"PIPX_HOME": folder / "tools", "UV_TOOL_DIR": folder / "tools"}
    places |= {"PIPX_BIN_DIR": programs, "UV_TOOL_BIN_DIR": programs, "HOME": home}
    command = {
        "pipx": [sys.executable, "-m", "pipx", "install", "--python", python, str(wheel)],
        "uv": [sys.executable, "-m", "uv", "tool", "install", "--python", python, str(wheel)],
    }[by]
    subprocess.run(command, check=True, env=os.environ | {name: str(place) for name, place in places.items()})
    (environment,) = (path.parent for path in (folder / "tools").rglob("bin/python") if "ggferry" in path.parts)
    return programs, environment / "python"


def list_parts(python: Path, out: Path) -> None:
    """Write what an environment has as an SBOM (CycloneDX, JSON) that its schema accepts."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml")]
    command += ["--output-reproducible", "--validate", "--of", "JSON", "-o", str(out), str(python)]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads(out.read_text())
    version = re.search(r'__version__ = "(.*)"', (ROOT / "__init__.py").read_text())
    document["metadata"]["component"]["version"] = version[1] if version else ""  # pyproject.toml takes it from there
    out.write_text(json.dumps(document, indent=1) + "\n")


def use(programs: Path, python: Path, folder: Path) -> None:
    """Run the commands, and the example in Python, in a folder with their material."""
    (folder / "archive").mkdir(parents=True)
    for target in ("old.bin", "archive/old.bin"):
        shutil.copy(LEGACY, folder / target)
    shutil.copytree(CHECKPOINT, folder / "CHECKPOINT_DIR")
    (folder / "FILE").write_text("the quick brown fox jumps over the lazy dog, and the dog lets it. " * 40)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "GGFERRY"))}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    for line in COMMANDS.splitlines():
        command = shlex.split(line)
        command[0] = str(programs / command[0])
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        print(f"{'ran' if not done.returncode else f'exit code {done.returncode}':14} {line}", flush=True)
        if done.returncode:
            raise SystemExit(done.stderr)
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (folder / "new.gguf").unlink()
    (folder / "new.gguf.receipt.json").unlink()
    subprocess.run([str(python), "-c", example], cwd=folder, env=environment, check=True)
    print(f"{'ran':14} the example in Python")


def main() -> None:
    """Build, install, use; print the digests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave the folder in which the wheel was used")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to install for")
    parser.add_argument("--by", choices=("pip", "pipx", "uv"), default="pip", help="the program that installs")
    arguments = parser.parse_args()
    if lacking := unused():
        raise SystemExit(
            f"README.md or docs/cli.md shows commands that nothing here runs: {', '.join(sorted(lacking))}"
        )
    files = build(ROOT / "dist")
    place = Path(tempfile.mkdtemp(prefix="ggferry-dist-"))
    try:
        for file, again in zip(files, build(place / "again"), strict=True):
            if file.read_bytes() != again.read_bytes():
                raise SystemExit(f"{file.name}: a second build has other bytes")
        programs, python = install(files[1], place / "environment", arguments.python, arguments.by)
        list_parts(python, files[1].with_suffix(".cdx.json"))
        use(programs, python, place / "folder")
    finally:
        if not arguments.keep:
            shutil.rmtree(place, ignore_errors=True)
    for file in files:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")


if __name__ == "__main__":
    main()
