"""Profiles in an SQLite file beside the application.

    profile   one row per key: stage, kind of device, model content, pad, processor, cores, libraries (JSON);
              and what it was fed, its load time, its memory and when it was measured
    point     one row per measured (batch, cores) of a profile
    kernels   one row per key whose stage is a sequence of kernels: what was learned of them (`kernelrows`)
    cut       one row per key whose stage is empty: where a model was cut into kernels
    learned   one row per key: what was learned of a stage's run times, or (stage empty) of a model's load times
    slices    one row per key: a stage measured by batch, share and quota, and what it was fed

Rows of other keys stay, so that a store can travel between machines and versions. Each call opens the file and
closes it again: nothing is held between calls, so processes and threads may share a store. Reading makes no file;
a file that is read-only, as inside an image, can be read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import ProfileError
from ..workflow.graph import StageSpec
from .kernelrows import DAMAGED, KernelStatus, pack, unpack_cut, unpack_stats
from .kernels import Cut, KernelStats, sequence_model
from .machine import CPU, Identity
from .record import FRESH, STALE, Key, LearnedRow, Measured, Record, Status, judge
from .surface import SlicePoint
from .table import Entry

__all__ = ["DEFAULT_STORE", "ProfileStore"]

T = TypeVar("T")

DEFAULT_STORE = "profiles.sqlite"
#: PRAGMA application_id of our files, "DVTL" in ASCII, and PRAGMA user_version of the tables below.
APPLICATION_ID, SCHEMA = 0x4456544C, 4
#: The first version has profiles only, the second what was learned of kernels as well. They are read as they are, and
#: get the tables that they lack when they are next written.
OLDEST_SCHEMA = 1
_SINCE = {"kernels": 2, "cut": 2, "learned": 3, "slices": 4}
#: Rows of kernels at most, and their size together; the oldest go.
MOST_SEQUENCES, MOST_BYTES = 4000, 64 << 20
#: How long to wait for another process that is writing.
LOCK_TIMEOUT_S = 10.0

_TABLES = """
CREATE TABLE profile (
    id INTEGER PRIMARY KEY,
    stage TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, pad TEXT NOT NULL,
    cpu TEXT NOT NULL, cores INTEGER NOT NULL, libraries TEXT NOT NULL,
    items TEXT NOT NULL, load_ns INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, measured_at TEXT NOT NULL,
    UNIQUE (stage, kind, model, pad, cpu, cores, libraries)
);
CREATE TABLE point (
    profile INTEGER NOT NULL REFERENCES profile (id) ON DELETE CASCADE,
    batch INTEGER NOT NULL, cpus INTEGER NOT NULL,
    mean_ns INTEGER NOT NULL, p50_ns INTEGER NOT NULL, p95_ns INTEGER NOT NULL,
    spread REAL NOT NULL, error REAL NOT NULL, runs INTEGER NOT NULL, quick INTEGER NOT NULL,
    PRIMARY KEY (profile, batch, cpus)
) WITHOUT ROWID;
"""
_LEARNED = """
CREATE TABLE {table} (
    id INTEGER PRIMARY KEY,
    stage TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, pad TEXT NOT NULL,
    cpu TEXT NOT NULL, cores INTEGER NOT NULL, libraries TEXT NOT NULL,
    seen INTEGER NOT NULL, learned_at TEXT NOT NULL, value BLOB NOT NULL,
    UNIQUE (stage, kind, model, pad, cpu, cores, libraries)
);"""
_KEY_COLUMNS = ", ".join(Key.__struct_fields__)
_KEY_MATCH = " AND ".join(f"{name} = ?" for name in Key.__struct_fields__)
_POINT_COLUMNS = ", ".join(Measured.__struct_fields__)


class ProfileStore:
    """The profiles in one file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def create(self) -> None:
        """Make the file if there is none, and find out now rather than after measuring if it cannot be written."""
        with self._writing():
            pass

    def put(
        self, key: Key, points: Sequence[Measured], load_ns: int, *, memory_bytes: int = 0, items: str = ""
    ) -> None:
        """Keep points under `key` beside those already there; points that were fed other items go."""
        with self._writing() as db:
            row = db.execute(f"SELECT id, items FROM profile WHERE {_KEY_MATCH}", _key_row(key)).fetchone()
            if row is not None and row[1] != items:
                db.execute("DELETE FROM point WHERE profile = ?", (row[0],))
            db.execute(
                f"INSERT INTO profile ({_KEY_COLUMNS}, items, load_ns, memory_bytes, measured_at) "
                f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%SZ', 'now')) "
                f"ON CONFLICT ({_KEY_COLUMNS}) DO UPDATE SET items = excluded.items, load_ns = excluded.load_ns, "
                f"memory_bytes = excluded.memory_bytes, measured_at = excluded.measured_at",
                (*_key_row(key), items, load_ns, memory_bytes),
            )
            (ident,) = db.execute(f"SELECT id FROM profile WHERE {_KEY_MATCH}", _key_row(key)).fetchone()
            db.executemany(
                f"INSERT OR REPLACE INTO point (profile, {_POINT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(ident, *msgspec.structs.astuple(p)) for p in points],
            )

    def get(self, key: Key) -> Record | None:
        """What is kept under exactly this key."""
        return next(iter(self._records(_KEY_MATCH, _key_row(key))), None)

    def status(self, specs: Sequence[StageSpec], identity: Identity) -> list[Status]:
        """For each stage that can be measured: fresh, stale with the reasons, or missing."""
        return [status for status, _ in self._judged(specs, identity)]

    def entries(self, specs: Sequence[StageSpec], identity: Identity, *, allow_stale: bool = False) -> list[Entry]:
        """Rows for the scheduler; stale ones only on request. `status` says which were left out, and why."""
        states = (FRESH, STALE) if allow_stale else (FRESH,)
        return [r.entry() for status, r in self._judged(specs, identity) if r is not None and status.state in states]

    def put_kernels(
        self,
        stats: Iterable[KernelStats],
        identity: Identity,
        *,
        kind: str = CPU,
        cuts: Iterable[Cut] = (),
        instead: bool = False,
    ) -> None:
        """Add what was observed of kernels to what is kept, or put it there `instead` if it has all that.

        A model's first cut stays.
        """
        with self._writing() as db:
            for new in stats:
                key = Key.of_kernels(new.name, sequence_model(new.name), identity, kind)
                kept = None if instead else _readable(unpack_stats, _value(db, "kernels", key))
                if kept is not None and kept.name == new.name:
                    kept.merge(new)
                    new = kept
                _keep(db, "kernels", key, new.seen, pack(new))
            for cut in cuts:
                key = Key.of_kernels("", cut.model, identity, kind)
                before = _readable(unpack_cut, _value(db, "cut", key))
                _keep(db, "cut", key, 0, pack(cut if before is None else before.joined(cut)))
            for table in ("kernels", "cut"):
                _bound(db, table)

    def kernels(self, identity: Identity, *, kind: str = CPU) -> dict[str, KernelStats]:
        """What holds here and now, by sequence, the newest first. `kernel_status` says what was left out, and why."""
        found = self.kernel_status(identity, kind=kind)
        return {s.key.stage: s.stats for s in found if s.stats is not None and s.state == FRESH}

    def kernel_status(self, identity: Identity, *, kind: str = CPU) -> list[KernelStatus]:
        """For each sequence that was learned here or elsewhere: fresh, stale with the reasons, or damaged."""
        found = []
        for key, _, learned_at, value in self._learned("kernels", kind):
            reasons = key.changes_to(Key.of_kernels(key.stage, key.model, identity, kind))
            stats, state = None, STALE if reasons else FRESH
            try:
                stats = unpack_stats(value)
                if (stats.name, sequence_model(stats.name)) != (key.stage, key.model):
                    raise ProfileError(f"it is of {stats.name!r}")
            except ProfileError as error:
                stats, state, reasons = None, DAMAGED, (str(error),)
            found.append(KernelStatus(key, state, reasons, learned_at, stats))
        return found

    def cuts(self, identity: Identity, *, kind: str = CPU) -> dict[str, Cut]:
        """Where models were cut on this machine, by content hash."""
        found = {}
        for key, _, _, value in self._learned("cut", kind):
            cut = _readable(unpack_cut, value)
            if cut is not None and cut.model == key.model and key == Key.of_kernels("", cut.model, identity, kind):
                found[cut.model] = cut
        return found

    def forget_kernels(self) -> int:
        """Let go of all that was learned of kernels, here and elsewhere; how many sequences that were."""
        with self._writing() as db:
            db.execute("DELETE FROM cut")
            return db.execute("DELETE FROM kernels").rowcount

    def put_learned(self, rows: Iterable[LearnedRow]) -> None:
        """Keep what was learned of run and load times in place of what is kept under the same keys."""
        with self._writing() as db:
            for row in rows:
                _keep(db, "learned", row.key, row.seen, row.value)
            _bound(db, "learned")

    def learned(self) -> list[LearnedRow]:
        """What was learned of run and load times, here and elsewhere, the newest first."""
        return [LearnedRow(key, seen, value, at) for key, seen, at, value in self._learned("learned")]

    def forget_learned(self) -> int:
        """Let go of it; how many rows that were."""
        with self._writing() as db:
            return db.execute("DELETE FROM learned").rowcount

    def put_slices(self, key: Key, items: str, points: Sequence[SlicePoint]) -> None:
        """Keep what was measured of a stage in slices, in place of what is kept."""
        with self._writing() as db:
            _keep(db, "slices", key, len(points), msgspec.msgpack.encode((items, points)))

    def slices(self, key: Key, items: str) -> list[SlicePoint]:
        """What was measured of a stage in slices, on such items; what cannot be read was not."""
        with self._reading() as db:
            value = None if db is None or _schema(db) < _SINCE["slices"] else _value(db, "slices", key)
        try:
            fed, points = msgspec.msgpack.decode(value or b"", type=tuple[str, list[SlicePoint]])
        except msgspec.DecodeError:
            return []
        return points if fed == items else []

    def _learned(self, table: str, kind: str = "") -> list[tuple[Key, int, str, Any]]:
        """(Key, seen, learned at, value) of a kind of device, or of all."""
        with self._reading() as db:
            if db is None or _schema(db) < _SINCE[table]:
                return []
            rows = db.execute(
                f"SELECT seen, learned_at, value, {_KEY_COLUMNS} FROM {table} WHERE kind = ? OR ? = '' "
                f"ORDER BY learned_at DESC, id DESC LIMIT {MOST_SEQUENCES}",
                (kind, kind),
            ).fetchall()
            return [(_key_or_part(rest), seen, learned_at, value) for seen, learned_at, value, *rest in rows]

    def _judged(self, specs: Sequence[StageSpec], identity: Identity) -> Iterator[tuple[Status, Record | None]]:
        for spec in specs:
            if spec.kind == "model":  # lives in the catalogue; nothing to measure
                continue
            now = Key.of(spec, identity)
            yield judge(spec, identity, self._records("stage = ? AND kind = ?", (now.stage, now.kind)))

    def _records(self, where: str, values: Sequence[Any]) -> list[Record]:
        with self._reading() as db:
            if db is None:
                return []
            rows = db.execute(
                f"SELECT id, load_ns, memory_bytes, items, measured_at, {_KEY_COLUMNS} FROM profile WHERE {where} "
                f"ORDER BY measured_at DESC, id DESC",
                values,
            ).fetchall()
            return [
                Record(_key(rest), self._points(db, ident), load_ns, memory_bytes, items, measured_at)
                for ident, load_ns, memory_bytes, items, measured_at, *rest in rows
            ]

    @staticmethod
    def _points(db: sqlite3.Connection, ident: int) -> tuple[Measured, ...]:
        rows = db.execute(f"SELECT {_POINT_COLUMNS} FROM point WHERE profile = ? ORDER BY cpus, batch", (ident,))
        return tuple(Measured(*(*row[:-1], bool(row[-1]))) for row in rows)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """The file in one consistent state, or None if there is no profile in it yet."""
        if not self.path.exists():
            yield None
            return
        with self._explained(), closing(self._connect(self._read_options())) as db:
            db.execute("BEGIN")
            yield db if self._checked(db) else None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on our tables."""
        with self._explained(), closing(self._connect("mode=rwc")) as db:
            db.execute("BEGIN IMMEDIATE")
            tables = "" if self._checked(db) else _TABLES
            if _schema(db) < SCHEMA:
                tables += "".join(_LEARNED.format(table=t) for t, since in _SINCE.items() if _schema(db) < since)
                for statement in filter(str.strip, tables.split(";")):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {SCHEMA}")
            yield db
            db.execute("COMMIT")
            # Readers and a writer do not wait for each other then. Some file systems cannot, and a moment when
            # others have the file open will not do either; the store works without.
            with suppress(sqlite3.OperationalError):
                db.execute("PRAGMA journal_mode = WAL")

    def _connect(self, options: str) -> sqlite3.Connection:
        # isolation_level None: transactions begin and end where the code says so.
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{options}", uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None
        )

    def _read_options(self) -> str:
        """How to open for reading.

        To read in WAL mode SQLite writes beside the file, and the last to close it tidies up if it may write. Where
        that cannot be, the file is read as it is, unless a writer's log lies there.
        """
        if os.access(self.path, os.W_OK) and os.access(self.path.absolute().parent, os.W_OK):
            return "mode=rw"
        return "mode=ro" if self.path.with_name(self.path.name + "-wal").exists() else "mode=ro&immutable=1"

    def _checked(self, db: sqlite3.Connection) -> bool:
        """True for our tables, False for an empty file; anything else is refused."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        schema = _schema(db)
        if application == APPLICATION_ID:
            if not OLDEST_SCHEMA <= schema <= SCHEMA:
                age = "a newer" if schema > SCHEMA else "an older"
                raise ProfileError(
                    f"profile store {self.path} is of {age} dovetail (schema {schema}, this one reads "
                    f"{OLDEST_SCHEMA} to {SCHEMA}); profile into another file with --store, or use the version that "
                    f"wrote it"
                )
            return True
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if tables or application or schema:
            holds = f"it holds the table {tables[0]!r}" if tables else "it is marked as another program's"
            raise ProfileError(f"{self.path} is not a profile store: {holds}; choose another file with --store")
        return False

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, with cause and remedy."""
        try:
            yield
        except sqlite3.Error as error:
            raise ProfileError(f"profile store {self.path}: {self._cause(str(error))}") from error

    def _cause(self, said: str) -> str:
        folder = self.path.absolute().parent
        if not folder.is_dir():
            return f"the directory {folder} does not exist; create it, or choose another file with --store"
        if self.path.is_dir():
            return "that is a directory; name a file with --store"
        if "not a database" in said:
            return "that is not an SQLite file; choose another with --store"
        if "locked" in said or "busy" in said:
            return f"another process has kept it locked for {LOCK_TIMEOUT_S:.0f} s; try again when it is done"
        if "malformed" in said:
            return "the file is damaged; delete it and run dovetail profile again"
        if "readonly" in said or "unable to open" in said:
            return "it cannot be opened for writing; check its permissions, or choose another file with --store"
        return f"{said}; choose another file with --store"


def _schema(db: sqlite3.Connection) -> int:
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    return int(schema)


def _value(db: sqlite3.Connection, table: str, key: Key) -> Any:
    row = db.execute(f"SELECT value FROM {table} WHERE {_KEY_MATCH}", _key_row(key)).fetchone()
    return None if row is None else row[0]


def _keep(db: sqlite3.Connection, table: str, key: Key, seen: int, value: bytes) -> None:
    db.execute(
        f"INSERT INTO {table} ({_KEY_COLUMNS}, seen, learned_at, value) "
        f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), ?) "
        f"ON CONFLICT ({_KEY_COLUMNS}) DO UPDATE SET seen = excluded.seen, learned_at = excluded.learned_at, "
        f"value = excluded.value",
        (*_key_row(key), seen, value),
    )


def _bound(db: sqlite3.Connection, table: str) -> None:
    """Let the oldest rows go that are too many, or too large together."""
    order = "OVER (ORDER BY learned_at DESC, id DESC)"
    db.execute(
        f"DELETE FROM {table} WHERE id IN (SELECT id FROM (SELECT id, row_number() {order} AS number, "
        f"sum(length(value)) {order} AS nbytes FROM {table}) WHERE number > ? OR nbytes > ?)",
        (MOST_SEQUENCES, MOST_BYTES),
    )


def _readable(unpack: Callable[[bytes], T], value: Any) -> T | None:
    """What a row holds; None if there is none, or if it is damaged: then it is learned anew."""
    try:
        return None if value is None else unpack(value)
    except ProfileError:
        return None


def _key_row(key: Key) -> tuple[Any, ...]:
    *plain, libraries = msgspec.structs.astuple(key)
    return (*plain, msgspec.json.encode(libraries).decode())


def _key_or_part(row: Sequence[Any]) -> Key:
    """The key; without libraries if they cannot be read, which no key of today is."""
    try:
        return _key(row)
    except msgspec.DecodeError:
        return _key((*row[:-1], "[]"))


def _key(row: Sequence[Any]) -> Key:
    *plain, libraries = row
    return Key(*(*plain, msgspec.json.decode(libraries, type=tuple[tuple[str, str], ...])))
