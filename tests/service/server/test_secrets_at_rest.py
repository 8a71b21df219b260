"""Webhook secrets are encrypted in the ledger: those of before, too, and by no key that the ledger has."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from standardwebhooks import Webhook

from ggferry.formats.errors import CorruptError
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.secret_box import SEALED, SecretBox, open_box
from ggferry.service.server.work import notices
from helpers import old_ledgers
from helpers.archive_tools import command
from helpers.server import serving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
URL = "https://hooks.example/x"


def kept_secrets(place: str) -> dict[str, str]:
    with closing(Store(place)) as store:
        return {row["id"]: row["secret"] for row in store.all(sa.select(store.t.hooks))}


def enter_plain(place: str, key: str = "0123456789ab") -> str:
    """A webhook as a server of before entered it."""
    with closing(Store(place)) as store:
        store.put(store.t.hooks, id=key, url=URL, secret=SECRET, created=1.0, seen=0)
    return key


def bytes_of(data: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(data.iterdir()) if path.name.startswith("ledger"))


def added(data: Path, *options: str | Path, **env: str) -> dict[str, str]:
    done = command("serve", "--data", data, *options, "webhook", "add", URL, "--json", **env)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_a_new_secret_is_nowhere_in_the_ledger(tmp_path: Path) -> None:
    made = added(tmp_path)
    assert made["secret"].startswith("whsec_") and made["secret"].encode() not in bytes_of(tmp_path)
    (kept,) = kept_secrets(str(tmp_path / "ledger")).values()
    assert kept.startswith(SEALED)
    key = tmp_path / "secret-key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # the library by itself, with the key of the file
    plain = Fernet(key.read_text().strip()).decrypt(kept.removeprefix(SEALED)).decode()
    assert plain == f"{made['id']}\n{made['secret']}"
    before = key.read_bytes()
    added(tmp_path)
    assert key.read_bytes() == before


@pytest.mark.slow
def test_secrets_of_before_are_encrypted_at_the_start(tmp_path: Path) -> None:
    """Of a data folder of version 0.1. Nothing of the plain secret stays in SQLite's file or its log."""
    place = str(old_ledgers.sqlite_at(tmp_path))
    key = enter_plain(place)
    assert SECRET.encode() in bytes_of(tmp_path / "data"), "the test shows nothing"
    with serving(tmp_path / "data"):
        assert SECRET.encode() not in bytes_of(tmp_path / "data")
    kept = kept_secrets(place)[key]
    assert open_box(Settings(str(tmp_path / "data"))).open(key, kept) == SECRET
    signature = notices.sign(SECRET, "msg_1", 1, "{}")
    assert signature.startswith("v1,") and Webhook(SECRET) is not None
    with serving(tmp_path / "data"):
        assert kept_secrets(place)[key] == kept, "what is encrypted is left as it is"


@pytest.mark.slow
def test_secrets_of_before_in_postgresql(postgres: str, tmp_path: Path) -> None:
    place = old_ledgers.postgres_at(postgres, tmp_path)
    key = enter_plain(place)
    with serving(tmp_path / "one", "--ledger", postgres):
        kept = kept_secrets(place)[key]
        assert open_box(Settings(str(tmp_path / "one"))).open(key, kept) == SECRET
    # another server of this ledger needs the same key
    done = command("serve", "--data", tmp_path / "two", "--ledger", postgres, "--port", "0", code=2)
    assert "encrypted by another key" in done.stderr and SECRET not in done.stderr
    with serving(tmp_path / "two", "--ledger", postgres, "--secret-key-file", tmp_path / "one" / "secret-key"):
        assert kept_secrets(place)[key] == kept


@pytest.mark.slow
def test_the_key_is_given_from_elsewhere(tmp_path: Path) -> None:
    key = Fernet.generate_key().decode()
    made = added(tmp_path / "data", GGFERRY_SECRET_KEY=key)
    assert not (tmp_path / "data" / "secret-key").exists()
    done = command("serve", "--data", tmp_path / "data", "--port", "0", code=2)
    assert f"serve webhook remove {made['id']}" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "key").write_text(f"{key}\n")
    with serving(tmp_path / "data", "--secret-key-file", tmp_path / "key"):
        pass
    for text in ("", "no key", "A" * 44):
        (tmp_path / "bad").write_text(text)
        done = command("serve", "--data", tmp_path / "data", "--secret-key-file", tmp_path / "bad", code=2)
        assert "not a key for secrets" in done.stderr or "another key" in done.stderr
    absent = command("serve", "--data", tmp_path / "data", "--secret-key-file", tmp_path / "absent", code=2)
    assert "cannot be read" in absent.stderr
    # without the key a webhook can still be removed, and the server starts
    command("serve", "--data", tmp_path / "data", "webhook", "remove", made["id"])
    with serving(tmp_path / "data"):
        pass


@pytest.mark.slow
def test_a_key_is_replaced(tmp_path: Path) -> None:
    made = added(tmp_path)
    file, new = tmp_path / "secret-key", Fernet.generate_key().decode()
    before = kept_secrets(str(tmp_path / "ledger"))[made["id"]]
    file.write_text(f"{new}\n{file.read_text()}")
    with serving(tmp_path):
        pass
    file.write_text(f"{new}\n")
    with serving(tmp_path):
        kept = kept_secrets(str(tmp_path / "ledger"))[made["id"]]
    assert kept != before
    assert Fernet(new).decrypt(kept.removeprefix(SEALED)).decode() == f"{made['id']}\n{made['secret']}"


def test_a_secret_of_another_row_is_not_taken() -> None:
    box = SecretBox([Fernet.generate_key().decode()], "here")
    with pytest.raises(CorruptError, match="another's"):
        box.open("second", box.seal("first", SECRET))


@pytest.mark.slow
def test_a_backup_has_the_key_only_where_it_is_asked_for(tmp_path: Path) -> None:
    made = added(tmp_path / "data")
    command("serve", "--data", tmp_path / "data", "backup", tmp_path / "plain.tar")
    command("serve", "--data", tmp_path / "data", "backup", tmp_path / "whole.tar", "--with-key")
    key = (tmp_path / "data" / "secret-key").read_bytes()
    with tarfile.open(tmp_path / "plain.tar") as archive:
        assert "secret-key" not in archive.getnames()
    assert key.strip() not in (tmp_path / "plain.tar").read_bytes()
    command("serve", "--data", tmp_path / "one", "restore", tmp_path / "plain.tar")
    done = command("serve", "--data", tmp_path / "one", "--port", "0", code=2)
    assert "encrypted by another key" in done.stderr
    (tmp_path / "one" / "secret-key").write_bytes(key)
    os.chmod(tmp_path / "one" / "secret-key", 0o644)
    with serving(tmp_path / "one"):
        assert stat.S_IMODE((tmp_path / "one" / "secret-key").stat().st_mode) == 0o600
    command("serve", "--data", tmp_path / "two", "restore", tmp_path / "whole.tar")
    assert stat.S_IMODE((tmp_path / "two" / "secret-key").stat().st_mode) == 0o600
    with serving(tmp_path / "two"):
        kept = kept_secrets(str(tmp_path / "two" / "ledger"))[made["id"]]
        assert open_box(Settings(str(tmp_path / "two"))).open(made["id"], kept) == made["secret"]
