"""Programs: every share of every call is run once, and no call begins before the one before it is done."""

from itertools import pairwise

import numpy as np
import pytest

from qkv.kernels.compiler import compiled
from qkv.kernels.host import set_num_threads
from qkv.kernels.launch import address
from qkv.kernels.memory import integer_at, put_integer
from qkv.kernels.program import LINE_BYTES, Call, Program, _follow_all

SHARES = 7


@compiled()
def count_up(call, share):
    put_integer(call, share, integer_at(call, share) + 1)


@compiled()
def mirror(call, share):
    """Fill a share's cell with twice its mirror image in the row before, and what is added to all."""
    before, row, added = integer_at(call, 0), integer_at(call, 1), integer_at(call, 2)
    put_integer(row, share, 2 * integer_at(before, SHARES - 1 - share) + added)


@pytest.fixture(params=[1, 2])
def num_threads(request):
    set_num_threads(request.param)
    yield request.param
    set_num_threads(None)


def mirrored(rows):
    words = [[address(before), address(row), number] for number, (before, row) in enumerate(pairwise(rows))]
    return [Call(mirror, np.array(one), SHARES) for one in words]


def test_every_share_of_every_call_is_run_once(num_threads):
    counts = [np.zeros(shares, np.int64) for shares in (1, 2, 3, 97)]
    program = Program([Call(count_up, count, len(count)) for count in counts])
    for _ in range(300):
        program.run()
    assert [count.tolist() for count in counts] == [[300] * len(count) for count in counts]


def test_a_call_sees_all_that_the_one_before_it_did(num_threads):
    """1, 0, 0 mirrored twice: 2 at the other end, then 4 + 1 at the first, and 0 + 1 at the rest."""
    rows = np.zeros((30, SHARES), np.int64)
    rows[0, 0] = 1
    program = Program(mirrored(rows))
    for _ in range(50):
        rows[1:] = 0
        program.run()
        assert rows[2].tolist() == [5, *[1] * (SHARES - 1)]
        expected = rows[0]
        for number in range(29):
            expected = 2 * expected[::-1] + number
        assert rows[-1].tolist() == expected.tolist()


def test_words_and_shares_may_change_between_runs(num_threads):
    first, second = np.zeros(5, np.int64), np.zeros(5, np.int64)
    program = Program([Call(count_up, first, 5), Call(count_up, second, 0)])
    program.run()
    assert (first.tolist(), second.tolist()) == ([1] * 5, [0] * 5)
    program.shares[:] = 0, 2
    first[:] = 10
    program.run()
    assert (first.tolist(), second.tolist()) == ([10] * 5, [1, 1, 0, 0, 0])


def test_a_program_of_nothing_is_done_at_once(num_threads):
    Program([]).run()


def test_one_thread_does_the_shares_of_those_that_never_come():
    count = np.zeros(13, np.int64)
    program = Program([Call(count_up, count, 13)] * 3)
    _follow_all.alone(address(program._records), 3, 1)
    assert count.tolist() == [3] * 13


def test_each_record_has_a_line_of_the_cache_to_itself():
    program = Program([Call(count_up, np.zeros(1, np.int64), 1)] * 3)
    assert program._records.strides[0] == LINE_BYTES == 64
    assert address(program._records) % LINE_BYTES == 0
