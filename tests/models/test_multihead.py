"""Multi-head attention as a layer: the formula on its own projections, at once or token by token."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkv
import reference
from qkv.errors import OptionError, ShapeError
from qkv.models import CachedMultiHeadAttention, MultiHeadAttention
from qkv.ops.masks import causal_mask

B, T, S = 3, 7, 11
E, H, D = 30, 6, 5
AnyLayer = MultiHeadAttention | CachedMultiHeadAttention


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def text(*shape: int, seed: int = 1) -> np.ndarray:
    return rng(seed).normal(size=shape or (B, T, E))


def with_biases(layer: MultiHeadAttention) -> MultiHeadAttention:
    draw = rng(9)
    layer.b_q, layer.b_k = draw.normal(size=layer.w_q.shape[0]), draw.normal(size=layer.w_k.shape[0])
    layer.b_v, layer.b_o = draw.normal(size=layer.w_v.shape[0]), draw.normal(size=layer.w_o.shape[0])
    return layer


def by_loops(
    layer: MultiHeadAttention, query: np.ndarray, key: np.ndarray, value: np.ndarray, **rules: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Each head's own slice of the projections, then attention by loops, then the output projection."""

    def heads(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, num_heads: int) -> np.ndarray:
        slices = (
            np.split(weight, num_heads),
            np.split(np.zeros(len(weight)) if bias is None else bias, num_heads),
        )
        return np.stack([x @ w.T + b for w, b in zip(*slices, strict=True)], axis=1)

    q = heads(query, layer.w_q, layer.b_q, layer.num_heads)
    k = heads(key, layer.w_k, layer.b_k, layer.num_kv_heads)
    v = heads(value, layer.w_v, layer.b_v, layer.num_kv_heads)
    mixed, weights, _ = reference.attend(q, k, v, **rules)
    joined = np.concatenate(list(mixed.swapaxes(0, 1)), axis=-1)
    return joined @ layer.w_o.T + (0 if layer.b_o is None else layer.b_o), weights


def close(got: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


# Against the formula


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("G", [None, 6, 3, 2, 1])
def test_self_attention_is_the_formula_on_the_layer_s_projections(G: int | None, biased: bool):
    layer = MultiHeadAttention(E, H, G, rng=rng())
    layer = with_biases(layer) if biased else layer
    x = text()
    close(layer(x), by_loops(layer, x, x, x))
    close(layer(x, causal=True), by_loops(layer, x, x, x, causal=True))


@pytest.mark.parametrize("G", [6, 2])
def test_cross_attention_takes_keys_and_values_from_other_texts(G: int):
    layer = with_biases(MultiHeadAttention(E, H, G, rng=rng()))
    query, key, value = text(), text(B, S, E, seed=2), text(B, S, E, seed=3)
    close(layer(query, key, value), by_loops(layer, query, key, value))
    close(layer(query, key), by_loops(layer, query, key, key))
    close(layer(query, key, causal=True), by_loops(layer, query, key, key, causal=True))
    close(layer(query, key, causal="top_left"), by_loops(layer, query, key, key, causal="top_left"))


@pytest.mark.parametrize("shape", [(T, S), (B, 1, 1, S), (B, H, T, S), (1, H, 1, 1)], ids=str)
def test_a_mask_hides_what_is_false(shape: tuple[int, ...]):
    layer = MultiHeadAttention(E, H, 2, rng=rng())
    query, key = text(), text(B, S, E, seed=2)
    mask = rng(5).random(shape) < 0.7
    output, weights = layer(query, key, mask=mask)
    close((output, weights), by_loops(layer, query, key, key, mask=mask))
    assert not weights[~np.broadcast_to(mask, weights.shape)].any()
    np.testing.assert_array_equal(layer(query, key, key, mask)[0], output)


def test_a_mask_and_causal_order_intersect():
    layer = MultiHeadAttention(E, H, rng=rng())
    mask = rng(5).random((T, T)) < 0.7
    close(layer(text(), mask=mask, causal=True), layer(text(), mask=mask & causal_mask(T)))


def test_a_query_that_may_see_nothing_gives_the_output_bias():
    layer = with_biases(MultiHeadAttention(E, H, rng=rng()))
    mask = np.ones((T, T), bool)
    mask[2] = False
    output, weights = layer(text(), mask=mask)
    assert not weights[:, :, 2].any()
    np.testing.assert_array_equal(output[:, 2], np.broadcast_to(layer.b_o, (B, E)))  # type: ignore[arg-type]


def test_two_heads_worked_out_by_hand():
    """Width 2, heads of 1, all weights the identity: head h attends by the products of coordinate h."""
    layer = MultiHeadAttention(2, 2, rng=rng())
    layer.w_q = layer.w_k = layer.w_v = layer.w_o = np.eye(2)
    x = np.array([[[0.0, 2.0], [np.log(3.0), 0.0]]])
    output, weights = layer(x)
    # Token 1, head 0: scores 0 and log(3)^2; token 0, head 1: scores 4 and 0.
    share = 1 / (1 + 3 ** np.log(3.0))
    np.testing.assert_allclose(weights[0, 0], [[0.5, 0.5], [share, 1 - share]])
    near = 1 / (1 + np.exp(-4.0))
    np.testing.assert_allclose(weights[0, 1], [[near, 1 - near], [0.5, 0.5]])
    np.testing.assert_allclose(output[0], [[np.log(3) / 2, 2 * near], [np.log(3) * (1 - share), 1.0]])


# Shapes and types


@pytest.mark.parametrize("num_kv_heads", [None, 8, 2, 1])
def test_eight_heads_of_a_width_of_64_give_their_output_and_weights(num_kv_heads: int | None):
    layer = MultiHeadAttention(d_model=64, num_heads=8, num_kv_heads=num_kv_heads)
    output, weights = layer(text(2, 10, 64))
    assert (output.shape, weights.shape) == ((2, 10, 64), (2, 8, 10, 10))
    np.testing.assert_allclose(weights.sum(-1), 1.0)
    assert layer.w_k.shape == layer.w_v.shape == (8 * (num_kv_heads or 8), 64)


@pytest.mark.parametrize("layer_type", [MultiHeadAttention, CachedMultiHeadAttention])
def test_forward_is_the_call(layer_type: Callable[..., AnyLayer]):
    called, forwarded = layer_type(E, H, rng=rng()), layer_type(E, H, rng=rng())
    close(forwarded.forward(text()), called(text()))


def narrowed(layer: AnyLayer) -> AnyLayer:
    """The same layer with float32 weights."""
    inner = layer.attention if isinstance(layer, CachedMultiHeadAttention) else layer
    for name in ("w_q", "w_k", "w_v", "w_o"):
        setattr(inner, name, getattr(inner, name).astype(np.float32))
    return layer


@pytest.mark.parametrize("layer_type", [MultiHeadAttention, CachedMultiHeadAttention])
def test_float32_stays_float32_and_float64_float64(layer_type: Callable[..., AnyLayer]):
    wide, narrow = layer_type(E, H, 2, rng=rng()), narrowed(layer_type(E, H, 2, rng=rng()))
    expected, got = wide(text()), narrow(text().astype(np.float32))
    assert [part.dtype for part in expected] == [np.float64] * 2
    assert [part.dtype for part in got] == [np.float32] * 2
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_the_same_generator_draws_the_same_weights_and_none_draws_others():
    assert np.array_equal(MultiHeadAttention(E, H, rng=rng()).w_o, MultiHeadAttention(E, H, rng=rng()).w_o)
    assert not np.array_equal(MultiHeadAttention(E, H).w_q, MultiHeadAttention(E, H).w_q)


def test_weights_are_drawn_as_wide_as_glorot_says():
    """Variance 2 / (width in + width out): for 240 in and 80 out, 1/160."""
    layer = MultiHeadAttention(240, 12, 4, rng=rng())
    assert layer.w_k.shape == (80, 240)
    assert layer.w_k.std() == pytest.approx((1 / 160) ** 0.5, rel=0.02)
    assert layer.w_q.std() == pytest.approx((1 / 240) ** 0.5, rel=0.02)
    assert layer.w_k.mean() == pytest.approx(0, abs=2e-3)


def test_inputs_are_never_written():
    x, mask = text(), np.ones((T, T), bool)
    x.flags.writeable = mask.flags.writeable = False
    MultiHeadAttention(E, H, rng=rng())(x, mask=mask)
    CachedMultiHeadAttention(E, H, rng=rng())(x)


def test_both_layers_are_public():
    assert qkv.MultiHeadAttention is MultiHeadAttention
    assert qkv.CachedMultiHeadAttention is CachedMultiHeadAttention


# What is refused


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((30, 7), "num_heads must divide d_model = 30, but is 7"),
        ((30, 0), "num_heads must divide d_model = 30, but is 0"),
        ((30, -6), "num_heads must divide d_model = 30, but is -6"),
        ((30, 6, 4), "num_kv_heads must divide num_heads = 6, but is 4"),
        ((30, 6, 0), "num_kv_heads must divide num_heads = 6, but is 0"),
        ((30, 6, 12), "num_kv_heads must divide num_heads = 6, but is 12"),
        ((30, 6.0), "num_heads must divide d_model = 30, but is 6.0"),
        ((30, 6, True), "num_kv_heads must divide num_heads = 6, but is True"),
    ],
    ids=str,
)
@pytest.mark.parametrize("layer_type", [MultiHeadAttention, CachedMultiHeadAttention])
def test_heads_that_do_not_divide_are_refused(
    layer_type: Callable[..., AnyLayer], sizes: tuple[int, ...], message: str
):
    with pytest.raises(ShapeError, match=message):
        layer_type(*sizes)


@pytest.mark.parametrize("d_model", [-30, 0, 30.0, True, "30"])
@pytest.mark.parametrize("layer_type", [MultiHeadAttention, CachedMultiHeadAttention])
def test_a_width_that_is_no_number_of_columns_is_refused(layer_type: Callable[..., AnyLayer], d_model: Any):
    with pytest.raises(OptionError, match=f"d_model must be .*at least 1, not {d_model!r}"):
        layer_type(d_model, 6)


@pytest.mark.parametrize(
    "wrong", [text(T, E), text(B, T, E + 1), text(B, T, H, D)], ids=["axes", "E", "heads"]
)
def test_a_text_of_another_shape_is_refused_by_role(wrong: np.ndarray):
    layer, x = MultiHeadAttention(E, H, rng=rng()), text()
    for arguments, name in [((wrong,), "query"), ((x, wrong), "key"), ((x, x, wrong), "value")]:
        with pytest.raises(ShapeError, match=rf"{name} must be \(B, positions, E = 30\), not \({len(wrong)}"):
            layer(*arguments)


def test_keys_and_values_of_different_texts_are_refused():
    layer = MultiHeadAttention(E, H, rng=rng())
    with pytest.raises(ShapeError, match="share the key positions S"):
        layer(text(), text(B, S, E), text(B, S + 1, E))
    with pytest.raises(ShapeError, match="share the batch B"):
        layer(text(), text(B + 1, S, E))


def test_a_mask_that_is_not_bool_or_is_ambiguous_is_refused():
    layer = MultiHeadAttention(E, H, rng=rng())
    with pytest.raises(TypeError, match="mask must be bool"):
        layer(text(), mask=np.ones((T, T)))
    with pytest.raises(ShapeError, match="ambiguous"):
        layer(text(), mask=np.ones((B, T, T), bool))


# Weights of another library's layer


def torch_style_state(*, bias: bool = True) -> dict[str, np.ndarray]:
    draw = rng(4)
    state = {"in_proj_weight": draw.normal(size=(3 * E, E)), "out_proj.weight": draw.normal(size=(E, E))}
    if bias:
        state |= {"in_proj_bias": draw.normal(size=3 * E), "out_proj.bias": draw.normal(size=E)}
    return state


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_projection_is_queries_then_keys_then_values(bias: bool):
    state = torch_style_state(bias=bias)
    layer = MultiHeadAttention.from_torch(state, H)
    w_q, w_k, w_v = (state["in_proj_weight"][n * E : (n + 1) * E] for n in range(3))
    for got, expected in [(layer.w_q, w_q), (layer.w_k, w_k), (layer.w_v, w_v)]:
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(layer.w_o, state["out_proj.weight"])
    if bias:
        np.testing.assert_array_equal(layer.b_k, state["in_proj_bias"][E : 2 * E])  # type: ignore[arg-type]
        np.testing.assert_array_equal(layer.b_o, state["out_proj.bias"])  # type: ignore[arg-type]
    else:
        assert layer.b_q is layer.b_k is layer.b_v is layer.b_o is None
    close(layer(text()), by_loops(layer, text(), text(), text()))


@pytest.mark.parametrize(
    ("extra", "lost"),
    [("bias_k", None), ("q_proj_weight", "in_proj_weight"), (None, "out_proj.weight")],
)
def test_a_state_with_more_or_less_than_a_plain_layer_is_refused(extra: str | None, lost: str | None):
    state = torch_style_state()
    if extra is not None:
        state[extra] = np.ones(E)
    if lost is not None:
        del state[lost]
    with pytest.raises(OptionError, match=str(extra or lost)):
        MultiHeadAttention.from_torch(state, H)


def test_a_state_whose_width_its_heads_do_not_divide_is_refused():
    with pytest.raises(ShapeError, match="num_heads must divide d_model = 30, but is 7"):
        MultiHeadAttention.from_torch(torch_style_state(), 7)


# With a memory


@pytest.mark.parametrize("G", [None, 2, 1])
@pytest.mark.parametrize("chunks", [[1] * 7, [7], [3, 3, 1], [2, 5]], ids=str)
def test_token_by_token_is_all_at_once(chunks: list[int], G: int | None):
    layer = CachedMultiHeadAttention(E, H, G, rng=rng())
    x = text()
    whole, whole_weights = layer(x, use_cache=False)
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk
        output, weights = layer(x[:, start:end])
        assert weights.shape == (B, H, chunk, end)
        assert layer.cache.length == end
        np.testing.assert_allclose(output, whole[:, start:end], rtol=0, atol=1e-12)
        np.testing.assert_allclose(weights, whole_weights[:, :, start:end, :end], rtol=0, atol=1e-12)


def test_all_at_once_is_causal_attention():
    layer = CachedMultiHeadAttention(E, H, 3, rng=rng())
    expected = by_loops(layer.attention, text(), text(), text(), causal=True)
    close(layer(text(), use_cache=False), expected)
    close(layer(text()), expected)


def test_without_the_cache_nothing_is_remembered_or_seen():
    layer = CachedMultiHeadAttention(E, H, rng=rng())
    layer(text(B, 3, E, seed=2))
    output, weights = layer(text(), use_cache=False)
    assert weights.shape == (B, H, T, T)
    assert layer.cache.length == 3
    close((output, weights), layer.attention(text(), causal=True))


def test_a_cleared_cache_begins_anew_with_any_batch():
    layer = CachedMultiHeadAttention(E, H, rng=rng())
    first = layer(text())
    layer.clear_cache()
    assert layer.cache.length == 0
    close(layer(text()), first)
    layer.clear_cache()
    assert layer(text(B + 2, T, E))[0].shape == (B + 2, T, E)


def test_another_batch_size_in_mid_text_is_refused_and_forgets_nothing():
    layer = CachedMultiHeadAttention(E, H, rng=rng())
    layer(text()[:, :4])
    for wrong in (B - 1, B + 1, 1):
        with pytest.raises(ShapeError, match=rf"= \({B}, 6, 1, 5\), not \({wrong}, 6, 1, 5\)"):
            layer(text(wrong, 1, E))
    expected, _ = layer(text(), use_cache=False)
    np.testing.assert_allclose(layer(text()[:, 4:])[0], expected[:, 4:], rtol=0, atol=1e-12)


def test_the_cache_holds_the_key_heads_only():
    layer = CachedMultiHeadAttention(E, H, 2, rng=rng())
    layer(text())
    assert layer.cache.shape.num_kv_heads == 2
    # B sequences x 16 slots x (key + value) x 2 key heads x 5 numbers x 8 bytes
    assert layer.cache.nbytes == layer.cache.predict_nbytes(T) == 3 * 16 * 2 * 2 * 5 * 8
