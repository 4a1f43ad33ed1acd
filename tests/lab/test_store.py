"""What was kept comes back, whole or not at all, and says where and when it was measured."""

import sqlite3
from pathlib import Path

import pytest

from lab_boards import board_of, failing_board
from qkv.lab import EXPERIMENTS, Number, Verdict
from qkv.lab.board import Board
from qkv.lab.changes import changes
from qkv.lab.store import Store, StoreError, data_root


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "data" / "lab.sqlite3")


def test_a_board_comes_back_as_it_was(store):
    board = board_of(*EXPERIMENTS)
    assert store.save(board) == 1
    assert store.board(1) == board


def test_runs_are_listed_in_order_with_their_verdicts_and_machine(store):
    first, second = EXPERIMENTS[0], EXPERIMENTS[1]
    for board in (board_of(second), failing_board("another")[1], board_of(second)):
        store.save(board)
    runs = store.runs()
    assert [one.number for one in runs] == [1, 2, 3]
    assert [dict(one.verdicts) for one in runs] == [
        {second.id: "HOLDS"},
        {first.id: "HOLDS ONLY IF"},
        {second.id: "HOLDS"},
    ]
    assert [one.machine.cpu == "another" for one in runs] == [False, True, False]
    with sqlite3.connect(store.path) as database:
        assert database.execute("SELECT count(*) FROM machines").fetchone() == (2,)


def test_an_empty_store_has_no_runs_and_makes_no_file(store):
    assert store.runs() == ()
    assert not store.path.exists()
    with pytest.raises(StoreError, match=r"there is no run 7 in .*; runs: none yet"):
        store.board(7)
    assert not store.path.exists()


def test_a_board_is_kept_whole_or_not_at_all(store):
    board = board_of(EXPERIMENTS[0])
    twice = Board((board.rows[0], board.rows[0]))
    with pytest.raises(StoreError, match="UNIQUE"):
        store.save(twice)
    assert store.runs() == ()


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be taken for one" * 20, None])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path, content):
    path = tmp_path / "lab.sqlite3"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot be used .*QKV_DATA_DIR"):
        Store(path).save(board_of(EXPERIMENTS[0]))


def test_a_file_of_a_later_version_is_left_alone(store):
    store.save(board_of(EXPERIMENTS[0]))
    with sqlite3.connect(store.path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="version 99, expected 1"):
        store.runs()


@pytest.mark.parametrize(
    ("environment", "system", "expected"),
    [
        ({"QKV_DATA_DIR": "/srv/mine", "XDG_DATA_HOME": "/srv/data"}, "linux", "/srv/mine"),
        ({"XDG_DATA_HOME": "/srv/data"}, "linux", "/srv/data/qkv"),
        ({"XDG_DATA_HOME": "not/absolute"}, "linux", "~/.local/share/qkv"),
        ({}, "linux", "~/.local/share/qkv"),
        ({}, "darwin", "~/Library/Application Support/qkv"),
        ({"LOCALAPPDATA": "/users/me/local"}, "win32", "/users/me/local/qkv"),
        ({}, "win32", "~/AppData/Local/qkv"),
    ],
)
def test_results_lie_where_each_system_keeps_data(environment, system, expected):
    assert data_root(environment, system) == Path(expected).expanduser()


def test_changes_are_those_of_deciding_numbers_and_verdicts():
    first = EXPERIMENTS[0]
    metric = first.parts[0].decides.metric
    before = board_of(*EXPERIMENTS)
    after = board_of(first, **{metric: Number(first.parts[0].decides.bound + 3.0, 0.0, 9.0)})
    (change,) = changes(before, after)
    assert (change.before, change.after) == (Verdict.HOLDS, Verdict.HOLDS_ONLY_IF)
    assert [one.part.decides.metric for one in change.numbers] == [metric]
    assert change.numbers[0].is_within_spread  # the quartiles of the later one hold the earlier one
    assert changes(before, before)[0].numbers == ()


def test_a_change_beyond_both_quartiles_is_beyond_the_spread():
    first = EXPERIMENTS[0]
    metric = first.parts[0].decides.metric
    boards = [board_of(first, **{metric: Number(at, at - 1, at + 1)}) for at in (4.0, 6.0, 6.1)]
    assert changes(boards[0], boards[1])[0].numbers[0].is_within_spread
    assert not changes(boards[0], boards[2])[0].numbers[0].is_within_spread
