"""Results kept in a file of the user's, so that runs can be compared over time and between machines.

One SQLite file with three tables: ``machines`` (each described once), ``runs`` and ``results``. A result
is kept as its record, and judged anew when it is read: a verdict follows the rules of today.
"""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from qkv.bench.machine import Machine
from qkv.errors import QKVError
from qkv.lab.board import Board, Row
from qkv.lab.catalogue import EXPERIMENTS
from qkv.lab.result import Result

FILE_NAME = "lab.sqlite3"
VERSION = 1
"""Of the tables."""

TABLES = """
CREATE TABLE machines (id INTEGER PRIMARY KEY, description TEXT NOT NULL UNIQUE);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, began TEXT NOT NULL, pace TEXT NOT NULL, seed INTEGER NOT NULL,
    seconds REAL NOT NULL, machine INTEGER NOT NULL REFERENCES machines (id)
);
CREATE TABLE results (
    run INTEGER NOT NULL REFERENCES runs (id), experiment TEXT NOT NULL, verdict TEXT NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (run, experiment)
);
"""


class StoreError(QKVError):
    """Results that cannot be kept or read, or a run that is not there."""


@dataclass(frozen=True)
class Run:
    """One run of the lab, as the history lists it.

    Parameters
    ----------
    number : int
    began : str
        In ISO 8601.
    pace : str
    seed : int
    seconds : float
    machine : Machine
    verdicts : mapping of str to str
        By the letters of the experiments, as they were judged then.
    """

    number: int
    began: str
    pace: str
    seed: int
    seconds: float
    machine: Machine
    verdicts: Mapping[str, str]


@dataclass(frozen=True)
class Store:
    """The file that results are kept in.

    Parameters
    ----------
    path : Path
        Is made with its folder when the first board is kept.
    """

    path: Path

    def save(self, board: Board) -> int:
        """Keep a board, all of it or nothing, and return the number of its run."""
        assert board.rows, "a run has at least one experiment"
        results = [row.result for row in board.rows]
        first = results[0]
        with self._open() as database:
            description = json.dumps(asdict(first.machine), sort_keys=True)
            database.execute("INSERT OR IGNORE INTO machines (description) VALUES (?)", [description])
            query = "SELECT id FROM machines WHERE description = ?"
            (machine,) = database.execute(query, [description]).fetchone()
            seconds = sum(result.seconds for result in results)
            run = database.execute(
                "INSERT INTO runs (began, pace, seed, seconds, machine) VALUES (?, ?, ?, ?, ?)",
                [first.began, first.pace, first.seed, seconds, machine],
            ).lastrowid
            assert run is not None
            database.executemany(
                "INSERT INTO results VALUES (?, ?, ?, ?)",
                [
                    (run, row.experiment.id, row.ruling.verdict.value, _as_text(row.result))
                    for row in board.rows
                ],
            )
            return run

    def runs(self) -> tuple[Run, ...]:
        """Return every run, the first one first."""
        if not self.path.exists():
            return ()
        with self._open() as database:
            verdicts: dict[int, dict[str, str]] = {}
            for run, experiment, verdict in database.execute("SELECT run, experiment, verdict FROM results"):
                verdicts.setdefault(run, {})[experiment] = verdict
            rows = database.execute(
                "SELECT runs.id, began, pace, seed, seconds, description "
                "FROM runs JOIN machines ON machines.id = runs.machine ORDER BY runs.id"
            )
            return tuple(
                Run(number, began, pace, seed, seconds, Machine(**json.loads(description)), verdicts[number])
                for number, began, pace, seed, seconds, description in rows
            )

    def board(self, number: int) -> Board:
        """Return the board of a run, judged anew.

        Raises
        ------
        StoreError
            If there is no such run, or nothing in it is an experiment any more.
        """
        results = {result.experiment: result for result in self._results(number)}
        rows = tuple(Row.of(one, results[one.id]) for one in EXPERIMENTS if one.id in results)
        if not rows:
            known = ", ".join(str(run.number) for run in self.runs()) or "none yet"
            raise StoreError(f"there is no run {number} in {self.path}; runs: {known}")
        return Board(rows)

    def _results(self, number: int) -> list[Result]:
        if not self.path.exists():
            return []
        query = (
            "SELECT record, description FROM results JOIN runs ON runs.id = run "
            "JOIN machines ON machines.id = machine WHERE run = ?"
        )
        with self._open() as database:
            found = database.execute(query, [number]).fetchall()
        machines = {description: json.loads(description) for _, description in found}
        return [Result.from_record(json.loads(text) | {"machine": machines[one]}) for text, one in found]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file, with its tables, for one transaction."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path)
            try:
                with database:
                    self._prepare(database)
                    yield database
            finally:
                database.close()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.path} cannot be used ({error}); name another folder with QKV_DATA_DIR"
            ) from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise StoreError(
                f"{self.path} is of version {version}, expected {VERSION}: another qkv wrote it; move it away"
            )


def user_store() -> Store:
    """Return the store in the user's data folder.

    Raises
    ------
    StoreError
        If the user has no home.
    """
    return Store(data_root(os.environ, sys.platform) / FILE_NAME)


def data_root(environment: Mapping[str, str], system: str) -> Path:
    """Return the platform's place for data of this program.

    Parameters
    ----------
    environment : mapping of str to str
        ``QKV_DATA_DIR`` names another place.
    system : str
        As `sys.platform` names it.

    Raises
    ------
    StoreError
        If the user has no home.

    Examples
    --------
    >>> data_root({"XDG_DATA_HOME": "/srv/data"}, "linux").as_posix()
    '/srv/data/qkv'
    """
    if environment.get("QKV_DATA_DIR"):
        return Path(environment["QKV_DATA_DIR"]).absolute()
    try:
        if system == "win32":
            return Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "qkv"
        if system == "darwin":
            return Path.home() / "Library" / "Application Support" / "qkv"
        given = Path(environment.get("XDG_DATA_HOME", ""))
        return (given if given.is_absolute() else Path.home() / ".local" / "share") / "qkv"
    except RuntimeError:
        raise StoreError("the user has no home folder to keep results in; set QKV_DATA_DIR") from None


def _as_text(result: Result) -> str:
    """Return a result as JSON, without its machine, which is kept once."""
    record = result.record()
    del record["machine"]
    return json.dumps(record, ensure_ascii=False)
