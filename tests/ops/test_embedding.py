import numpy as np
import pytest

from attention_paths import normal
from qkv.errors import ShapeError
from qkv.ops.embedding import embed

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
def test_an_id_outside_the_table_is_refused_and_not_wrapped_round(ids, words):
    with pytest.raises(ShapeError, match=f"from 0 to 6, the rows of the table, but range {words}"):
        embed(np.array(ids), TABLE)
