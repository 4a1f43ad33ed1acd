"""One call over encoded pages and, in float32, over the page that each query stands in."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import reference
from attention_paths import normal
from paged_arrays import Stored, same, store, visible
from qkv.cache.layout import PageLayout
from qkv.kernels.attention import ROWS
from qkv.kernels.attention_words import EARLIER_PAGES, OWN_PAGE_ONLY, STRETCH_KEYS
from qkv.kernels.host import HOST_TILE, Tile
from qkv.kernels.paged_attention import Reach, attend_pages

G, GROUP = 2, 3
WHOLE, APART = 32, 24
"""Sizes of heads whose codes are multiplied as whole numbers, and as the numbers they stand for."""

each_element = pytest.mark.parametrize("element", ["int8-kivi", "int4"])
each_size = pytest.mark.parametrize("D", [WHOLE, APART])
WINDOWS = {
    "all": {},
    "a window": {"left": 20},
    "first keys": {"left": 4, "first_keys": 5},
    "positions": {"left": 30, "gaps": True},
}
each_window = pytest.mark.parametrize("window", WINDOWS.values(), ids=list(WINDOWS))


@dataclass(frozen=True)
class Step:
    """Queries of the last tokens of some texts, and what there is of these in pages.

    Only pages that the queries see: full ones of codes, and of float32 those in which a query stands.
    """

    q: np.ndarray
    encoded: Stored
    own: Stored
    held: np.ndarray
    new: np.ndarray

    def reach(self, sees: int, left: int | None = None, first_keys: int = 0, gaps: bool = False) -> Reach:
        held, new = (np.repeat(numbers[:, None], G, axis=1) for numbers in (self.held, self.new))
        steps = np.random.default_rng(4).integers(1, 4, (*held.shape, self.encoded.k.shape[2]))
        return Reach(
            held - new,
            held,
            None if left is None else np.full_like(held, left),
            first_keys,
            self.new.tolist(),
            sees,
            np.cumsum(steps[:1], axis=2).astype(np.int32).repeat(len(held), axis=0) if gaps else None,
        )

    def attend(self, window: dict, **rules: Any) -> tuple[np.ndarray, np.ndarray]:
        reach, rules = self.reach(EARLIER_PAGES, **window), {"scale": 0.2} | rules
        return attend_pages(self.q, self.encoded.pages, reach, self.own.pages, **rules)

    def alone(self, row: int, token: int) -> "Step":
        """One token of one text, as it was when it was the last one."""
        end = self.held[row] - self.new[row] + token + 1
        one, q = slice(row, row + 1), self.q[row : row + 1, :, token : token + 1]
        return Step(q, _some(self.encoded, one), _some(self.own, one), np.array([end]), np.array([1]))


def _some(stored: Stored, rows: slice) -> Stored:
    table = np.ascontiguousarray(stored.pages.table[rows])
    return replace(stored, pages=stored.pages._replace(table=table), k=stored.k[rows], v=stored.v[rows])


def step_of(element: str, P: int, held: list[int], new: list[int], D: int) -> Step:
    """Make a step of ``new`` tokens of texts that then hold ``held``."""
    B, S = len(held), max(held)
    k, v = (normal(seed, B, G, S, D, dtype=np.float32) for seed in (1, 2))
    encoded, own = (store(PageLayout(name, P, D, D), k, v) for name in (element, "float32"))
    for row in range(B):
        encoded.pages.table[row, :, held[row] // P :] = 0
        own.pages.table[row, :, : (held[row] - new[row]) // P] = 0
    q = normal(3, B, G * GROUP, max(new), D, dtype=np.float32)
    return Step(q, encoded, own, np.array(held), np.array(new))


def cuts(T: int, D: int) -> list[dict]:
    """Ways to cut a call of T queries that have the same bits: any layout has, of codes as numbers."""
    tiles = [HOST_TILE, Tile(4, 3, 4)] + ([ROWS] if GROUP * T <= 8 else [])
    tiles = [None, *tiles] if D == APART else [None]
    ways = [(False, 1), (True, 1), (False, 3), (True, 3)]
    return [{"tile": t, "splits_keys": splits, "num_workers": count} for t in tiles for splits, count in ways]


@each_element
@each_size
@each_window
@pytest.mark.parametrize("P", [3, 16, 64])
@pytest.mark.parametrize("new", [[1, 1, 1], [9, 1, 0], [50, 2, 9]], ids=str)
def test_queries_see_codes_before_their_own_page_and_numbers_in_it(
    element, D: int, window, P: int, new: list[int]
):
    """Among the texts are one that has no page encoded, and one that ends with a page."""
    T, step = max(new), step_of(element, P, [131, 2, 64], new, D)
    sinks, close = normal(5, G * GROUP), (1e-5, 2e-6) if D == APART else (2e-4, 2e-4)
    seen = [
        visible(step.reach(sees, **window), T, 131, P).repeat(GROUP, axis=1)
        for sees in (EARLIER_PAGES, OWN_PAGE_ONLY)
    ]
    k, v = (np.concatenate(x, axis=2) for x in ((step.encoded.k, step.own.k), (step.encoded.v, step.own.v)))
    for given in (None, sinks):
        mask = np.concatenate(seen, axis=3)
        output, _, lse = reference.attend(step.q, k, v, mask=mask, scale=0.2, sinks=given)
        results = [step.attend(window, sinks=given, **cut) for cut in cuts(T, D)]
        np.testing.assert_allclose(results[0][0], output, *close)
        np.testing.assert_allclose(results[0][1], lse, *close)
        assert all(same(one, results[0]) for one in results)


@each_element
@each_size
@each_window
@pytest.mark.parametrize("P", [16, 100, STRETCH_KEYS + 300])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_token_has_the_same_bits_alone_and_in_a_step_however_it_is_cut(element, D, window, P, with_sinks):
    """Pages that stretches divide, and others that reach over the end of one, or of two."""
    held, new = [2 * STRETCH_KEYS + 131, STRETCH_KEYS + 7, 40], [60, 9, 40]
    step, sinks = step_of(element, P, held, new, D), normal(5, G * GROUP) if with_sinks else None
    expected = step.attend(window, sinks=sinks)
    assert np.isfinite(expected[0]).all()
    assert all(same(step.attend(window, sinks=sinks, **cut), expected) for cut in cuts(60, D))
    for row, tokens in enumerate([(0, 30, 31, 59), (0, 5, 6, 8), (0, 15, 16, 39)]):
        for token in tokens:
            alone = step.alone(row, token)
            in_step = [x[row : row + 1, :, token : token + 1] for x in expected]
            assert all(same(alone.attend(window, sinks=sinks, **cut), in_step) for cut in cuts(1, D))


@each_element
def test_a_query_in_the_first_page_sees_it_to_the_bit_as_where_nothing_is_encoded(element):
    step = step_of(element, 64, [50, 63], [7, 63], APART)
    for cut in cuts(63, APART):
        plain = attend_pages(step.q, step.own.pages, step.reach(0), scale=0.2, **cut)
        assert same(step.attend({}, **cut), plain)


@each_element
def test_a_query_that_is_not_real_sees_the_sinks_alone(element):
    step, sinks = step_of(element, 16, [40, 30], [3, 0], WHOLE), normal(5, G * GROUP, dtype=np.float32)
    for given, lse in ((None, -np.inf), (sinks, sinks[:, None])):
        output, got = step.attend({}, sinks=given)
        assert not output[1].any() and (got[1] == lse).all()
