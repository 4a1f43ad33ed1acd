"""JAX: `jax_attention` against jax.nn.dot_product_attention, and grad and jit through `qkv.attend`."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from qkv.compat import jax_attention
from qkv.ops import attend
from qkv.ops.attention import Attended, attend_by, dense_path
from qkv.ops.tiles import attend_tiled

DTYPES = ["float64", "float32", "float16", "bfloat16"]


def enabling(dtype):
    """Return a context in which JAX has ``dtype``: float64 only where it is switched on."""
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def tolerance(dtype, value):
    """Return how far two computations may be apart, for outputs that are means of ``value``.

    JAX rounds the weights to the input's type, or from float64 to float32, before it mixes.
    """
    unit = max(float(ml_dtypes.finfo(dtype).eps), float(np.finfo(np.float32).eps))
    units = 2 if dtype in ("float16", "bfloat16") else 16
    return units * unit * max(1.0, float(np.abs(np.asarray(value).astype(np.float64)).max()))


def random_call(seed, dtype):
    """Return NumPy arguments in which everything may meet everything.

    There are few shapes, because JAX compiles every operation anew for each.
    """
    rng = np.random.default_rng(seed)
    T, S, G = [(5, 7, 2), (11, 7, 1)][seed % 2]
    B, H, D = 3, 6, 2
    arrays = [rng.standard_normal(s).astype(dtype) for s in ((B, T, H, D), (B, S, G, D), (B, S, G, D))]
    options = {"is_causal": bool(rng.integers(2))}
    full, by_key, by_query = (B, H, T, S), (B, 1, 1, S), (1, H, T, 1)
    if rng.random() < 0.4:
        options["bias"] = rng.standard_normal([full, by_key][rng.integers(2)]).astype(dtype)
    if rng.random() < 0.4:
        options["mask"] = rng.random([full, by_query][rng.integers(2)]) < 0.6
    if rng.random() < 0.4:
        options["scale"] = float(rng.uniform(-1, 1))
    if rng.random() < 0.4:
        options["local_window_size"] = [(2, 1), (0, 0), (4, 0), 1, 3][rng.integers(5)]
    if rng.random() < 0.4:
        options["query_seq_lengths"] = rng.integers(0, T + 1, B).astype(np.int32)
    if rng.random() < 0.4:
        options["key_value_seq_lengths"] = rng.integers(0, S + 1, B).astype(np.int32)
    return arrays, options


def to_jax(options):
    return {n: jnp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}


@pytest.mark.parametrize(
    ("seed", "dtype"), [(seed, dtype) for dtype in DTYPES for seed in range(16 if dtype == "float32" else 4)]
)
def test_same_as_jax_on_its_arrays_and_on_numpy_arrays(seed, dtype):
    arrays, options = random_call(seed, dtype)
    with enabling(dtype):
        in_jax = [jnp.asarray(x) for x in arrays]
        theirs = jax.nn.dot_product_attention(*in_jax, **to_jax(options))
        ours = jax_attention(*in_jax, **to_jax(options))
        in_numpy = jax_attention(*arrays, **options)
        assert isinstance(ours, jax.Array)
        assert isinstance(in_numpy, np.ndarray)
        for result in (ours, in_numpy):
            assert result.dtype == theirs.dtype == dtype
            got, wanted = (np.asarray(x).astype(np.float64) for x in (result, theirs))
            np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance(dtype, arrays[2]))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        {"mask": np.array([[False] * 5, [False, False, False, True, False]])},
        {"mask": np.array([[[False] * 5]])},
        {"key_value_seq_lengths": np.array([0], dtype=np.int32)},
        {"query_seq_lengths": np.array([1], dtype=np.int32)},
        {"local_window_size": (0, 1), "key_value_seq_lengths": np.array([1], dtype=np.int32)},
        {"bias": np.array([[-np.inf] * 5, [-np.inf, 0, 0, 0, 0]])},
        {
            "bias": np.array([[-np.inf] * 5, [-np.inf, 0, 0, 0, 0]]),
            "mask": np.array([[True] * 5, [True] + [False] * 4]),
        },
    ],
    ids=lambda options: "-".join(options),
)
def test_rows_in_which_nothing_may_be_seen_are_those_of_jax(options, dtype):
    arrays = [np.zeros((1, 2, 1, 1)), np.zeros((1, 5, 1, 1)), np.arange(1.0, 6.0).reshape(1, 5, 1, 1)]
    with enabling(dtype):
        arrays = [jnp.asarray(x, dtype=dtype) for x in arrays]
        options = {n: jnp.asarray(x, dtype) if n == "bias" else x for n, x in options.items()}
        both = jax_attention(*arrays, **options), jax.nn.dot_product_attention(*arrays, **options)
        ours, theirs = (np.asarray(x).astype(np.float64) for x in both)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance(dtype, arrays[2]))


def normal(*shapes):
    rng = np.random.default_rng(2)
    return [jnp.asarray(rng.standard_normal(shape), dtype=jnp.float32) for shape in shapes]


@pytest.mark.parametrize("rule", [{}, {"mask": np.arange(35).reshape(5, 7) % 3 > 0}], ids=["plain", "mask"])
def test_batch_axis_may_be_absent_as_in_jax(rule):
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(rng.standard_normal(s), dtype=jnp.float32) for s in ((5, 4, 3), (7, 2, 3), (7, 2, 3))
    )
    theirs = jax.nn.dot_product_attention(q, k, v, **rule)
    ours = jax_attention(q, k, v, **rule)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance("float32", v))


def tiled_path(operands, tile_queries=2, tile_keys=3):
    output, lse = attend_tiled(operands, tile_queries, tile_keys)
    return Attended(output, None, lse)


def heads_first(x):
    return jnp.swapaxes(x, 1, 2)


RULES = {
    "plain": {},
    "causal": {"is_causal": True},
    "lengths": {"key_value_seq_lengths": np.array([4, 7], dtype=np.int32)},
    "mask": {"mask": np.random.default_rng(3).random((2, 1, 5, 7)) < 0.7},
}
OWN_NAMES = {"is_causal": "causal", "key_value_seq_lengths": "kv_lengths", "mask": "mask"}


@pytest.mark.parametrize("path", [dense_path, tiled_path])
@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_those_of_jax(path, rule):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        shapes = (2, 5, 6, 3), (2, 7, 2, 3), (2, 7, 2, 3)
        inputs = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
        weights = jnp.asarray(rng.standard_normal(shapes[0]))
        own_rule = {OWN_NAMES[name]: value for name, value in RULES[rule].items()}
        if rule == "causal":
            own_rule["causal"] = "top_left"

        def ours(q, k, v):
            output = attend_by(path, *(heads_first(x) for x in (q, k, v)), **own_rule).output
            return jnp.sum(heads_first(output) * weights)

        def theirs(q, k, v):
            return jnp.sum(jax.nn.dot_product_attention(q, k, v, **RULES[rule]) * weights)

        own, their = (jax.jit(jax.grad(f, argnums=(0, 1, 2)))(*inputs) for f in (ours, theirs))
        for one, other in zip(own, their, strict=True):
            # JAX's softmax is float32 even here.
            np.testing.assert_allclose(one, other, rtol=0, atol=5e-6)


@pytest.mark.parametrize("path", [dense_path, tiled_path])
def test_gradients_are_the_slopes_of_attend(path):
    """In full float64, against central differences, with everything the operator has."""
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        inputs = [jnp.asarray(rng.standard_normal(s)) for s in ((1, 2, 3, 2), (1, 1, 5, 2), (1, 1, 5, 2))]
        mask = jnp.asarray([[False] * 5, [True] * 5, [True, False, True, True, False]])

        @jax.jit
        def total(q, k, v):
            options = {"mask": mask, "softcap": 0.9, "window": (4, 1), "sinks": jnp.asarray([0.3, -0.2])}
            return jnp.sum(jnp.sin(attend_by(path, q, k, v, **options).output))

        for which, gradient in enumerate(jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*inputs)):
            for index in itertools.product(*map(range, gradient.shape)):
                moved = [[*inputs], [*inputs]]
                for side, step in enumerate((1e-6, -1e-6)):
                    moved[side][which] = inputs[which].at[index].add(step)
                slope = (total(*moved[0]) - total(*moved[1])) / 2e-6
                np.testing.assert_allclose(gradient[index], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("causal", [True, "top_left"])
def test_attend_compiles(causal):
    rng = np.random.default_rng(2)
    q, k, v = (
        jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((2, 6, 5, 3), (2, 2, 7, 3), (2, 2, 7, 3))
    )
    compiled = jax.jit(functools.partial(attend, causal=causal))
    np.testing.assert_allclose(compiled(q, k, v), attend(q, k, v, causal=causal), rtol=0, atol=2e-6)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"local_window_size": (1, 2)}], ids=str)
def test_jax_attention_compiles(options):
    rng = np.random.default_rng(2)
    q, k, v = (
        jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((2, 5, 6, 3), (2, 7, 2, 3), (2, 7, 2, 3))
    )
    compiled = jax.jit(functools.partial(jax_attention, **options))
    np.testing.assert_allclose(compiled(q, k, v), jax_attention(q, k, v, **options), rtol=0, atol=2e-6)


def test_float64_stays_switched_off():
    assert not jax.config.jax_enable_x64
