from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.ops import causal_mask, window_mask
from qkv.ops.masks import Visibility, window_reach


def drawn(mask: np.ndarray) -> list[str]:
    assert mask.dtype == bool
    return ["".join("#" if seen else "." for seen in row) for row in mask]


def test_a_causal_mask_shows_ones_own_key_and_all_before():
    assert drawn(causal_mask(3)) == ["#..", "##.", "###"]
    assert drawn(causal_mask(2, 4)) == ["###.", "####"]
    assert drawn(causal_mask(3, 2)) == ["..", "#.", "##"]
    assert causal_mask(0).shape == (0, 0)


def test_a_window_shows_ones_own_key_and_those_just_before():
    assert drawn(window_mask(4, window=2)) == ["#...", "##..", ".##.", "..##"]
    assert drawn(window_mask(2, 4, window=3)) == ["###.", ".###"]
    assert drawn(window_mask(2, window=1)) == ["#.", ".#"]


def test_a_pair_counts_the_keys_on_each_side_of_ones_own():
    assert drawn(window_mask(4, window=(2, 0))) == drawn(window_mask(4, window=3))
    assert drawn(window_mask(4, window=(0, 1))) == ["##..", ".##.", "..##", "...#"]
    assert drawn(window_mask(3, window=(None, 0))) == drawn(causal_mask(3))
    assert drawn(window_mask(2, window=None)) == ["##", "##"]


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_of_nothing_is_refused(window):
    with pytest.raises(OptionError, match=f"at least 1, not {window}; None means no window"):
        window_mask(4, window=window)


def test_a_negative_side_is_refused():
    with pytest.raises(OptionError, match=r"not \(1, -1\); None is no limit, as in \(None, None\)"):
        window_reach((1, -1))


@pytest.mark.parametrize("sizes", [(3, -1), (-3, 1), (3.5,), (True,), ("3",), (3, 2.0)])
def test_a_mask_has_a_whole_number_of_rows_and_columns(sizes: Any) -> None:
    wrong = next(size for size in sizes if type(size) is not int or size < 0)
    for make in (causal_mask, partial(window_mask, window=2)):
        with pytest.raises(OptionError, match=f"num_.* at least 0, not {wrong!r}$"):
            make(*sizes)


lengths = st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5))


@settings(deadline=None)
@given(
    num_queries=st.integers(5, 8),
    num_keys=st.integers(5, 8),
    causal=st.sampled_from([False, True, "top_left"]),
    window=st.none()
    | st.integers(1, 4)
    | st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(0, 3)),
    q_lengths=lengths,
    kv_lengths=lengths,
    tile=st.tuples(*[st.integers(0, 5)] * 4),
)
def test_any_rectangle_of_what_is_visible_is_cut_from_the_whole(
    num_queries, num_keys, causal, window, q_lengths, kv_lengths, tile
):
    q, k = np.zeros((2, 1, num_queries, 1)), np.zeros((2, 1, num_keys, 1))
    seen = Visibility.of(
        q, k, mask=None, causal=causal, window=window, q_lengths=q_lengths, kv_lengths=kv_lengths
    )

    def visible(queries: slice, keys: slice) -> np.ndarray:
        shape = (2, 1, queries.stop - queries.start, keys.stop - keys.start)
        rectangle = seen.tile(queries, keys)
        return np.ones(shape, bool) if rectangle is None else np.broadcast_to(rectangle, shape)

    whole = visible(slice(0, num_queries), slice(0, num_keys))
    first_query, first_key, more_queries, more_keys = tile
    queries = slice(min(first_query, num_queries), min(first_query + more_queries, num_queries))
    keys = slice(min(first_key, num_keys), min(first_key + more_keys, num_keys))
    assert (visible(queries, keys) == whole[..., queries, keys]).all()
    reachable = seen.reachable_keys(queries, num_keys)
    unreachable = [s for s in range(num_keys) if s not in reachable]
    assert not whole[..., queries, unreachable].any()
    assert reachable.stop <= max(num_keys, reachable.start)
