"""Rotary positions are read as the config says them, in either spelling, or refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import CheckpointError
from qkv.models.positions import ROPE_TYPES, RotaryScheme, rotary_scheme

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def scheme(size: int = 8, context_length: int = 97, **config: Any) -> RotaryScheme:
    return rotary_scheme(config, size, context_length)


def frequencies(length: int = 1, **config: Any) -> tuple[float, ...]:
    return scheme(**config).at(length).frequencies


# Spellings


def test_without_a_word_about_positions_the_base_is_ten_thousand():
    np.testing.assert_allclose(frequencies(), [1.0, 0.1, 0.01, 0.001])


def test_the_old_and_the_new_spelling_say_the_same():
    old = frequencies(rope_theta=16.0, rope_scaling={"type": "linear", "factor": 2.0})
    newer = frequencies(rope_theta=16.0, rope_scaling={"rope_type": "linear", "factor": 2.0})
    new = frequencies(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 16.0})
    np.testing.assert_allclose(old, [0.5, 0.25, 0.125, 0.0625])
    assert old == newer == new


def test_the_new_spelling_goes_before_the_old_one():
    new = {"rope_type": "default", "rope_theta": 16.0}
    both = frequencies(rope_theta=81.0, rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=new)
    np.testing.assert_allclose(both, [1.0, 0.5, 0.25, 0.125])


@pytest.mark.parametrize("nothing", [{"rope_scaling": None}, {"rope_parameters": None}, {"rope_scaling": {}}])
def test_null_means_no_scaling(nothing: dict[str, Any]):
    np.testing.assert_allclose(frequencies(rope_theta=16.0, **nothing), [1.0, 0.5, 0.25, 0.125])


@pytest.mark.parametrize("inside", [False, True])
def test_only_the_stated_part_of_a_head_is_turned(inside: bool):
    part: dict[str, Any] = {"partial_rotary_factor": 0.5}
    config: dict[str, Any] = {"rope_parameters": {"rope_type": "default", **part}} if inside else part
    np.testing.assert_allclose(frequencies(**config), [1.0, 0.01])


# Scalings, by values worked out by hand


def test_linear_turns_every_pair_more_slowly():
    np.testing.assert_allclose(
        frequencies(rope_theta=16.0, rope_scaling={"type": "linear", "factor": 8}),
        [0.125, 0.0625, 0.03125, 0.015625],
    )


def test_dynamic_changes_nothing_up_to_the_trained_length_and_then_raises_the_base():
    config = {"rope_theta": 16.0, "rope_scaling": {"type": "dynamic", "factor": 3.0}}
    at = rotary_scheme(config, 4, 10).at
    assert at(1).frequencies == at(10).frequencies == (1.0, 0.25)
    # Twice the length: 3 * 2 - 2 = 4 times, to the power 4 / 2: the base is 16 * 16, its root 16.
    np.testing.assert_allclose(at(20).frequencies, [1.0, 1 / 16])


def test_llama3_keeps_fast_pairs_and_slows_slow_ones():
    plain, scaled = (
        np.array(frequencies(size=64, rope_theta=500000.0, rope_scaling=scaling))
        for scaling in (None, LLAMA3)
    )
    ratios = (scaled / plain).round(6)
    assert ratios[:15].tolist() == [1.0] * 15
    assert ratios[15:18].tolist() == [0.605573, 0.303743, 0.103448]
    assert ratios[18:].tolist() == [0.03125] * 14


def test_yarn_blends_between_kept_and_slowed_pairs_and_magnifies():
    rotary = scheme(rope_scaling=YARN).at(1)
    # Pair 1.09 turns once within 64 positions: the blend goes from pair 0 to pair 2.
    np.testing.assert_allclose(rotary.frequencies, [1.0, 0.1 * (0.5 + 0.5 / 4), 0.01 / 4, 0.001 / 4])
    assert rotary.magnitude == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    ("fields", "magnitude"),
    [
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 0.5}, (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
        ({"mscale": 2.0}, 0.1 * math.log(4) + 1),
        ({"mscale": 0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
        ({"attention_factor": None}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_magnifies_as_its_fields_say(fields: dict[str, Any], magnitude: float):
    assert scheme(rope_scaling=YARN | fields).at(1).magnitude == pytest.approx(magnitude)


def test_yarn_without_a_factor_stretches_to_the_context():
    implied = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    stated = YARN | {"factor": 97 / 64}
    assert scheme(rope_scaling=implied).at(1) == scheme(rope_scaling=stated).at(1)


def test_yarn_counts_turns_within_the_context_if_no_trained_length_is_named():
    unnamed = {"rope_type": "yarn", "factor": 4.0}
    assert scheme(rope_scaling=unnamed).at(1) == scheme(
        rope_scaling=YARN | {"original_max_position_embeddings": 97}
    ).at(1)


def test_yarn_s_blend_is_as_wide_as_its_fields_say():
    wide = scheme(rope_scaling=YARN | {"beta_fast": 64.0, "beta_slow": 0.01, "truncate": False}).at(1)
    # 64 / (0.01 * 2 pi) = 1018.6 turns, its logarithm over that of 10000, times 8 / 2 pairs: 3.0080
    first, last = 0.0, 4 * math.log(64 / (0.01 * 2 * math.pi)) / math.log(10000)
    slowed = [(pair - first) / (last - first) for pair in range(4)]
    np.testing.assert_allclose(
        wide.frequencies, [10.0**-pair * (1 - s + s / 4) for pair, s in enumerate(slowed)]
    )


# Positions that differ per kind of layer


GEMMA_STYLE = {
    "num_hidden_layers": 26,
    "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(26)],
    "head_dim": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    },
}


def test_local_layers_turn_unscaled_and_global_layers_by_their_own_base_and_factor():
    angles = {}
    for layer, kind in enumerate(GEMMA_STYLE["layer_types"]):
        rotary = rotary_scheme(GEMMA_STYLE, 256, 32768, layer_kind=kind).at(801)
        assert len(rotary.frequencies) == 128
        angles.setdefault(tuple(round(800 * f, 4) for f in rotary.frequencies[:2]), []).append(layer)
    assert angles[100.0, 89.7687] == [5, 11, 17, 23]
    assert angles[800.0, 744.4576] == [layer for layer in range(26) if layer % 6 != 5]


def test_positions_that_differ_per_kind_of_layer_are_never_read_as_if_they_did_not():
    with pytest.raises(CheckpointError, match=r"rope_parameters .*full_attention"):
        rotary_scheme(GEMMA_STYLE, 256, 32768)
    with pytest.raises(CheckpointError, match=r"rope_parameters .*full_attention"):
        rotary_scheme(GEMMA_STYLE, 256, 32768, layer_kind="chunked_attention")


def test_one_set_of_parameters_serves_every_kind_of_layer():
    config = {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    for kind in (None, "full_attention", "sliding_attention"):
        assert rotary_scheme(config, 4, 97, layer_kind=kind).at(1).frequencies == (0.5, 0.005)


# What is refused


def refusal(size: int = 8, context_length: int = 97, **config: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        rotary_scheme(config, size, context_length)
    message = str(caught.value)
    assert message.startswith("config.json")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["longrope", "su", "mrope", "LINEAR", ""])
def test_an_unknown_scaling_is_refused_by_name(name: str):
    for spelling in ("type", "rope_type"):
        message = refusal(rope_scaling={spelling: name, "factor": 2.0})
        assert repr(name) in message
        assert all(known in message for known in ROPE_TYPES)


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"type": "linear"}, "factor"),
        ({"type": "dynamic"}, "factor"),
        (LLAMA3 | {"factor": None}, "factor"),
        (LLAMA3 | {"low_freq_factor": None}, "low_freq_factor"),
        (LLAMA3 | {"high_freq_factor": "4"}, "high_freq_factor"),
        (LLAMA3 | {"original_max_position_embeddings": 8192.0}, "original_max_position_embeddings"),
        (YARN | {"factor": 0}, "factor"),
        (YARN | {"beta_fast": -1}, "beta_fast"),
        (YARN | {"mscale": "1", "mscale_all_dim": 1}, "mscale"),
        (YARN | {"truncate": 1}, "truncate"),
        ({"type": "linear", "factor": math.inf}, "factor"),
        ({"type": "linear", "factor": math.nan}, "factor"),
        ({"type": "linear", "factor": 10**400}, "factor"),
        ({"type": "linear", "factor": True}, "factor"),
        ({"rope_type": 3}, "rope_type"),
        ({"rope_type": "default", "rope_theta": -10000.0}, "rope_theta"),
        ([1], "rope_scaling"),
        ("linear", "rope_scaling"),
    ],
    ids=str,
)
def test_a_missing_or_mistyped_field_is_refused_by_name(scaling: Any, field: str):
    assert field in refusal(rope_scaling=scaling)


@pytest.mark.parametrize(
    ("size", "config"),
    [
        (7, {}),
        (8, {"partial_rotary_factor": 0.4}),
        (2, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        (8, {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}),
        (8, {"rope_scaling": YARN, "rope_theta": 1.0}),
        (8, {"rope_scaling": YARN | {"beta_fast": 1e308}}),
        (800, {"rope_theta": 5e-324}),
    ],
    ids=str,
)
def test_fields_that_give_no_frequencies_are_refused(size: int, config: dict[str, Any]):
    assert "rotary" in refusal(size, **config)


def test_more_than_the_whole_head_cannot_be_turned():
    assert "partial_rotary_factor" in refusal(partial_rotary_factor=1.5)


numbers = st.integers(-3, 70) | st.floats() | st.just(10**400)
junk = st.none() | st.booleans() | numbers | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
names = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "rope_theta"]
more_names = ["beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim", "attention_factor"]
parameters = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(ROPE_TYPES)},
    optional=dict.fromkeys([*names, *more_names, "partial_rotary_factor"], numbers | junk),
)


@settings(deadline=None, max_examples=300)
@given(size=st.integers(1, 12), config=parameters, context_length=st.integers(1, 200))
def test_any_parameters_give_frequencies_or_one_kind_of_error(
    size: int, config: dict[str, Any], context_length: int
):
    try:
        rotary = rotary_scheme({"rope_parameters": config}, size, context_length).at(context_length)
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        assert 2 * len(rotary.frequencies) <= size
        assert not any(math.isnan(frequency) for frequency in rotary.frequencies)
