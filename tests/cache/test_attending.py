"""Parts of what a step sees, put together as `merge_attended` puts them together."""

import math

import numpy as np
import pytest

from cache_cases import GROUPED, Texts
from qkv import use_backend
from qkv.cache import CacheShape, PagedCache
from qkv.cache.attending import held_positions, merge_parts
from qkv.errors import OptionError
from qkv.ops import merge_attended
from qkv.ops.backend import can_compile

SIZES = 2, 6, 5, 7


def parts(dtype: type = np.float32) -> list[np.ndarray]:
    """Output and lse of two parts: (B, H, T, D) and (B, H, T)."""
    rng = np.random.default_rng(3)
    return [(30 * rng.standard_normal(size)).astype(dtype) for size in 2 * [SIZES, SIZES[:3]]]


def assert_merges_alike(some: list[np.ndarray]) -> None:
    for one, other in zip(merge_parts(*some), merge_attended(*some), strict=True):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_that_every_query_saw_are_merged_to_the_bit(dtype: type):
    assert_merges_alike(parts(dtype))


def test_output_in_half_the_width_of_lse_stays_so():
    output, lse, other, other_lse = parts()
    assert_merges_alike([output.astype(np.float16), lse, other.astype(np.float16), other_lse])


@pytest.mark.parametrize("blind", [(1,), (3,), (1, 3)], ids=str)
@pytest.mark.parametrize("beside", [0.5, math.nan])
def test_part_that_a_query_did_not_see_leaves_every_bit_of_the_other(blind: tuple[int, ...], beside: float):
    """A zero keeps its sign, which adding another zero would change; a NaN elsewhere does not hide that."""
    some = parts()
    for part in blind:
        some[part][0, 1, 2] = -np.inf
        some[part][0, 1, 3] = beside
        some[part - 1][0, 1, 2] = 0
        some[3 - part][0, 1, 2] = -0.0 if len(blind) == 1 else 0
    assert_merges_alike(some)


def test_two_parts_of_the_same_weight_give_their_mean_and_twice_the_sum():
    one, other, lse = np.array([[1, -4]], np.float32), np.array([[3, 4]], np.float32), np.ones(1, np.float32)
    output, merged = merge_parts(one, lse, other, lse)
    assert output.tolist() == [[2, 0]]
    assert merged == pytest.approx([1 + math.log(2)])


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
