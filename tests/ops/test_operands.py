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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["window", "integer", "not True"], {"window": True}),
        (["window", "(1, True)", "(None, None)"], {"window": (1, True)}),
        (["window", "(-1, -1)", "(None, None)"], {"window": (-1, -1)}),
        (["window", "'12'"], {"window": "12"}),
        (["scale", "finite number", "'1'"], {"scale": "1"}),
        (["scale", "finite number", "True"], {"scale": True}),
        (["scale", "finite number", "nan"], {"scale": np.nan}),
        (["scale", "finite number", "inf"], {"scale": -np.inf}),
        (["scale", "finite number", "an array (8,)"], {"scale": np.ones(8)}),
        (["softcap", "positive", "'1'", "None"], {"softcap": "1"}),
        (["softcap", "positive", "True", "None"], {"softcap": True}),
        (["causal", "top_left", "an array (3,)"], {"causal": np.ones(3)}),
        (["causal", "top_left", "[1]"], {"causal": [1]}),
    ],
)
def test_an_option_of_another_type_is_refused_whoever_runs_the_call(
    dtype: Any, words: list[str], options: dict[str, Any]
) -> None:
    refuses(OptionError, words, *(x.astype(dtype) for x in (Q, K, V)), **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("window", [10**30, 2**31, (2**63 - 1, 2**63 - 1), (10**30, None)])
def test_a_window_longer_than_any_text_hides_nothing_on_its_side(dtype: Any, window: Any) -> None:
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    expected = attend(q, k, v, causal=isinstance(window, int))
    assert np.array_equal(attend(q, k, v, window=window), expected)


@pytest.mark.parametrize("lengths", [[True, 1], 5, "57", [2.0, 1], [None, 1]])
@pytest.mark.parametrize("name", ["q_lengths", "kv_lengths"])
def test_lengths_of_another_type_are_refused(name: str, lengths: Any) -> None:
    refuses(ShapeError, [name, "B = 2 integers", repr(lengths)], **{name: lengths})


def test_lengths_may_be_numbers_of_any_library() -> None:
    given: list[Any] = [np.array([5, 3]), [np.int32(5), 3], (5, 3)]
    for lengths in given:
        assert np.array_equal(attend(Q, K, V, kv_lengths=lengths), attend(Q, K, V, kv_lengths=[5, 3]))


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("wrong", [[[1.0]], None, 3.0, "q"])
def test_what_is_no_array_is_refused_by_its_role(position: int, wrong: Any) -> None:
    arrays = [Q, K, V]
    arrays[position] = wrong
    advice = ["np.asarray(" + "qkv"[position]] if isinstance(wrong, list) else []
    axes = "(B, H, T, D)" if position == 0 else "(B, G, S, D)"
    refuses(ShapeError, ["qkv"[position] + " must be an array", axes, repr(wrong), *advice], *arrays)


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_mask_or_bias_of_lists_is_told_how_to_become_an_array(name: str) -> None:
    refuses(
        ShapeError, [f"{name} must be an array", "(B, H, T, S)", f"np.asarray({name})"], **{name: [[True]]}
    )


@pytest.mark.parametrize("wrong", [4, True, "abcdef", ["1"] * H, [True] * H, [None] * H])
@pytest.mark.parametrize("name", ["sinks", "alibi_slopes"])
def test_numbers_per_head_of_another_type_are_refused(name: str, wrong: Any) -> None:
    refuses(ShapeError, [name, "per query head"], **{name: wrong})
