"""Names of heads: where most of the attention lies beyond what even attention would put there."""

import pytest

from qkv.lab.head_labels import CLEAR, MOST, SPREAD, Label, label

EVEN = {"previous": 0.125, "local": 0.5, "first": 0.125, "delimiter": 0.25}


def shares(**given):
    return EVEN | given


def test_the_pattern_that_gains_most_over_even_attention_gives_the_name():
    # 0.5 of even attention is local anyway, so 0.75 there is less than 0.4375 on what divides
    assert label(shares(local=0.625, delimiter=0.6875), EVEN, 0.5) == Label("delimiter", 0.6875, 0.25)
    assert label(shares(first=0.75), EVEN, 0.1) == Label("first", 0.75, 0.125)


@pytest.mark.parametrize(("share", "name"), [(MOST, "previous"), (MOST - 0.01, "local")])
def test_a_local_head_is_called_previous_if_half_of_it_lies_on_the_token_before(share, name):
    assert label(shares(previous=share, local=0.96875), EVEN, 0.2).name == name


@pytest.mark.parametrize(
    ("beyond", "entropy", "name"),
    [
        (CLEAR, 0.5, "first"),
        (CLEAR - 0.01, SPREAD, "diffuse"),
        (CLEAR - 0.01, SPREAD - 0.01, "other"),
    ],
)
def test_without_a_clear_pattern_the_entropy_tells_diffuse_heads_from_others(beyond, entropy, name):
    named = label(shares(first=0.125 + beyond), EVEN, entropy)
    assert named.name == name and named.has_pattern == (name == "first")
