"""Both forms of latent attention compute the same thing, the one the equations say."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

import reference
from qkv import attend
from qkv.ops.latent import AbsorbedWeights, attend_absorbed, attend_up_projected
from qkv.ops.projection import prepare


class Operands:
    """Random queries, latents with rotated parts, and a W_KV; scores of about 1."""

    def __init__(self, B: int, H: int, T: int, S: int, *, nope: int, rope: int, value: int, latent: int):
        rng = np.random.default_rng(B * T + S)
        self.q_nope, self.q_rope = rng.normal(size=(B, H, T, nope)), rng.normal(size=(B, H, T, rope))
        self.keys = rng.normal(size=(B, 1, S, latent + rope))
        self.w_kv = rng.normal(scale=latent**-0.5, size=(H * (nope + value), latent))
        self.scale = (nope + rope) ** -0.5

    def both(self, dtype: DTypeLike, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        attend_as_told = partial(attend, scale=self.scale, **options)
        arrays = self.q_nope, self.q_rope, self.keys, self.w_kv
        q_nope, q_rope, keys, w_kv = (array.astype(dtype) for array in arrays)
        weights = AbsorbedWeights.of(w_kv, q_nope.shape[1], q_nope.shape[-1])
        if dtype == np.float32:
            weights, w_kv = weights.prepared(), prepare(w_kv)
        return (
            attend_absorbed(q_nope, q_rope, keys, weights, attend_as_told),
            attend_up_projected(q_nope, q_rope, keys, w_kv, attend_as_told),
        )

    def by_loops(self, **options: Any) -> np.ndarray:
        """Attention to every head's own keys and values: (B, H, T, value)."""
        (B, H, _, nope), S, rope = self.q_nope.shape, self.keys.shape[2], self.q_rope.shape[-1]
        latents, k_rope = self.keys[:, 0, :, :-rope], self.keys[:, 0, :, -rope:]
        k, v = np.zeros((B, H, S, nope + rope)), np.zeros((B, H, S, len(self.w_kv) // H - nope))
        for b, h, s in np.ndindex(B, H, S):
            up = np.split(self.w_kv, H)[h] @ latents[b, s]
            k[b, h, s], v[b, h, s] = [*up[:nope], *k_rope[b, s]], up[nope:]
        q = np.concatenate([self.q_nope, self.q_rope], axis=-1)
        return reference.attend(q, k, v, **options)[0]


@pytest.mark.parametrize(("dtype", "atol"), [(np.float64, 1e-13), (np.float32, 1e-5)])
def test_both_forms_are_the_equations_in_loops(dtype: DTypeLike, atol: float):
    operands = Operands(2, 3, 5, 13, nope=7, rope=4, value=11, latent=17)
    expected = operands.by_loops(causal=True)
    assert expected.shape == (2, 3, 5, 11)
    for output in operands.both(dtype, causal=True):
        assert output.dtype == dtype
        np.testing.assert_allclose(output, expected, rtol=0, atol=atol)


@given(
    B=st.integers(1, 3),
    H=st.integers(1, 5),
    T=st.integers(1, 7),
    behind=st.integers(0, 20),
    nope=st.integers(1, 11),
    rope=st.integers(1, 3).map(lambda pairs: 2 * pairs),
    value=st.integers(1, 11),
    latent=st.integers(1, 13),
)
def test_absorbed_is_up_projected(B: int, H: int, T: int, behind: int, **sizes: int):
    absorbed, up_projected = Operands(B, H, T, T + behind, **sizes).both(np.float32, causal=True)
    assert absorbed.shape == (B, H, T, sizes["value"])
    np.testing.assert_allclose(absorbed, up_projected, rtol=0, atol=1e-5)


def test_absorbed_is_up_projected_in_published_sizes_and_under_padding():
    operands = Operands(2, 16, 5, 129, nope=128, rope=64, value=128, latent=512)
    absorbed, up_projected = operands.both(np.float32, causal=True, q_lengths=[5, 3], kv_lengths=[129, 67])
    np.testing.assert_allclose(absorbed, up_projected, rtol=0, atol=1e-5)


def test_two_tokens_worked_out_by_hand():
    """W_UK = 2, W_UV = [3, -1] on latents of one number; two keys score 0 and ln 3, by c and by k_R."""
    q_nope, q_rope = np.ones((1, 1, 1, 1), np.float32), np.array([[[[1, 5]]]], np.float32)
    w_kv = np.array([[2], [3], [-1]], np.float32)
    keys = np.array([[[[8, -16, 0], [4, np.log(3) - 8, 0]]]], np.float32)
    attend_plainly = partial(attend, scale=1.0)
    absorbed = attend_absorbed(q_nope, q_rope, keys, AbsorbedWeights.of(w_kv, 1, 1), attend_plainly)
    up_projected = attend_up_projected(q_nope, q_rope, keys, w_kv, attend_plainly)
    # The mixed latent is 8/4 + 4 * 3/4 = 5.
    for output in (absorbed, up_projected):
        np.testing.assert_allclose(output, [[[[15, -5]]]], rtol=1e-6)


def test_each_head_has_rows_of_its_own():
    """Two heads, one number of each kind: rows are W_UK_1, W_UV_1, W_UK_2, W_UV_2."""
    w_kv = np.array([[1], [10], [2], [20]], np.float32)
    q = np.ones((1, 2, 1, 1), np.float32)
    seen = []

    def watch(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        seen.append((q[0, :, 0].tolist(), k.shape, v.shape))
        return np.ones((1, 2, 1, 1), np.float32)

    output = attend_absorbed(
        q, np.zeros((1, 2, 1, 2), np.float32), np.ones((1, 1, 4, 3)), AbsorbedWeights.of(w_kv, 2, 1), watch
    )
    assert seen == [([[1, 0, 0], [2, 0, 0]], (1, 1, 4, 3), (1, 1, 4, 1))]
    assert output.ravel().tolist() == [10, 20]
