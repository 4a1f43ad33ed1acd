import tracemalloc

import numpy as np
import pytest

from attention_paths import normal
from qkv.errors import ShapeError
from qkv.kernels.panels import pack
from qkv.ops.embedding import embed
from qkv.ops.projection import prepare

TABLE = normal(1, 7, 5, dtype=np.float32)


def test_each_id_gives_its_row():
    ids = np.array([[6, 0, 3], [3, 3, 1]])
    got = embed(ids, TABLE)
    assert got.shape == (2, 3, 5)
    assert got.dtype == np.float32
    assert all((got[index] == TABLE[ids[index]]).all() for index in np.ndindex(ids.shape))


def test_ids_may_have_any_number_of_axes_and_no_element():
    assert embed(np.array(4), TABLE).tolist() == TABLE[4].tolist()
    assert embed(np.zeros((2, 0), int), TABLE).shape == (2, 0, 5)


@pytest.mark.parametrize(("ids", "words"), [([0, 7], "from 0 to 7"), ([-1, 2], "from -1 to 2")])
@pytest.mark.parametrize("form", [None, "bfloat16"])
def test_an_id_outside_the_table_is_refused_and_not_wrapped_round(ids, words, form):
    table = TABLE if form is None else prepare(TABLE, form)
    with pytest.raises(ShapeError, match=f"from 0 to 6, the rows of the table, but range {words}"):
        embed(np.array(ids), table)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(7, 5), (101, 67), (37, 32)])
def test_a_table_that_is_laid_out_for_the_kernels_gives_its_rows_in_float32(form, shape):
    """Each id is in another column of another panel, its last group of scales may be short."""
    weight = pack(normal(2, *shape, dtype=np.float32), form)
    ids = np.arange(shape[0])[::-1].reshape(1, -1)
    got = embed(ids, weight)
    assert got.dtype == np.float32
    assert (got[0] == weight.unpack()[::-1]).all()
    assert embed(np.array(3), weight).tolist() == weight.unpack()[3].tolist()
    assert embed(np.zeros((2, 0), int), weight).shape == (2, 0, shape[1])


def test_rows_of_int8_worked_by_hand():
    """A group's largest sets its scale: 127 and 254 over 127, then 1, of which 0.4 is nothing."""
    table = np.zeros((2, 33), np.float32)
    table[1, [0, 1, 32]] = 254, -63.2, 127
    table[0, [0, 1]] = 127, 0.4
    got = embed(np.array([1, 0]), pack(table, "int8"))
    assert got[:, [0, 1, 32]].tolist() == [[254, -64, 127], [127, 0, 0]]


def test_a_few_rows_take_no_copy_of_the_table():
    weight = pack(normal(3, 4099, 67, dtype=np.float32), "bfloat16")
    tracemalloc.start()
    embed(np.array([4098, 0, 7]), weight)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < weight.nbytes / 10
