"""What `attend` refuses, and the words it uses."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkv.errors import OptionError, ShapeError
from qkv.ops import attend

B, H, G, T, S, D = 2, 6, 3, 5, 7, 11
Q, K, V = np.ones((B, H, T, D)), np.ones((B, G, S, D)), np.ones((B, G, S, D))


def refuses(
    error: type[Exception], words: list[str], q: Any = Q, k: Any = K, v: Any = V, **options: Any
) -> None:
    """Check the type, that the message is one line, and that it has each of the words."""
    with pytest.raises(error) as caught:
        attend(q, k, v, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_axes_that_do_not_fit_are_named_with_what_came():
    refuses(ShapeError, ["head size D", "(2, 6, 5, 10)"], q=Q[..., :10])
    refuses(ShapeError, ["head size D", "at least 1"], q=Q[..., :0], k=K[..., :0])
    refuses(ShapeError, ["key positions S", "(2, 3, 6, 11)"], v=V[:, :, :6])
    refuses(ShapeError, ["key heads G", "v (2, 1, 7, 11)"], v=V[:, :1])
    refuses(ShapeError, ["batch B", "q (1, 6, 5, 11)"], q=Q[:1])
    refuses(ShapeError, ["2, 3 or 4 axes", "(6, 5, 11)"], q=Q[0])
    refuses(ShapeError, ["2, 3 or 4 axes", "(11,)"], q=Q[0, 0, 0], k=K[0, 0, 0], v=V[0, 0, 0])


@pytest.mark.parametrize("num_key_heads", [4, 0, 12])
def test_query_heads_must_be_a_multiple_of_key_heads(num_key_heads):
    kv = np.ones((B, num_key_heads, S, D))
    refuses(ShapeError, ["H = 6", f"G = {num_key_heads}", "multiple"], k=kv, v=kv)
    assert issubclass(ShapeError, ValueError)


@pytest.mark.parametrize("dtype", [np.int64, np.complex128, np.bool_, ml_dtypes.float8_e5m2])
def test_only_floats_of_16_bits_or_more_are_taken(dtype):
    name = np.dtype(dtype).name
    refuses(TypeError, ["float32", "bfloat16", name, "convert"], *(x.astype(dtype) for x in (Q, K, V)))


def test_one_dtype_for_all_three():
    refuses(TypeError, ["float64", "float32", "convert"], k=K.astype(np.float32))
    refuses(TypeError, ["float16", "bfloat16"], *(Q.astype(ml_dtypes.bfloat16), K.astype(np.float16), V))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_a_mask_that_is_not_bool_is_told_where_it_belongs(dtype):
    refuses(TypeError, ["bool", np.dtype(dtype).name, "bias=", ".astype(bool)"], mask=np.ones((T, S), dtype))


def test_a_bool_or_integer_bias_is_told_where_it_belongs():
    refuses(TypeError, ["bias", "floating", "mask="], bias=np.ones((T, S), bool))
    refuses(TypeError, ["bias", "int64"], bias=np.ones((T, S), int))


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_three_axes_are_ambiguous_and_others_must_broadcast(name):
    dtype = bool if name == "mask" else float
    refuses(ShapeError, [name, "ambiguous", "[:, None]", "[None]"], **{name: np.ones((B, T, S), dtype)})
    for shape in [(T,), (S, T), (H, B, T, S), (B, G, T, S), (1, B, H, T, S), (T, S + 1)]:
        refuses(ShapeError, [name, "(2, 6, 5, 7)", str(shape)], **{name: np.ones(shape, dtype)})


@pytest.mark.parametrize("window", [0, -1, (-1, 0), (0, -2)])
def test_a_window_that_shows_nothing_is_refused(window):
    refuses(OptionError, ["window", "None"], window=window)


@pytest.mark.parametrize("window", [2.0, "3", (1, 2, 3)])
def test_a_window_of_another_kind_is_refused(window):
    refuses(OptionError, ["window", "integer", "(left, right)", repr(window)], window=window)


@pytest.mark.parametrize("causal", ["bottom_right", "yes", None, 2])
def test_an_unknown_causal_order_is_refused(causal):
    refuses(OptionError, ["causal", "top_left", repr(causal)], causal=causal)


@pytest.mark.parametrize("softcap", [0, -1.0, np.nan, np.inf])
def test_a_cap_that_caps_nothing_is_refused(softcap):
    refuses(OptionError, ["softcap", "positive", str(softcap), "None"], softcap=softcap)


@pytest.mark.parametrize("name", ["sinks", "alibi_slopes"])
def test_numbers_per_head_are_as_many_as_query_heads(name):
    refuses(ShapeError, [name, "(6,)", "(3,)"], **{name: np.ones(G)})
    refuses(ShapeError, [name, "(6,)", "(1, 6)"], **{name: np.ones((1, H))})


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3], [-1, 2], [2, 8], [2.5, 1]])
@pytest.mark.parametrize("name", ["q_lengths", "kv_lengths"])
def test_lengths_are_one_whole_number_per_row_within_the_axis(name, lengths):
    refuses(ShapeError, [name, "B = 2", str(lengths)], **{name: lengths})
