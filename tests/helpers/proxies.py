"""nginx and Caddy as docs/examples sets them up, before a server of a test's own."""

from __future__ import annotations

import datetime
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from helpers.third_party_fixtures import ROOT

EXAMPLES = ROOT / "docs" / "examples"


@dataclass
class Proxy:
    """A running proxy; `url` is where it serves the server, `trust` knows its certificate."""

    url: str
    port: int
    trust: ssl.SSLContext
    cert: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that only this test trusts, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    kind = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, plain))
    return folder / "cert.pem", folder / "key.pem"


def nginx_text(port: int, server: int, cert: Path, key: Path) -> str:
    """docs/examples/nginx.conf with the test's ports and certificate; nothing else of it is changed."""
    text = (EXAMPLES / "nginx.conf").read_text()
    for before, after in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "server_name models.example.org": "server_name localhost",
        "127.0.0.1:8765": f"127.0.0.1:{server}",
        "/etc/ssl/models.example.org.pem": str(cert),
        "/etc/ssl/models.example.org.key": str(key),
    }.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def caddy_text(port: int, server: int, cert: Path, key: Path) -> str:
    """docs/examples/Caddyfile likewise; a certificate of our own stands for the one that Caddy would get."""
    text = (EXAMPLES / "Caddyfile").read_text()
    for before, after in {
        "\nmodels.example.org {\n": f"\nhttps://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {cert} {key}\n",
        "127.0.0.1:8765": f"127.0.0.1:{server}",
    }.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text


@contextmanager
def proxy(kind: str, folder: Path, server: int) -> Iterator[Proxy]:
    """`kind`, 'nginx' or 'caddy', before the server at a port."""
    program = shutil.which(kind) or shutil.which(f"/usr/sbin/{kind}")
    assert program, f"no {kind} on this machine (apt-get install {kind})"
    folder.mkdir()
    cert, key = certificate(folder)
    port = free_port()
    if kind == "nginx":
        (folder / "logs").mkdir()
        (folder / "conf").write_text(nginx_text(port, server, cert, key))
        places = f"daemon off; pid {folder}/pid; error_log {folder}/error.log;"
        command = [program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(folder / "conf"), "-g", places]
    else:
        (folder / "conf").write_text(caddy_text(port, server, cert, key))
        command = [program, "run", "--config", str(folder / "conf"), "--adapter", "caddyfile"]
    with (folder / "out").open("wb") as out:
        env = {
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "XDG_DATA_HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
        }
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        until = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < until, (folder / "out").read_text()
            time.sleep(0.05)
        yield Proxy(f"https://localhost:{port}/ggferry", port, ssl.create_default_context(cafile=str(cert)), cert)
    finally:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:  # it waits for connections that a test has left open
            process.kill()
            process.wait(20)
