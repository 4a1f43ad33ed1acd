"""What a cache says of itself: what each head holds, what it has dropped, and what that takes."""

import numpy as np
import pytest

from qkv.cache import CacheShape, PagedCache, PagePool, PrefixIndex, Rotation
from qkv.cache.elements import ELEMENTS
from qkv.cache.explanation import Explanation, ranges
from qkv.ops.rotary import rotary_frequencies

L, G, H, D = 2, 3, 6, 4
SHAPE = CacheShape(num_layers=L, num_kv_heads=G, head_dim=D)
POLICIES = [
    *ELEMENTS,
    "window=5,sinks=2",
    "heads=101,window=5,int8",
    "streaming=7",
    "streaming=7,rerotate",
    "h2o=7:sum",
    "tova=7,int8",
    "knorm=7",
    "snapkv=7,int4",
    "pyramidkv=7",
    "expected=7",
]


def new(policy: str, batch_size: int = 1, shape: CacheShape = SHAPE, **options) -> PagedCache:
    return PagedCache(shape, policy, batch_size, rotation=Rotation(rotary_frequencies(D, 100.0)), **options)


def step(cache: PagedCache, T: int, seed: int = 0, k=None, **rules) -> PagedCache:
    rng, shape = np.random.default_rng(seed), cache.shape
    B, heads = cache.batch_size, 2 * shape.num_kv_heads
    for layer in range(shape.num_layers):
        keys, v = rng.normal(size=(2, B, shape.num_kv_heads, T, D)).astype(np.float32)
        cache.append(layer, keys if k is None else k, v)
        cache.attend(layer, rng.normal(size=(B, heads, T, D)).astype(np.float32), **rules)
    return cache


def held(explanation: Explanation, row: int, layer: int, head: int) -> list[int]:
    return explanation.heads[row, layer, head].positions.tolist()


# What is held


def test_a_window_keeps_its_pages_and_those_of_the_sinks():
    """Of 20 tokens in pages of 3, the window of 5 begins at token 15, and the sinks stand in page 0."""
    explanation = step(new("window=5,sinks=2,page=3"), 20).explain()
    for one in explanation.heads.values():
        assert one.positions.tolist() == [0, 1, 2, 15, 16, 17, 18, 19]
        assert one.dropped.tolist() == list(range(3, 15))
        assert (len(one.page_ids), one.nbytes) == (3, 3 * 3 * 2 * D * 4)
        assert (one.window, one.sinks) == (5, 2)
    assert explanation.drops == ((),)


def test_an_eviction_says_what_it_dropped_when_and_by_what():
    """Of 20 tokens the first 4 and the last 3 stay; three more fill a page beyond the budget, and go too."""
    cache = step(new("streaming=7,page=3"), 20)
    for seed in range(3):
        step(cache, 1, seed)
    explanation = cache.explain()
    assert held(explanation, 0, 1, 2) == [0, 1, 2, 3, 20, 21, 22]
    assert [(drop.at, drop.layer, drop.by) for drop in explanation.drops[0]] == [
        (20, 0, "streaming=7"),
        (20, 1, "streaming=7"),
        (23, 0, "streaming=7"),
        (23, 1, "streaming=7"),
    ]
    assert explanation.drops[0][0].positions.tolist() == [list(range(4, 17))] * G
    assert explanation.drops[0][3].positions.tolist() == [[17, 18, 19]] * G
    assert explanation.heads[0, 0, 0].dropped.tolist() == list(range(4, 20))


def test_a_first_step_that_was_broken_off_has_dropped_nothing():
    rng = np.random.default_rng(0)
    broken_off = new("streaming=7,page=4")
    broken_off.append(0, *rng.normal(size=(2, 1, G, 20, D)).astype(np.float32))
    broken_off.attend(0, rng.normal(size=(1, H, 20, D)).astype(np.float32))  # and never its second layer
    assert len(broken_off.drops[0]) == 1
    again, never = (step(cache, 20) for cache in (broken_off, new("streaming=7,page=4")))
    assert len(again.drops[0]) == L and str(again.explain()) == str(never.explain())


def test_each_head_holds_its_own():
    """The two shortest keys of each head stay."""
    norms = np.array([[5, 1, 4, 3, 2, 6], [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]], np.float32)
    k = np.zeros((1, G, 6, D), np.float32)
    k[0, :, :, 1] = norms
    explanation = step(new("knorm=2,page=2"), 6, k=k).explain()
    assert [held(explanation, 0, 0, head) for head in range(G)] == [[1, 4], [0, 1], [4, 5]]
    assert explanation.heads[0, 1, 0].dropped.tolist() == [0, 2, 3, 5]


def test_pruned_heads_have_the_window_and_full_heads_have_none():
    explanation = step(new("heads=011/110,window=4,sinks=1,page=2"), 9).explain()
    assert [explanation.heads[0, 0, head].window for head in range(G)] == [4, None, None]
    assert [explanation.heads[0, 1, head].window for head in range(G)] == [None, None, 4]
    assert held(explanation, 0, 1, 2) == [0, 1, 4, 5, 6, 7, 8]
    assert held(explanation, 0, 0, 1) == list(range(9))


def test_a_models_own_window_is_shown():
    explanation = step(new("page=2"), 9, window=3).explain()
    assert explanation.heads[0, 0, 0].window == 3
    assert held(explanation, 0, 0, 0) == [6, 7, 8]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_token_is_held_or_was_dropped_and_each_byte_is_some_heads(policy: str):
    cache = step(new(f"{policy},page=3", batch_size=2), 19, seed=1)
    for seed in range(2, 6):
        step(cache, 1, seed)
    explanation = cache.explain()
    assert set(explanation.heads) == {(row, *place) for row in range(2) for place in np.ndindex(L, G)}
    for (row, layer, head), one in explanation.heads.items():
        both = np.concatenate([one.positions, one.dropped])
        assert sorted(both.tolist()) == list(range(23))
        assert (np.diff(one.positions) > 0).all()
        assert one.nbytes == cache.pool.sizes(one.page_ids).sum()
        by_events = [drop.positions[head] for drop in explanation.drops[row] if drop.layer == layer]
        if cache.policy.eviction is not None:
            assert sorted(np.concatenate(by_events).tolist()) == one.dropped.tolist()
            assert len(one.positions) == cache.sequences[row].held[layer, head]
    assert sum(one.nbytes for one in explanation.heads.values()) == explanation.nbytes == cache.nbytes


def test_an_explanation_stays_as_it_was():
    cache = step(new("streaming=7,page=3"), 20)
    explanation = cache.explain()
    text, positions = str(explanation), explanation.heads[0, 0, 0].positions.copy()
    fork = cache.fork()
    step(cache, 11, seed=1)
    fork.free()
    assert str(explanation) == text
    np.testing.assert_array_equal(explanation.heads[0, 0, 0].positions, positions)


# What it takes


def test_shared_pages_are_counted_by_those_who_hold_them():
    pool = PagePool()
    index = PrefixIndex(pool, 4)
    donor = step(new("page=4", pool=pool), 10)
    assert donor.explain().heads[0, 0, 0].references.tolist() == [1, 1, 1]
    donor.remember_prefix(index, range(10))
    rows = new("page=4", batch_size=2, pool=pool)
    assert [rows.adopt_prefix(index, range(9), row) for row in range(2)] == [8, 8]
    explanation = rows.explain()
    assert explanation.heads[1, 1, 2].references.tolist() == [4, 4]
    assert donor.explain().heads[0, 0, 0].references.tolist() == [4, 4, 1]
    assert explanation.nbytes == rows.nbytes == 2 * L * G * 4 * 2 * D * 4
    assert sum(one.nbytes for one in explanation.heads.values()) == 2 * explanation.nbytes


def test_bytes_are_compared_with_those_of_a_full_cache():
    full = step(new("", batch_size=2), 33)
    explanation = step(new("int8,window=5", batch_size=2), 33).explain()
    assert explanation.full_nbytes == full.nbytes == full.explain().nbytes
    assert explanation.ratio == explanation.nbytes / full.nbytes < 1
    assert full.explain().ratio == 1.0


def test_an_empty_cache_holds_nothing():
    explanation = new("int4").explain()
    assert (explanation.nbytes, explanation.ratio) == (0, 1.0)
    assert held(explanation, 0, 0, 0) == []
    assert str(explanation).startswith("int4: 0 bytes\n")


# How it reads


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([], "none"),
        ([7], "7"),
        ([0, 1, 2, 9], "0-2, 9"),
        ([0, 2, 4, 6, 8, 10], "0, 2, 4, 6, 8, 10"),
        ([0, 2, 4, 6, 7, 9, 11, 13, 14], "0, 2, 4, ... 2 more ..., 11, 13-14"),
    ],
)
def test_positions_read_as_ranges(positions: list[int], expected: str):
    assert ranges(np.array(positions, np.int32)) == expected


def test_heads_and_layers_of_the_same_are_one_line():
    cache = step(new("heads=011,window=4,page=2", batch_size=2), 9)
    assert (
        str(cache.explain())
        == """\
window=4,heads=011,page=2: 3,328 bytes, 0.542 times the 6,144 of all tokens in float32

sequence 0: 9 tokens
layers  heads  tokens  pages  shared  bytes  window  sinks  positions
0-1     0           5      3       0    192       4      0  4-8
0-1     1-2         9      5       0    320     all      0  0-8

dropped behind the window
layers  heads  tokens  positions
0-1     0           4  0-3

sequence 1: 9 tokens
layers  heads  tokens  pages  shared  bytes  window  sinks  positions
0-1     0           5      3       0    192       4      0  4-8
0-1     1-2         9      5       0    320     all      0  0-8

dropped behind the window
layers  heads  tokens  positions
0-1     0           4  0-3"""
    )


def test_a_table_says_by_which_score_tokens_left():
    """PyramidKV keeps more in the lower layer: 12 of 13 tokens there, and 6 in the upper one."""
    cache = step(new("pyramidkv=9,page=3"), 25)
    budgets = cache.keeping.budgets
    text = str(cache.explain())
    assert "dropped by pyramidkv=9 (score: the attention a token got from the prompt's last queries" in text
    assert budgets is not None and budgets[0] > budgets[1]
    for layer, budget in enumerate(budgets):
        lines = [line.split() for line in text.splitlines() if line.startswith(f"{layer} ")]
        assert {line[2] for line in lines if len(line) > 8} >= {str(budget)}
        assert any(line[2:5] == ["1", "25", str(25 - budget)] for line in lines)


def test_a_long_table_is_cut_in_the_middle_and_heads_has_all():
    """50 layers whose heads all hold something else."""
    shape = CacheShape(num_layers=50, num_kv_heads=1, head_dim=D)
    explanation = step(new("knorm=7", shape=shape), 40).explain()
    lines = str(explanation).splitlines()
    assert len(lines) < 60
    left_out = [line for line in lines if "lines more; `heads` has them all" in line]
    assert len(left_out) == 2
    assert left_out[0].startswith("... 27 lines more")
    assert len(explanation.heads) == 50
