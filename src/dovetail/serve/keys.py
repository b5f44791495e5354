"""API keys: a file of digests, and who may ask for what.

Rules of this file
- A key is 256 random bits. Only its SHA-256 is kept: a digest of so many random bits cannot be turned back by trying,
  so it needs neither salt nor a slow hash. The key itself is shown once, when it is made.
- A key names its entry (`dvt_ID_SECRET`), so one entry is looked up and compared in constant time.
- The file belongs to its owner alone (mode 0600), and is replaced as a whole: nobody reads half of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..errors import DeclarationError

__all__ = ["NAME", "SCOPES", "Key", "Keys", "add", "digest_of", "read", "revoke"]

#: What keys and tenants may be called: they go into labels and logs.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
#: What a key is good for: inference and what clients must know for it, what the server measures, or changing it.
SCOPES = ("infer", "observe", "admin")
_KEY = re.compile(r"dvt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_VERSION = 1


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of the file: who it is, and what it may ask for."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}$")]
    #: SHA-256 of the whole key.
    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    tenant: Annotated[str, msgspec.Meta(pattern=NAME)]
    #: Workflows that it may use; empty is all.
    workflows: tuple[str, ...] = ()
    #: Highest class that it may claim; 0: that of the workflow.
    highest_class: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0
    scopes: tuple[Literal["infer", "observe", "admin"], ...] = ("infer",)
    #: Seconds since 1970 after which it is good for nothing; 0 is never.
    expires_unix_s: Annotated[int, msgspec.Meta(ge=0)] = 0
    created_unix_s: int = 0
    note: Annotated[str, msgspec.Meta(max_length=256)] = ""

    def may_use(self, workflow: str) -> bool:
        """Whether it is good for a workflow."""
        return "infer" in self.scopes and (not self.workflows or workflow in self.workflows)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int = _VERSION
    keys: list[Key] = []


class Keys:
    """The keys of one file, as they were read."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.id: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def find(self, text: str, now_unix_s: float) -> Key | None:
        """The entry of a key that somebody shows; None if it is not good, or not any more."""
        match = _KEY.fullmatch(text)
        if match is None:
            return None
        key = self._keys.get(match[1])
        shown = digest_of(text)
        if key is None or not hmac.compare_digest(shown, key.digest):
            return None
        return None if key.expires_unix_s and key.expires_unix_s <= now_unix_s else key

    def next_expiry(self, now_unix_s: float) -> float:
        """When the next of them ends; infinity if none does."""
        ends = [key.expires_unix_s for key in self if key.expires_unix_s > now_unix_s]
        return min(ends, default=float("inf"))


def digest_of(text: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> Keys:
    """The keys of a file. Others than its owner must not be able to write it."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except FileNotFoundError:
        raise DeclarationError(f"there is no key file {path}; 'dovetail keys add --file {path}' makes one") from None
    except OSError as error:
        raise DeclarationError(f"cannot read the key file {path}: {error.strerror}") from None
    if mode & 0o022:
        raise DeclarationError(f"the key file {path} can be written by others; chmod 600 {path}")
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} is not a key file: {error}") from None
    if found.version != _VERSION:
        raise DeclarationError(f"{path} is a key file of version {found.version}; this is for version {_VERSION}")
    return Keys(found.keys)


def add(path: Path, key: Key) -> tuple[Key, str]:
    """Put a new key into a file, which is made if need be: its entry, and the key to be handed over.

    `id` and `digest` of what is given are made here.
    """
    with _exclusive(path):
        known = list(read(path)) if path.exists() else []
        ident = secrets.token_hex(6)
        text = f"dvt_{ident}_{secrets.token_urlsafe(32)}"
        entry = msgspec.structs.replace(key, id=ident, digest=digest_of(text))
        _write(path, [*known, entry])
    return entry, text


def revoke(path: Path, ident: str) -> Key:
    """Take a key out of a file."""
    with _exclusive(path):
        known = list(read(path))
        gone = next((key for key in known if key.id == ident), None)
        if gone is None:
            raise DeclarationError(f"{path} has no key {ident!r}; 'dovetail keys list --file {path}' shows them")
        _write(path, [key for key in known if key is not gone])
    return gone


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """One writer at a time."""
    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DeclarationError(f"cannot write beside the key file {path}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: Path, keys: list[Key]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_File(keys=keys)), indent=2) + b"\n"
    temporary = ""
    try:
        fd, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # mode 0600
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise DeclarationError(f"cannot write the key file {path}: {error.strerror}") from None
