"""Kernels read codes as `qkv.cache.elements` decodes them: to the bit, or with operands of 16 bits."""

import numpy as np
import pytest

from paged_arrays import same, store
from qkv.cache.elements import ELEMENTS
from qkv.cache.layout import PageLayout
from qkv.kernels import paged_attention
from qkv.kernels.attention import ROWS, attend
from qkv.kernels.attention_words import ELEMENTS as NAMES
from qkv.kernels.attention_words import STRETCH_KEYS
from qkv.kernels.codes import INTEGERS
from qkv.kernels.host import HOST_TILE
from qkv.kernels.paged_attention import Reach, attend_pages, sum_columns

SIZES = {
    "vectors of any width": (2, 32, 48),
    "no whole vector": (1, 6, 10),
    "vectors and a rest": (2, 40, 34),
    "more than two groups": (1, 16, 80),
    "halves of a group and a half": (1, 48, 96),
    "halves of whole groups": (1, 64, 128),
}
"""G, D and D_v; H = 2 G or 3 G."""


def rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random numbers with rows of zeros, constants and outliers among them, and a NaN in one head."""
    x = rng.normal(size=shape).astype(np.float32)
    S = shape[2]
    x[:, :, 1 % S] = 0.0
    x[:, :, 3 % S] = 5.0
    x[:, :, 5 % S] *= 1000.0
    x[:, :, :, 2] *= 30.0
    x[-1, -1, S // 2, 1] = np.nan
    x[-1, -1, S // 3, 3] = np.inf
    return x


def are_whole_numbers(pages: paged_attention.Pages, D: int) -> bool:
    """Whether codes are multiplied as what they are: with rows of whole vectors of words."""
    if pages.element not in INTEGERS or (pages.shares_values and pages.element == "int8-kivi"):
        return False
    return D % (32 if pages.element == "int4" else 16) == 0 and pages.value_dim % 16 == 0


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("shares_values", [False, True], ids=["values apart", "values in keys"])
def test_attention_on_codes_is_attention_on_the_numbers_they_stand_for(element, sizes, shares_values):
    G, D, D_v = sizes
    rng = np.random.default_rng(0)
    for S, P in ((70, 16), (37, 3), (9, 1), (130, 37)):
        layout = PageLayout(element, P, max(D, D_v) if shares_values else D, D_v, shares_values)
        k, v = rows(rng, 2, G, S, layout.D_k), rows(rng, 2, G, S, D_v)
        stored = store(layout, k, v)
        for T, group in ((1, 3), (2, 4), (7, 2)):
            q = rng.normal(size=(2, G * group, T, layout.D_k)).astype(np.float32)
            places = np.full((2, G), S - T), np.full((2, G), S)
            expected = attend(q, stored.k, stored.v, scale=0.1, offsets=S - T, right=0)
            assert np.isfinite(expected[0][0]).all()
            exact = [ROWS, HOST_TILE] if T * group <= 8 else [HOST_TILE]
            for tile in exact if are_whole_numbers(stored.pages, layout.D_k) else [None, *exact]:
                assert same(attend_pages(q, stored.pages, Reach(*places), scale=0.1, tile=tile), expected)


WHOLE = [sizes for sizes in SIZES.values() if sizes[1] % 32 == 0 and sizes[2] % 16 == 0]


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("sizes", WHOLE, ids=str)
def test_whole_numbers_are_as_near_as_their_16_bits_and_as_far_from_what_is_hidden(element, sizes):
    """Scores are off by the rounding of queries, of which each part is at most a 65,534th of the largest."""
    G, D, D_v = sizes
    rng = np.random.default_rng(0)
    for S, P in ((70, 16), (37, 3), (9, 1), (130, 37)):
        k, v = rng.normal(size=(2, G, S, D)).astype(np.float32), rng.normal(size=(2, G, S, D_v))
        stored = store(PageLayout(element, P, D, D_v), k, v.astype(np.float32))
        for T, group in ((1, 3), (2, 4), (7, 2), (1, 8)):
            q = rng.normal(size=(2, G * group, T, D)).astype(np.float32)
            reach = Reach(np.full((2, G), S - T), np.full((2, G), S))
            got = attend_pages(q, stored.pages, reach, scale=0.1)
            expected = attend(q, stored.k, stored.v, scale=0.1, offsets=S - T, right=0)
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=2e-4)
            assert not same(got, expected)  # it was this way that was taken


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("sizes", WHOLE, ids=str)
def test_whole_numbers_have_the_same_bits_for_a_text_and_token_by_token(element, sizes):
    """With rows of zeros, outliers, NaN and infinities: what a later query sees changes no bit."""
    G, D, D_v = sizes
    rng = np.random.default_rng(0)
    for S, P, T, group in ((70, 16, 9, 8), (37, 3, 5, 2), (130, 37, 40, 1), (129, 64, 30, 3)):
        stored = store(PageLayout(element, P, D, D_v), rows(rng, 2, G, S, D), rows(rng, 2, G, S, D_v))
        q = rng.normal(size=(2, G * group, T, D)).astype(np.float32)
        for left in (None, np.full((2, G), 20)):
            limits = {"left": left, "first_keys": 0 if left is None else 3}
            whole = attend_pages(
                q, stored.pages, Reach(np.full((2, G), S - T), np.full((2, G), S), **limits), scale=0.1
            )
            assert np.isfinite(whole[0][0]).all()
            for t in range(T):
                held = np.full((2, G), S - T + t + 1)
                one = attend_pages(
                    np.ascontiguousarray(q[:, :, t : t + 1]), stored.pages, Reach(held - 1, held, **limits),
                    scale=0.1,
                )  # fmt: skip
                assert same(one, [part[:, :, t : t + 1] for part in whole])


@pytest.mark.parametrize("element", INTEGERS)
def test_whole_numbers_stay_within_32_bits_whatever_the_codes_and_the_size(element):
    """The largest sums there can be: every code at its largest, every query the same, 4,096 channels."""
    D, S = 4096, 64
    k = np.ones((1, 1, S, D), np.float32)
    k[:, :, 0] = 0
    stored = store(PageLayout(element, 32, D, 16), k, np.ones((1, 1, S, 16), np.float32))
    q = np.ones((1, 1, 1, D), np.float32)
    reach = Reach(np.full((1, 1), S - 1), np.full((1, 1), S))
    _, lse = attend_pages(q, stored.pages, reach, scale=1 / D)
    expected = attend(q, stored.k, stored.v, scale=1 / D, offsets=S - 1, right=0)[1]
    np.testing.assert_allclose(lse, expected, rtol=1e-3)


@pytest.mark.parametrize("element", ELEMENTS)
def test_attention_on_codes_is_the_same_over_many_stretches_and_workers(element):
    S = 2 * STRETCH_KEYS + 77
    rng = np.random.default_rng(0)
    q = rng.normal(size=(1, 4, 1, 32)).astype(np.float32)
    k, v = rng.normal(size=(2, 1, 2, S, 32)).astype(np.float32)
    stored = store(PageLayout(element, 32, 32, 32), k, v)
    reach = Reach(np.full((1, 2), S - 1), np.full((1, 2), S))
    ways = [
        {"splits_keys": splits_keys, "num_workers": count}
        for splits_keys in (False, True)
        for count in (1, 3)
    ]
    got = [attend_pages(q, stored.pages, reach, scale=0.25, **way) for way in ways]
    assert all(same(one, got[0]) for one in got)
    expected = attend(q, stored.k, stored.v, scale=0.25, offsets=S - 1, right=0)
    if are_whole_numbers(stored.pages, 32):
        np.testing.assert_allclose(got[0][0], expected[0], atol=1e-4)
    else:
        assert same(got[0], expected)


@pytest.mark.parametrize("element", ELEMENTS)
def test_pages_of_which_no_query_sees_a_key_may_be_gone_to_the_bit(element):
    """A window of 20 behind 3 first keys: the pages between, in the same block and in blocks between."""
    for S, P in ((60, 5), (200, 16), (STRETCH_KEYS + 300, 32)):
        k, v = np.random.default_rng(0).normal(size=(2, 1, 2, S, 32)).astype(np.float32)
        q = np.random.default_rng(1).normal(size=(1, 4, 1, 32)).astype(np.float32)
        stored = store(PageLayout(element, P, 32, 32), k, v)
        one = np.ones((1, 2), np.int64)
        reach = Reach((S - 1) * one, S * one, left=19 * one, first_keys=3)
        expected = attend_pages(q, stored.pages, reach, scale=0.3)
        stored.pages.table[:, :, -(-3 // P) : (S - 20) // P] = 0
        assert same(attend_pages(q, stored.pages, reach, scale=0.3), expected)


@pytest.mark.parametrize("element", [name for name in ELEMENTS if name != "float32"])
def test_codes_of_whole_vectors_go_straight_into_the_products(element, monkeypatch):
    asked = []
    monkeypatch.setattr(
        paged_attention, "prepare_again", lambda *_, **rules: asked.append(rules["tile"]) or 1 / 0
    )
    layout = PageLayout(element, 32, 64, 64)
    stored = store(layout, *np.zeros((2, 1, 1, 32, 64), np.float32))
    reach = Reach(np.full((1, 1), 31), np.full((1, 1), 32))
    with pytest.raises(ZeroDivisionError):
        attend_pages(np.zeros((1, 8, 1, 64), np.float32), stored.pages, reach, scale=1.0)
    assert asked == [element]


@pytest.mark.parametrize("element", ELEMENTS)
def test_sums_over_codes_are_sums_over_the_numbers_they_stand_for(element):
    S, P, rng = 83, 7, np.random.default_rng(0)
    layout, plain = PageLayout(element, P, 12, 6), PageLayout("float32", P, 12, 6)
    stored = store(layout, rows(rng, 2, 2, S, 12), rows(rng, 2, 2, S, 6))
    numbers = store(plain, stored.k, stored.v)
    for T in (1, 9):
        q = rng.normal(size=(2, 6, T, 12)).astype(np.float32)
        reach = Reach(np.full((2, 2), S - T), np.full((2, 2), S))
        _, lse = attend_pages(q, numbers.pages, reach, scale=0.1)
        got, expected = (sum_columns(q, one.pages, reach, lse, scale=0.1) for one in (stored, numbers))
        assert same([got], [expected])
        assert np.isfinite(expected[0]).all()


@pytest.mark.parametrize("element", ["fp16", "bf16", "fp8-e4m3", "fp8-e5m2"])
def test_every_code_of_a_float_is_read_as_the_number_it_is(element):
    """One key per code, which alone is seen and whose value is the code."""
    dtype = ELEMENTS[element].values.forms(1, 1)["codes"][0]
    codes = np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")
    codes = codes if len(codes) == 256 else codes[::97]
    layout = PageLayout(element, 1, 16, 16)
    stored = store(layout, np.zeros((len(codes), 1, 1, 16)), np.zeros((len(codes), 1, 1, 16)))
    stored.memory.reshape(len(codes), -1)[:, 16 * dtype.itemsize :].view(codes.dtype)[:] = codes[:, None]
    reach = Reach(np.zeros((len(codes), 1), np.int64), np.ones((len(codes), 1), np.int64))
    output, _ = attend_pages(np.zeros((len(codes), 1, 1, 16), np.float32), stored.pages, reach, scale=1.0)
    expected = np.repeat(codes[:, None].view(dtype).astype(np.float32), 16, axis=1)
    np.testing.assert_array_equal(output.reshape(-1, 16), expected)


def test_kernels_and_caches_name_the_same_elements():
    assert set(NAMES) == set(ELEMENTS)
