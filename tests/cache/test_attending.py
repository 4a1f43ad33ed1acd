"""What a step reads of the pages, and when it can no longer do so."""

import numpy as np
import pytest

from cache_cases import GROUPED, Texts
from qkv import use_backend
from qkv.cache import CacheShape, PagedCache
from qkv.cache.attending import held_positions
from qkv.errors import OptionError
from qkv.ops.backend import can_compile


@pytest.mark.skipif(not can_compile(), reason="NumPy alone opens each page")
@pytest.mark.parametrize("policy", ["snapkv=9,page=4", "int4,snapkv=9,page=4", "int8,tova=7,page=4"])
def test_positions_are_read_without_opening_a_page_in_python(policy: str, monkeypatch: pytest.MonkeyPatch):
    """Or a model with windows opens every page of every head and layer at each token."""
    texts = Texts(GROUPED)
    cache = texts.cache(policy)
    for counts in ((15, 12), (1, 1), (1, 0)):
        texts.step(cache, counts)
    with use_backend("numpy"):
        expected = held_positions(cache.sequences, 1)
    monkeypatch.setattr(cache.pool, "page", None)
    with use_backend("compiled"):
        got = held_positions(cache.sequences, 1)
    np.testing.assert_array_equal(got, expected)
    assert got.shape[2] == max(int(one.held[1, 0]) for one in cache.sequences)
    assert [int(row[0, one.held[1, 0] - 1]) for row, one in zip(got, cache.sequences, strict=True)] == [
        16,
        12,
    ]


@pytest.mark.parametrize("held", [3, 4, 5])
def test_attending_again_is_refused_where_a_page_of_the_queries_has_been_encoded(held: int):
    """Pages of 4; three queries, of 5 tokens the first of which is in the page that is full."""
    cache = PagedCache(CacheShape(num_layers=1, num_kv_heads=2, head_dim=4), "int4,page=4")
    x = np.ones((1, 2, held, 4), np.float32)
    cache.append(0, x[:, :, :-3], x[:, :, :-3])
    cache.attend(0, x[:, :, :-3])
    cache.append(0, x[:, :, -3:], x[:, :, -3:])
    first = cache.attend(0, x[:, :, -3:])
    if held < 4:
        assert cache.attend(0, x[:, :, -3:]).tobytes() == first.tobytes()
        return
    with pytest.raises(OptionError, match="attend once"):
        cache.attend(0, x[:, :, -3:])
