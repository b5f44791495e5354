"""A directory in which fronts of one machine share workers: who they are, what they serve, where workers listen.

Rules of this file
- The first front starts the workers of devices, and ends with them. Others join, up to 15, and come and go.
- `app.json` says what the first front serves, and how. Whoever joins must serve the same.
- `ingress-K` belongs to front K while that lives: it holds a lock on the file, which the system takes back however
  its process ends. The process id is in it for people.
- All fronts count time from the same moment, and no number of a worker is ever given twice. So a first front that is
  started again while others have stayed goes on where the last one ended, and they join its workers.
- The directory belongs to this user alone: whoever can write to it could pose as a worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...errors import DeclarationError
from ...profile.table import Entry
from ...state import WorkerSpec
from ...workflow.graph import StageSpec
from ..links.wire import MOST_INGRESSES

__all__ = ["FirstFront", "JoinedFront", "Serves"]

#: Raised whenever fronts of two versions could misunderstand each other or each other's workers.
VERSION = 1
_APP = "app.json"
#: Longest path of a socket that Linux takes, without the byte that ends it.
_LONGEST_PATH = 107


class Serves(msgspec.Struct, frozen=True):
    """What a first front serves, and what it has decided for all who join."""

    stages: tuple[StageSpec, ...]
    #: As `--device` names it, and the workers that it starts for it.
    device: str
    workers: tuple[WorkerSpec, ...]
    #: Times of emulated devices.
    entries: tuple[Entry, ...]
    #: Cores of a device, and the numbers of threads for which models are loaded.
    cores: int
    cpus: tuple[int, ...]
    #: Whether the budgets of devices hold for all that their processes have.
    strict: bool
    arena_bytes: int


class _File(msgspec.Struct):
    """`app.json`."""

    version: int
    serves: Serves
    #: Monotonic clock at time 0 of all fronts.
    origin_ns: int
    #: The last number that a worker was given.
    last_worker: int = 0


class _Version(msgspec.Struct):
    version: int = -1


class _Place:
    """A front's file in the directory."""

    def __init__(self, directory: Path, ingress: int, lock: int) -> None:
        self.directory = directory
        self.ingress = ingress
        self._lock = lock

    @property
    def closed(self) -> bool:
        """Whether the place was given up."""
        return self._lock < 0

    def close(self) -> None:
        """Give the place up."""
        if not self.closed:
            _unlink(self.directory / f"ingress-{self.ingress}")
            os.close(self._lock)
            self._lock = -1


class FirstFront(_Place):
    """The front that starts the workers."""

    def __init__(self, directory: Path, serves: Serves) -> None:
        _make_private(directory)
        lock = _take(directory, 0)
        if lock is None:
            pid = _holder(directory, 0)
            raise DeclarationError(
                f"{directory}: process {pid} shares its workers there already; join it with --join"
            )
        super().__init__(directory, 0, lock)
        try:
            self._file = self._begin(serves)
            self._write()
            for left_over in directory.glob("*.sock"):
                _unlink(left_over)
        except BaseException:
            super().close()
            raise

    @property
    def origin_ns(self) -> int:
        """Monotonic clock at time 0 of all fronts."""
        return self._file.origin_ns

    def _begin(self, serves: Serves) -> _File:
        """A new beginning, unless fronts have stayed that a predecessor had."""
        stayed = self._stayed()
        if not stayed:
            return _File(VERSION, serves, time.monotonic_ns())
        before = _read(self.directory)
        if differences := _differences(before.serves.stages, serves.stages):
            raise DeclarationError(
                f"{self.directory}: processes {', '.join(map(str, stayed))} have joined it for another application "
                f"({'; '.join(differences)}); stop them, or share at another directory"
            )
        return _File(VERSION, serves, before.origin_ns, before.last_worker)

    def _stayed(self) -> list[int]:
        return [pid for k in range(1, MOST_INGRESSES + 1) if (pid := _holder(self.directory, k))]

    def _write(self) -> None:
        path = self.directory / _APP
        making = path.with_suffix(".making")
        making.touch(mode=0o600)
        making.write_bytes(msgspec.json.encode(self._file))
        making.rename(path)

    def number(self) -> int:
        """A number for a worker that no other has had."""
        self._file.last_worker += 1
        self._write()
        return self._file.last_worker

    def socket_of(self, name: str, number: int) -> str:
        """Where a worker listens for those who join."""
        path = str(self.directory.absolute() / f"{name}-{number}.sock")
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise DeclarationError(
                f"{self.directory}: {path} would be longer than the {_LONGEST_PATH} bytes that a socket's path may "
                f"have; share at a directory with a shorter path"
            )
        return path

    def ended(self, name: str, number: int) -> None:
        """A worker is gone."""
        _unlink(Path(self.socket_of(name, number)))

    def close(self) -> None:
        """Leave nothing behind but what those need who have stayed."""
        if not self.closed:
            for path in self.directory.glob("*.sock"):
                _unlink(path)
            if not self._stayed():
                _unlink(self.directory / _APP)
        super().close()


class JoinedFront(_Place):
    """A front that shares the workers of another."""

    def __init__(self, directory: Path, stages: Sequence[StageSpec]) -> None:
        if not directory.is_dir():
            raise DeclarationError(f"--join {directory}: there is no such directory; see --share-workers")
        _check_private(directory)
        file = _read(directory)
        if not _holder(directory, 0):
            raise DeclarationError(
                f"--join {directory}: the server that shared its workers there is gone; start it again with "
                f"--share-workers {directory}"
            )
        if differences := _differences(file.serves.stages, stages):
            raise DeclarationError(
                f"--join {directory}: its workers serve another application: {'; '.join(differences)}"
            )
        self.serves = file.serves
        self.origin_ns = file.origin_ns
        for ingress in range(1, MOST_INGRESSES + 1):
            lock = _take(directory, ingress)
            if lock is not None:
                super().__init__(directory, ingress, lock)
                return
        raise DeclarationError(f"--join {directory}: {MOST_INGRESSES} fronts have joined already, and no more can")

    def sockets(self) -> list[Path]:
        """Where workers listen, or have listened."""
        return sorted(self.directory.glob("*.sock"))


def _make_private(directory: Path) -> None:
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        _check_private(directory)
    except OSError as error:
        raise DeclarationError(f"--share-workers {directory}: {error.strerror or error}") from error


def _check_private(directory: Path) -> None:
    found = directory.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise DeclarationError(f"{directory} is not a directory")
    if found.st_uid != os.geteuid():
        raise DeclarationError(f"{directory} belongs to another user, who could pose as a worker there")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DeclarationError(
            f"others may write to {directory}, and could pose as a worker there; chmod go-w {directory}, or name a "
            f"directory that does not exist yet"
        )


def _read(directory: Path) -> _File:
    path = directory / _APP
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DeclarationError(f"{directory}: nobody shares workers there: {error.strerror or error}") from error
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            raise DeclarationError(
                f"{path} is of version {version}, this Dovetail writes version {VERSION}: all fronts that share "
                f"workers must be of the same Dovetail"
            )
        return msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} cannot be read: {error}") from error


def _differences(first: Sequence[StageSpec], ours: Sequence[StageSpec]) -> list[str]:
    """In what the stages of two fronts differ, as far as workers can tell."""
    theirs, mine = {s.name: s for s in first}, {s.name: s for s in ours}
    found = []
    if missing := sorted(mine.keys() - theirs.keys()):
        found.append(f"it has no stage {', '.join(missing)}")
    if more := sorted(theirs.keys() - mine.keys()):
        found.append(f"it has {', '.join(more)}, which this one has not")
    for name in sorted(theirs.keys() & mine.keys()):
        one, other = theirs[name], mine[name]
        if (one.kind, one.model) != (other.kind, other.model):
            what = "function" if other.on_host else "model"
            found.append(f"stage {name!r} has another {what} there ({one.model[:12]}, here {other.model[:12]})")
        elif (one.outputs, one.pad, one.like) != (other.outputs, other.pad, other.like):
            found.append(f"stage {name!r} is declared with other outputs, pad or like there")
    return found


def _take(directory: Path, ingress: int) -> int | None:
    """The lock on a front's file; None if a living process has it."""
    path = directory / f"ingress-{ingress}"
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise DeclarationError(f"{path}: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), path.stat()):
                    os.ftruncate(lock, 0)
                    os.write(lock, f"{os.getpid()}\n".encode())
                    return lock
        except BlockingIOError:
            os.close(lock)
            return None
        os.close(lock)  # its owner has removed it in between


def _holder(directory: Path, ingress: int) -> int:
    """The process that has a front's file; 0 if none lives."""
    try:
        pid = int((directory / f"ingress-{ingress}").read_text() or 0)
        if pid:
            os.kill(pid, 0)
        return pid
    except (OSError, ValueError):
        return 0


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
