"""Build the Containerfile and start what it makes: read only, without privileges, as its own user.

`python tools/check_container.py [--base IMAGE] [--image NAME] [BUILDAH OPTION …]`, as root, with buildah, util-linux.
The image is started in a mount namespace of its own with chroot, as its configuration says, since that works where
containers cannot be nested. A model is converted, the health check asked, and the server must end in order.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "fixtures" / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin"
PORT = 8765  # as the image's health check has it
STORE = ["--storage-driver", os.environ.get("STORAGE_DRIVER", "vfs")]


def buildah(*arguments: str | Path, store: list[str]) -> str:
    """Return what buildah prints."""
    return subprocess.run(
        ["buildah", *store, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


class Image:
    """An image, mounted; its commands run in it read only, with `data` as /data and `models` as /models."""

    def __init__(self, mount: str, config: dict[str, object], data: Path, models: Path) -> None:
        self.mount, self.config, self.data, self.models = mount, config, data, models
        self.user = str(config["User"])
        self.env = dict(each.split("=", 1) for each in config["Env"])  # type: ignore[attr-defined]

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """Start a command as the image's user: nothing but /data and /tmp can be written."""
        script = """
            set -e
            mount --make-rprivate /
            mount --bind "$0" "$0"; mkdir -p "$0/models"
            mount --bind "$1" "$0/data"; mount --bind "$2" "$0/models"
            mount -t tmpfs tmpfs "$0/tmp"; mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"
            mount -o remount,bind,ro "$0/models"; mount -o remount,bind,ro "$0"
            uid="${3%:*}" gid="${3#*:}"; shift 3
            exec chroot "$0" setpriv --reuid "$uid" --regid "$gid" --clear-groups --bounding-set=-all --no-new-privs \\
                -- "$@"
        """
        arguments = ["unshare", "--mount", "sh", "-c", script]
        arguments += [self.mount, str(self.data), str(self.models), self.user, *command]
        return subprocess.Popen(arguments, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *command: str) -> str:
        """Return what a command prints; it must end with 0."""
        process = self.popen(*command)
        out, err = process.communicate(timeout=120)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: {process.returncode}\n{err}")
        return out


def health_check() -> list[str]:
    """Return the command of the Containerfile's HEALTHCHECK."""
    text = (ROOT / "Containerfile").read_text().partition("\nHEALTHCHECK ")[2]
    found: list[str] = json.loads(text.partition("CMD ")[2].partition("\n")[0])
    return found


def check(image: Image) -> None:
    """Start the server as the image says, convert a model, and end it."""
    config, data = image.config, image.data
    entry, given = list(config["Entrypoint"]), list(config["Cmd"])  # type: ignore[call-overload]
    program = [f"/opt/ggferry/bin/{entry[0]}", *entry[1:]]
    token = image.run(*program, "serve", "--data", "/data", "token", "add", "check", "--scope", "admin").strip()
    server = image.popen(*program, *given, "--root", "/models")
    try:
        healthy = [str(each) for each in config["Healthcheck"]["Test"]][1:]  # type: ignore[index,call-overload]
        python = ["/opt/ggferry/bin/python", *healthy[1:]]
        until = time.monotonic() + 120
        while True:
            probe = image.popen(*python)
            probe.communicate(timeout=60)
            if probe.returncode == 0:
                break
            if server.poll() is not None or time.monotonic() > until:
                server.kill()
                raise SystemExit(f"the server does not answer: {server.communicate()[1]}")
            time.sleep(1)
        print("healthy")
        image.env |= {"GGFERRY_SERVER": f"http://127.0.0.1:{PORT}", "GGFERRY_TOKEN": token}
        print(image.run(*program, "remote", "submit", "server:/models/model.bin", "--wait").strip() or "converted")
    finally:
        server.terminate()
        out, err = server.communicate(timeout=90)
    lines = err.splitlines()
    if any("Read-only file system" in line or "Permission denied" in line for line in lines):
        raise SystemExit(f"something was to be written elsewhere:\n{err}")
    if not any(json.loads(line)["event"] == "end" for line in lines if line.startswith("{")):
        raise SystemExit(f"the server did not end in order:\n{out}{err}")
    made = list((data / "outputs").rglob("*.gguf"))
    uid, _, gid = image.user.partition(":")
    owners = {(os.stat(path).st_uid, os.stat(path).st_gid) for path in data.rglob("*")}
    if len(made) != 1 or owners != {(int(uid), int(gid))} or uid == "0":
        raise SystemExit(f"made {made}, owned by {owners}")
    print(f"made {made[0].name}, {made[0].stat().st_size:,} bytes, as user {image.user}")


def main() -> None:
    """Build, start, check, clean up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="another base image")
    parser.add_argument("--image", help="an image that was built before")
    parser.add_argument("--root", help="where buildah keeps images")
    known, more = parser.parse_known_args()
    store = [*STORE, *(["--root", known.root, "--runroot", f"{known.root}-run"] if known.root else [])]
    image = known.image or "localhost/ggferry-check"
    if known.image is None:
        base = ["--build-arg", f"BASE={known.base}"] if known.base else []
        buildah(
            "bud", "--isolation", "chroot", *base, *more, "-t", image, "-f", ROOT / "Containerfile", ROOT, store=store
        )
    container = buildah("from", "--pull-never", image, store=store)
    place = Path(tempfile.mkdtemp(prefix="ggferry-container-"))
    try:
        config = json.loads(buildah("inspect", "--type", "image", image, store=store))["Docker"]["config"]
        config.setdefault("Healthcheck", {"Test": ["CMD", *health_check()]})  # images of OCI's own format have none
        (place / "data").mkdir(mode=0o700)
        uid, _, gid = str(config["User"]).partition(":")
        os.chown(place / "data", int(uid), int(gid))
        (place / "models").mkdir()
        shutil.copy(MODEL, place / "models" / "model.bin")
        place.chmod(0o755)
        check(Image(buildah("mount", container, store=store), config, place / "data", place / "models"))
    finally:
        buildah("rm", container, store=store)
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main())
