"""Rows of packed tables: what a call copies is what the table itself says of its rows, to the bit."""

import numpy as np
import pytest

from qkv.kernels.panels import pack
from qkv.kernels.program import Program
from qkv.kernels.table_rows import rows_call

V, E = 101, 37
IDS = np.array([7, 100, 0, 7, 53])


def rows_of(table, ids, apart=3):
    """Rows as a program copies them, each behind the last number of the one before and ``apart`` more."""
    room = np.full((len(ids), table.shape[1] + apart), np.nan, np.float32)
    Program([rows_call(ids, table, room[:, : table.shape[1]])]).run()
    assert np.isnan(room[:, table.shape[1] :]).all(), "something was written behind a row"
    return room[:, : table.shape[1]]


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_a_call_copies_the_rows_that_the_ids_name(form):
    weight = np.random.default_rng(0).normal(size=(V, E)).astype(np.float32)
    table = pack(weight, form)
    assert rows_of(table, IDS).tobytes() == table.rows(IDS).tobytes() == table.unpack()[IDS].tobytes()


def test_codes_are_multiplied_by_the_scale_of_their_group():
    """The 33rd number is the first of a second group: the largest there is 3, of 127 steps of 3 / 127."""
    weight = np.zeros((2, 33), np.float32)
    weight[1, 0], weight[1, 1], weight[1, 32] = 127.0, -63.6, 3.0
    row = rows_of(pack(weight, "int8"), np.array([1]))[0]
    assert (row[0], row[1], row[32]) == (127.0, -64.0, 3.0)
    assert not row[2:32].any()


def test_a_call_follows_the_ids_as_they_change():
    table = pack(np.arange(V * 2, dtype=np.float32).reshape(V, 2))
    ids, y = np.array([5]), np.zeros((1, 2), np.float32)
    program = Program([rows_call(ids, table, y)])
    for ids[0] in (5, 64, 11):
        program.run()
        assert y.tolist() == [[2.0 * ids[0], 2.0 * ids[0] + 1.0]]
