"""Rows go into pages and come back out, byte for byte, and touch nothing beside them."""

import numpy as np
import pytest

from qkv.kernels.page_rows import get_rows, put_rows


@pytest.mark.parametrize("P", [1, 3, 16])
@pytest.mark.parametrize(
    "row", [np.dtype("u1"), np.dtype("f4"), np.dtype("(5,)i2"), np.dtype("(3,)u1")], ids=str
)
@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
def test_rows_stand_where_their_numbers_say_and_nothing_else_changes(P: int, row: np.dtype, tokens: int):
    heads, offset, first = 3, 5, np.array([0, 2, 31])
    num_pages = -(-(int(first.max()) + tokens) // P)
    width = offset + P * row.itemsize + 7
    memory = np.random.default_rng(0).integers(0, 256, (heads, num_pages, width), np.uint8)
    table = memory.__array_interface__["data"][0] + width * np.arange(heads * num_pages).reshape(
        heads, num_pages
    )
    rows = np.random.default_rng(1).integers(0, 256, (heads, tokens, row.itemsize), np.uint8)
    expected = memory.copy()
    for head in range(heads):
        for token in range(tokens):
            page, slot = divmod(int(first[head]) + token, P)
            start = offset + slot * row.itemsize
            expected[head, page, start : start + row.itemsize] = rows[head, token]
    numbers = rows.view(row.base).reshape(heads, tokens, *row.shape)
    put_rows(table, P, offset, numbers, first)
    np.testing.assert_array_equal(memory, expected)
    back = np.zeros_like(numbers)
    get_rows(table, P, offset, back, first)
    np.testing.assert_array_equal(back.view(np.uint8), numbers.view(np.uint8))
    np.testing.assert_array_equal(memory, expected)


def test_no_rows_are_no_work():
    table, first = np.zeros((2, 0), np.int64), np.zeros(2, np.int64)
    put_rows(table, 4, 0, np.zeros((2, 0, 3), np.float32), first)
    get_rows(table, 4, 0, np.zeros((2, 0, 3), np.float32), first)


def test_a_table_of_any_strides_is_followed():
    memory, rows = np.zeros((2, 2, 4), np.uint8), np.arange(8, dtype=np.uint8).reshape(2, 4)
    table = memory.__array_interface__["data"][0] + 4 * np.arange(4).reshape(2, 2)
    put_rows(np.repeat(table, 2, axis=1)[:, ::2], 2, 1, rows, np.zeros(2, np.int64))
    assert memory[..., 1:3].reshape(2, 4).tolist() == rows.tolist()
