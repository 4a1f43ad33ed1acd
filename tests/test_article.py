"""The four demonstrations of the article that docs/article.md is about, as promises of qkv."""

import re
from pathlib import Path

import numpy as np
import pytest

from qkv import (
    CachedMultiHeadAttention,
    MultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention,
    softmax,
)
from qkv.cache.contiguous import CacheShape

DOCS = Path(__file__).parents[1] / "docs"

FORMULA_WEIGHTS = [
    [0.235, 0.264, 0.246, 0.255],
    [0.257, 0.235, 0.244, 0.265],
    [0.268, 0.243, 0.254, 0.235],
    [0.242, 0.259, 0.248, 0.251],
]
CAUSAL_WEIGHTS = [
    [1.000, 0.000, 0.000, 0.000],
    [0.828, 0.172, 0.000, 0.000],
    [0.702, 0.131, 0.166, 0.000],
    [0.178, 0.492, 0.201, 0.130],
]
PRINTED_FORMULA_WEIGHTS = [
    [0.274, 0.238, 0.249, 0.239],
    [0.251, 0.263, 0.243, 0.243],
    [0.248, 0.241, 0.268, 0.243],
    [0.243, 0.239, 0.248, 0.270],
]
PRINTED_CAUSAL_WEIGHTS = [
    [1.000, 0.000, 0.000, 0.000],
    [0.572, 0.428, 0.000, 0.000],
    [0.318, 0.381, 0.301, 0.000],
    [0.274, 0.238, 0.249, 0.239],
]
ROUNDED = 0.0005
"""Half a unit of the third decimal."""

SEEDS = range(2000)


def formula_operands(seed):
    """Queries, keys and values of four tokens: block 1's draws, in its order."""
    random = np.random.RandomState(seed)
    tokens = random.randn(4, 8)
    return [tokens @ (0.1 * random.randn(8, 8)) for _ in range(3)]


def causal_operands(seed):
    """Queries and keys of block 2; it has no values."""
    random = np.random.RandomState(seed)
    return random.randn(4, 8), random.randn(4, 8)


# Block 1: the formula


def test_formula_gives_the_weights_of_seed_42():
    output, weights = scaled_dot_product_attention(*formula_operands(42))
    assert output.shape == (4, 8)
    np.testing.assert_allclose(weights, FORMULA_WEIGHTS, atol=ROUNDED, rtol=0)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-15)


def test_formula_by_hand():
    # Scores 0 and 2 ln 3 / sqrt(4) = ln 3, so weights 1/4 and 3/4 of the values 8 and 16.
    query, keys = np.array([[2.0, 0, 0, 0]]), np.array([[0.0, 5, 5, 5], [np.log(3), 7, 7, 7]])
    output, weights = scaled_dot_product_attention(query, keys, np.array([[8.0], [16.0]]))
    np.testing.assert_allclose(weights, [[0.25, 0.75]], rtol=1e-15)
    np.testing.assert_allclose(output, [[14.0]], rtol=1e-15)


def test_no_small_seed_gives_the_printed_weights():
    q, k, v = (np.stack(array)[:, None] for array in zip(*map(formula_operands, SEEDS), strict=True))
    _, weights = scaled_dot_product_attention(q, k, v)
    assert np.abs(weights[:, 0] - PRINTED_FORMULA_WEIGHTS).max(axis=(1, 2)).min() > 0.014

    q, k = (np.stack(array)[:, None] for array in zip(*map(causal_operands, SEEDS), strict=True))
    _, weights = scaled_dot_product_attention(q, k, k, causal=True)
    assert np.abs(weights[:, 0] - PRINTED_CAUSAL_WEIGHTS).max(axis=(1, 2)).min() > 0.06


def test_a_token_favours_itself_only_by_chance_unless_queries_are_keys():
    def share_on_own_token(q, k):
        _, weights = scaled_dot_product_attention(q[:, None], k[:, None], k[:, None])
        return (weights.argmax(axis=-1) == np.arange(4)).mean()

    q, k, _ = (np.stack(array) for array in zip(*map(formula_operands, SEEDS), strict=True))
    assert abs(share_on_own_token(q, k) - 0.25) < 0.02
    assert abs(share_on_own_token(q, q) - 0.88) < 0.02
    assert share_on_own_token(q[42:43], k[42:43]) == 0


def test_dividing_by_the_root_of_d_brings_score_variance_to_one():
    random = np.random.default_rng(0)
    for D in (64, 128):
        q, k = random.normal(size=(1009, D)), random.normal(size=(1013, D))
        assert abs((q @ k.T).var() / D - 1) < 0.05
    # The elements must be independent: with k = q every score is about D, and not spread around 0.
    assert abs((q * q).sum(axis=-1).mean() / D - 1) < 0.05


def test_unscaled_softmax_saturates_yet_its_gradient_is_not_smaller_at_128_keys():
    random = np.random.default_rng(0)
    q, k = random.normal(size=(503, 1, 64)), random.normal(size=(503, 128, 64))
    raw = (q * k).sum(axis=-1)
    grown, kept = softmax(raw), softmax(raw / 8)
    assert grown.max(axis=-1).mean() > 0.7
    assert kept.max(axis=-1).mean() < 0.1
    assert jacobian_norm(grown).mean() > 1.3 * jacobian_norm(kept).mean()


def test_unscaled_softmax_has_the_smaller_gradient_at_four_keys():
    random = np.random.default_rng(0)
    raw = (random.normal(size=(503, 1, 64)) * random.normal(size=(503, 4, 64))).sum(axis=-1)
    assert np.median(jacobian_norm(softmax(raw))) < 0.1 * np.median(jacobian_norm(softmax(raw / 8)))


def jacobian_norm(p):
    """||diag(p) - p p^T||, the Frobenius norm of softmax's derivative."""
    return np.linalg.norm(p[..., None] * np.eye(p.shape[-1]) - p[..., None] * p[..., None, :], axis=(-2, -1))


# Block 2: the causal mask


def test_causal_mask_is_lower_triangular():
    mask = causal_mask(4)
    assert mask.dtype == bool
    assert mask.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_causal_mask_gives_the_weights_of_seed_42():
    q, k = causal_operands(42)
    _, weights = scaled_dot_product_attention(q, k, k, causal_mask(4))
    np.testing.assert_allclose(weights, CAUSAL_WEIGHTS, atol=ROUNDED, rtol=0)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-15)
    assert np.all(weights[~causal_mask(4)] == 0)


def test_hiding_gives_what_a_score_of_minus_a_billion_gives():
    q, k = causal_operands(42)
    _, weights = scaled_dot_product_attention(q, k, k, causal_mask(4))
    np.testing.assert_allclose(
        weights, softmax(np.where(causal_mask(4), q @ k.T / np.sqrt(8), -1e9)), atol=1e-15
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_token_that_may_see_nothing_gets_nothing(dtype):
    q, k = (x.astype(dtype) for x in causal_operands(42))
    mask = causal_mask(4)
    mask[1] = False
    output, weights = scaled_dot_product_attention(q, k, k, mask)
    assert output.dtype == dtype
    assert np.all(weights[1] == 0)
    assert np.all(output[1] == 0)
    # Minus a billion, if anything, makes such a token attend to all alike.
    assert softmax(np.full(4, -1e9)).tolist() == [0.25] * 4


# Block 3: heads


def test_heads_have_the_shapes_of_the_demonstration():
    layer = MultiHeadAttention(d_model=64, num_heads=8, rng=np.random.default_rng(42))
    x = np.random.RandomState(42).randn(2, 10, 64)
    output, weights = layer.forward(x, x, x)
    assert output.shape == (2, 10, 64)
    assert weights.shape == (2, 8, 10, 10)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-14)


def test_heads_that_ask_nothing_average_by_hand():
    layer = MultiHeadAttention(d_model=6, num_heads=3, rng=np.random.default_rng(42))
    layer.w_q[:] = 0
    layer.w_v[:] = layer.w_o[:] = np.eye(6)
    x = np.arange(30.0).reshape(1, 5, 6)
    output, weights = layer.forward(x, x, x)
    np.testing.assert_allclose(weights, np.full((1, 3, 5, 5), 0.2), rtol=1e-15)
    np.testing.assert_allclose(output, np.broadcast_to([12.0, 13, 14, 15, 16, 17], (1, 5, 6)), rtol=1e-14)


def test_heads_differ_before_anything_is_learned():
    layer = MultiHeadAttention(d_model=64, num_heads=8, rng=np.random.default_rng(42))
    x = np.random.RandomState(42).randn(2, 10, 64)
    _, weights = layer.forward(x, x, x)
    disagreement = np.abs(weights[0, 0] - weights[0, 4]).sum(axis=-1).mean() / 2
    assert 0.4 < disagreement < 0.55


def test_xavier_weights_keep_scores_at_variance_one_and_block_4_weights_at_four():
    def score_variance(gain):
        variances = []
        for seed in range(7):
            layer = MultiHeadAttention(d_model=128, num_heads=8, rng=np.random.default_rng(seed))
            layer.w_q *= gain
            layer.w_k *= gain
            q, k, _ = layer.project_heads(np.random.default_rng(seed + 100).normal(size=(1, 211, 128)))
            variances.append((q @ k.swapaxes(-1, -2) / np.sqrt(16)).var())
        return np.mean(variances)

    assert abs(score_variance(1.0) - 1) < 0.1
    assert abs(score_variance(np.sqrt(2)) - 4) < 0.4  # sqrt(2/E) in place of sqrt(2/(E+E))


# Block 4: the KV cache


@pytest.fixture
def layer():
    return CachedMultiHeadAttention(128, 8, rng=np.random.default_rng(0))


@pytest.fixture
def tokens():
    """A hundred tokens in the layout of the demonstration: ``(100, 1, E)``."""
    return np.random.RandomState(0).randn(100, 1, 128)


def run_through_cache(layer, text):
    """One token at a time: ``(1, T, E)``."""
    layer.clear_cache()
    return np.concatenate([layer.forward(text[:, t : t + 1])[0] for t in range(text.shape[1])], axis=1)


def test_tokens_laid_out_as_a_batch_see_only_themselves(layer, tokens):
    cached = run_through_cache(layer, tokens.swapaxes(0, 1))
    for i in (0, 1, 6, 99):
        output, weights = layer.forward(tokens[: i + 1], use_cache=False)
        assert weights.shape == (i + 1, 8, 1, 1)
        assert np.all(weights == 1)
        difference = np.abs(output[-1, 0] - cached[0, i]).max()
        assert difference < 1e-12 if i == 0 else difference > 1


def test_one_text_computed_at_once_agrees_with_the_cache(layer, tokens):
    text = tokens.swapaxes(0, 1)
    cached = run_through_cache(layer, text)
    for n in (1, 2, 7, 100):
        whole, weights = layer.forward(text[:, :n], use_cache=False)
        assert weights.shape == (1, 8, n, n)
        np.testing.assert_allclose(cached[:, :n], whole, atol=1e-12, rtol=0)


def test_prefill_through_the_cache_puts_nothing_on_the_future(tokens):
    unmasked = []
    for seed in range(20):
        layer = CachedMultiHeadAttention(128, 8, rng=np.random.default_rng(seed))
        prompt = tokens[10 * (seed % 10) :][:10].swapaxes(0, 1)
        _, weights = layer.forward(prompt)
        assert weights.shape == (1, 8, 10, 10)
        assert np.all(np.triu(weights, 1) == 0)
        _, weights = layer.attention.forward(prompt)
        unmasked.append(np.triu(weights, 1).sum() / weights.sum())
    # Without a mask it would be near (T - 1) / 2T, the share of slots above the diagonal.
    assert abs(np.mean(unmasked) - 0.45) < 0.03


def test_prefill_and_decode_through_the_cache_agree_with_one_by_one(layer, tokens):
    text = tokens.swapaxes(0, 1)
    expected = run_through_cache(layer, text[:, :23])
    layer.clear_cache()
    prefilled, _ = layer.forward(text[:, :10])
    decoded = [layer.forward(text[:, t : t + 1])[0] for t in range(10, 23)]
    np.testing.assert_allclose(np.concatenate([prefilled, *decoded], axis=1), expected, atol=1e-12, rtol=0)


# What docs/article.md says in numbers


KV_ROW = re.compile(r"^\| (?P<model>[^|]+) \|(?P<cells>(?: [\d.,]+ \|){8})$", re.MULTILINE)


@pytest.mark.parametrize("page", ["article.md", "article.zh-CN.md"])
def test_the_table_of_kv_sizes_is_what_the_cache_counts(page):
    rows = list(KV_ROW.finditer((DOCS / page).read_text(encoding="utf-8")))
    assert len(rows) >= 10
    assert any("LLaMA 3 8B" in row["model"] for row in rows)
    for row in rows:
        cells = [float(cell.replace(",", "")) for cell in row["cells"].split("|")[:-1]]
        L, H, G, D, token_bytes, token_kib, gib, gb = cells
        counted = CacheShape(int(L), int(G), int(D), np.float16).bytes_per_token
        assert token_bytes == counted, row["model"]
        assert token_kib == counted / 1024, row["model"]
        assert gib == pytest.approx(counted * 4096 / 2**30, abs=ROUNDED), row["model"]
        assert gb == pytest.approx(counted * 4096 / 1e9, abs=ROUNDED), row["model"]
        assert H % G == 0, row["model"]


def test_a_hundred_users_of_llama_3_8b_at_4k_need_50_gib():
    token_bytes = CacheShape(num_layers=32, num_kv_heads=8, head_dim=128, dtype=np.float16).bytes_per_token
    assert token_bytes == 128 * 1024
    assert 100 * 4096 * token_bytes == 50 * 2**30 == 53_687_091_200


@pytest.mark.parametrize("page", ["article.md", "article.zh-CN.md"])
def test_the_page_quotes_the_weights_that_come_out(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    for expected in (FORMULA_WEIGHTS, PRINTED_FORMULA_WEIGHTS, CAUSAL_WEIGHTS, PRINTED_CAUSAL_WEIGHTS):
        assert quoted(expected) in text


def quoted(weights):
    """``.235 .264 / ...``, three decimals, zeros above the diagonal left out."""
    rows = [[f"{w:.3f}".lstrip("0") for w in row if w > 0] for row in weights]
    return " / ".join(" ".join(row) for row in rows).replace("1.000", "1")
