"""A bit that flips on the way is found by the store's own checksum; where it has none the receipt says so."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import TransportError
from ggferry.quant.kernels import crc
from ggferry.service.storage import checksums, stores
from ggferry.service.storage.backends import s3, web
from ggferry.service.storage.checksums import DeclaredChecksum, Running
from ggferry.service.storage.mirror import Mirror
from ggferry.service.storage.ranged_file import HEADER_BLOCK, UNCHECKED, RangedFile
from helpers.archive_tools import command, plan, rows, write
from helpers.builders import Llama
from helpers.store_faults import S3Store, Web

pytestmark = pytest.mark.attack

DATA = os.urandom(5 * HEADER_BLOCK + 17)


def source(url: str, folder: Path, room: int = 1 << 30) -> RangedFile:
    return RangedFile(stores.stat(url), str(folder), block=HEADER_BLOCK, room=room, transport=True)


# --- arithmetic ---


@pytest.mark.parametrize(("name", "check"), [("CRC-32C", 0xE3069283), ("CRC-64/NVME", 0xAE8B14860A799888)])
def test_crcs_give_their_catalog_values(name: str, check: int) -> None:
    step = crc.steps(name)
    assert step(b"123456789", 0) == check
    assert step(DATA[100_000:], step(DATA[:100_000], 0)) == step(DATA, 0) != step(DATA[:-1], 0)


@pytest.mark.parametrize("algorithm", list(checksums.SIZES))
def test_every_checksum_sees_a_flipped_bit(algorithm: str) -> None:
    def of(data: bytes) -> Running:
        running = Running(DeclaredChecksum("a test", algorithm, value))
        for at in range(0, len(data), 1000):
            running.update(data[at : at + 1000])
        return running

    known = {"SHA-256": hashlib.sha256, "SHA-1": hashlib.sha1, "MD5": hashlib.md5}
    if algorithm in known:
        value = known[algorithm](DATA).digest()
    elif algorithm == "CRC-32":
        value = zlib.crc32(DATA).to_bytes(4, "big")
    else:
        value = crc.steps(algorithm)(DATA, 0).to_bytes(checksums.SIZES[algorithm], "big")
    assert of(DATA).agrees() and not of(DATA[:5] + bytes([DATA[5] ^ 1]) + DATA[6:]).agrees()


@pytest.mark.parametrize("part", [1000, len(DATA), len(DATA) - 1, 1 << 20])
def test_an_md5_of_parts(part: int) -> None:
    sums = [hashlib.md5(DATA[at : at + part]).digest() for at in range(0, len(DATA), part)]
    value = hashlib.md5(b"".join(sums)).digest()
    running = Running(DeclaredChecksum("a test", "MD5", value, part))
    for at in range(0, len(DATA), 777_777):
        running.update(DATA[at : at + 777_777])
    assert running.agrees()


def test_what_is_no_checksum_is_none() -> None:
    for text in ("", "x", "AAAA", "not hex" * 4):
        assert checksums.from_hex("a", "MD5", text) is None and checksums.from_base64("a", "SHA-256", text) is None


# --- S3 ---


def multipart(store: S3Store, sizes: list[int], key: str = "m.bin") -> None:
    begun = store.system.call_s3("create_multipart_upload", Bucket="old", Key=key)["UploadId"]
    parts, at = [], 0
    for number, size in enumerate(sizes, 1):
        answer = store.system.call_s3(
            "upload_part", Bucket="old", Key=key, UploadId=begun, PartNumber=number, Body=BIG[at : at + size]
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        at += size
    store.system.call_s3(
        "complete_multipart_upload", Bucket="old", Key=key, UploadId=begun, MultipartUpload={"Parts": parts}
    )


BIG = os.urandom(11 << 20)


@pytest.mark.parametrize("room", [1 << 30, -HEADER_BLOCK])
def test_a_flipped_bit_in_one_range_is_found(store: S3Store, tmp_path: Path, room: int) -> None:
    store.put("old/m.bin", DATA)
    with source("s3://old/m.bin", tmp_path, room) as file:
        assert file.read(0, len(DATA)) == DATA and file.transport().startswith("checked: MD5 stated by S3")
    with source("s3://old/m.bin", tmp_path, room) as file:
        store.rules.add("GET", "m.bin", "wrong", 3)
        for at in range(0, len(DATA), HEADER_BLOCK):
            file.read(at, min(HEADER_BLOCK, len(DATA) - at))
        with pytest.raises(TransportError, match="download checksum mismatch"):
            file.transport()


def test_ranges_that_come_out_of_order_are_summed_in_order(store: S3Store, tmp_path: Path) -> None:
    store.put("old/m.bin", DATA)
    for room in (1 << 30, -HEADER_BLOCK):
        with source("s3://old/m.bin", tmp_path, room) as file:
            file.read(4 * HEADER_BLOCK, 10)
            file.read(HEADER_BLOCK, HEADER_BLOCK)
            file.read(0, 10)
            assert file.transport().startswith("checked")


@pytest.mark.slow
def test_an_upload_in_parts_is_checked_by_its_parts(store: S3Store, tmp_path: Path) -> None:
    multipart(store, [5 << 20, 5 << 20, 1 << 20])
    found = stores.stat("s3://old/m.bin")
    assert found.version.endswith('-3"') and s3.declared_checksum(found) == DeclaredChecksum(
        "S3 (ETag)", "MD5", bytes.fromhex(found.version[1:33]), 5 << 20
    )
    with source("s3://old/m.bin", tmp_path) as file:
        assert file.transport() == "checked: MD5 of parts stated by S3 (ETag)"
    with source("s3://old/m.bin", tmp_path) as file:
        store.rules.add("GET", "m.bin", "wrong", 2)
        with pytest.raises(TransportError):
            file.transport()


def test_parts_of_uneven_size_are_not_guessed(store: S3Store, tmp_path: Path) -> None:
    multipart(store, [5 << 20, 6 << 20])
    assert s3.declared_checksum(stores.stat("s3://old/m.bin")) is None
    with source("s3://old/m.bin", tmp_path) as file:
        assert file.transport() == UNCHECKED


def test_an_etag_that_is_no_md5_is_not_taken_for_one(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("old/m.bin", DATA)
    found = stores.stat("s3://old/m.bin")
    real = s3._head
    for more, algorithm in (
        ({"ServerSideEncryption": "aws:kms", "ChecksumCRC32": ""}, None),
        ({"SSECustomerAlgorithm": "AES256", "ChecksumCRC32": ""}, None),
        ({"ServerSideEncryption": "aws:kms", "ChecksumCRC64NVME": "AAAAAAAAAAA="}, "CRC-64/NVME"),
        ({"ChecksumSHA256": base64.b64encode(bytes(32)).decode()}, "SHA-256"),
        ({"ChecksumSHA256": base64.b64encode(bytes(32)).decode() + "-2", "ChecksumType": "COMPOSITE"}, "MD5"),
        ({"ServerSideEncryption": "AES256"}, "MD5"),
    ):
        monkeypatch.setattr(s3, "_head", lambda url, more=more, **rest: {**real(url, **rest), **more})
        stated = s3.declared_checksum(found)
        assert (stated and stated.algorithm) == algorithm, more


def test_small_files_beside_a_model_are_checked_too(store: S3Store, tmp_path: Path) -> None:
    store.put("old/config.json", b'{"a": 1}')
    store.rules.add("GET", "config", "wrong")
    with pytest.raises(TransportError, match="checksum"):
        Mirror(str(tmp_path)).stage([stores.stat("s3://old/config.json")], transport=True)


# --- the web ---


@pytest.mark.parametrize(
    "header",
    [
        "x-amz-checksum-sha256",
        "X-Checksum-Sha256",
        "X-Checksum-Sha1",
        "X-Checksum-Md5",
        "Content-MD5",
        "Repr-Digest",
        "Digest",
        "x-goog-hash",
        "x-ms-blob-content-md5",
    ],
)
def test_headers_that_state_a_checksum_of_the_whole_file(site: Web, tmp_path: Path, header: str) -> None:
    (site.root / "m.bin").write_bytes(DATA)

    def value(data: bytes) -> str:
        sha256, sha1, md5 = (hashlib.new(name, data).digest() for name in ("sha256", "sha1", "md5"))
        plain = {"sha256": sha256.hex(), "sha1": sha1.hex(), "md5": md5.hex()}
        coded = {name: base64.b64encode(each).decode() for name, each in (("sha256", sha256), ("md5", md5))}
        return {
            "x-amz-checksum-sha256": coded["sha256"],
            "X-Checksum-Sha256": plain["sha256"],
            "X-Checksum-Sha1": plain["sha1"],
            "X-Checksum-Md5": plain["md5"],
            "Content-MD5": coded["md5"],
            "Repr-Digest": f"unixsum=:AA==:, sha-256=:{coded['sha256']}:",
            "Digest": f"md5={coded['md5']}",
            "x-goog-hash": f"crc32c=bad, md5={coded['md5']}",
            "x-ms-blob-content-md5": coded["md5"],
        }[header]

    site.checksum = {"/m.bin": {header: value(DATA)}}
    with source(f"{site.url}/m.bin", tmp_path) as file:
        assert file.transport().lower().endswith(header.lower())
    site.checksum = {"/m.bin": {header: value(DATA[1:])}}
    with source(f"{site.url}/m.bin", tmp_path) as file, pytest.raises(TransportError):
        file.transport()
    site.checksum = {"/m.bin": {header: "nonsense"}}
    assert web.declared_checksum(stores.stat(f"{site.url}/m.bin")) is None


# --- whole runs ---


def receipt_of(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("*.receipt.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_a_model_of_which_a_bit_flipped_is_fetched_again(store: S3Store, tmp_path: Path) -> None:
    store.put("old/m.bin", write(tmp_path / "m.bin", Llama()).read_bytes())
    path = tmp_path / "plan.jsonl"
    plan("s3://old", path, "--dest", tmp_path / "out", "--verify", "none", "-j", "1")
    store.rules.add("GET", "m.bin", "wrong", 1)
    command("apply", path, "-j", "1")
    (row,) = rows(f"{path}.ledger").values()
    assert row["state"] == "done" and row["attempts"] == 2
    (record,) = receipt_of(tmp_path / "out")["source"]["files"]
    from blake3 import blake3

    assert record["blake3"] == blake3((tmp_path / "m.bin").read_bytes()).hexdigest()
    assert record["transport"] == "checked: MD5 stated by S3 (ETag)"


@pytest.mark.slow
def test_a_receipt_says_what_nobody_checked(site: Web, tmp_path: Path) -> None:
    write(site.root / "m.bin", Llama())
    path = tmp_path / "plan.jsonl"
    plan(site.url, path, "--dest", tmp_path / "out", "--verify", "none", "-j", "1")
    command("apply", path, "-j", "1")
    assert receipt_of(tmp_path / "out")["source"]["files"][0]["transport"] == UNCHECKED
