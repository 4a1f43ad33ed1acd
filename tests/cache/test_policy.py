"""What a policy's text promises: it says what it means, in any order, and refuses what contradicts itself."""

import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.cache.elements import ELEMENTS
from qkv.cache.eviction import AFTER_PROMPT, EVICTIONS, Eviction, Scoring
from qkv.cache.layout import PageLayout
from qkv.cache.policy import Policy
from qkv.errors import OptionError

PATTERN = ((True, False), (False, True))

decays = st.floats(0, 1, exclude_min=True)
scorings = st.builds(Scoring, decay=decays) | st.just(Scoring(1.0, by_age=True))
budgets = st.integers(8, 4096)
patterns = st.integers(1, 5).flatmap(
    lambda G: st.lists(st.tuples(*[st.booleans()] * G), min_size=1, max_size=4).map(tuple)
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Draw any policy that may be built."""
    element = draw(st.sampled_from(list(ELEMENTS)))
    names = AFTER_PROMPT if ELEMENTS[element].closes_pages else EVICTIONS
    evictions = st.builds(Eviction, st.sampled_from(names), budgets)
    if "h2o" in names:
        evictions |= st.builds(Eviction, st.just("h2o"), budgets, scorings)
    eviction = draw(st.none() | evictions)
    window = draw(st.none() | st.integers(1, 4096)) if eviction is None else None
    chooses = eviction is not None or window is not None
    return Policy(
        element=element,
        window=window,
        sinks=draw(st.integers(0, 7)) if chooses else 0,
        eviction=eviction,
        heads=draw(st.none() | patterns) if window is not None else None,
        latent=draw(st.booleans()),
        rerotate=draw(st.booleans()) if eviction is not None else False,
        page=draw(st.none() | st.integers(1, 256)),
    )


# Text and value


@given(policies())
def test_a_policy_parses_from_what_it_prints(policy: Policy):
    assert Policy.parse(str(policy)) == policy


@given(policies(), st.randoms())
def test_the_order_of_the_parts_means_nothing(policy: Policy, random: np.random.Generator):
    parts = str(policy).split(",")
    random.shuffle(parts)
    assert Policy.parse(" , ".join(parts)) == policy


@given(st.text(alphabet="int8-kv=,:/0123456789 window sinks h2o heads page", max_size=40) | st.text())
def test_any_text_is_a_policy_or_refused_as_an_option(text: str):
    try:
        policy = Policy.parse(text)
    except OptionError:
        return
    assert Policy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", Policy()),
        ("float32", Policy()),
        ("int8", Policy(element="int8")),
        ("window=1024,sinks=4", Policy(window=1024, sinks=4)),
        ("h2o=512", Policy(eviction=Eviction("h2o", 512, Scoring(decay=0.9)))),
        ("h2o=512:sum", Policy(eviction=Eviction("h2o", 512, Scoring(decay=1)))),
        ("h2o=512:age", Policy(eviction=Eviction("h2o", 512, Scoring(decay=1, by_age=True)))),
        ("h2o=512:decay=0.5", Policy(eviction=Eviction("h2o", 512, Scoring(decay=0.5)))),
        ("int4,snapkv=512,rerotate", Policy("int4", eviction=Eviction("snapkv", 512), rerotate=True)),
        ("heads=10/01,window=8", Policy(window=8, heads=PATTERN)),
        ("fp8-e4m3,latent,page=64", Policy("fp8-e4m3", latent=True, page=64)),
    ],
)
def test_texts_and_the_values_they_mean(text: str, policy: Policy):
    assert Policy.parse(text) == policy


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("sinks=4,window=1024,int8", "int8,window=1024,sinks=4"),
        (" page = 32 ,, bf16, ", "bf16,page=32"),
        ("rerotate,h2o=512:decay=0.9", "h2o=512,rerotate"),
        ("h2o=512:decay=1", "h2o=512:sum"),
        ("streaming=256,sinks=4", "streaming=256"),
        ("streaming=256,sinks=0", "sinks=0,streaming=256"),
        ("sinks=8,streaming=0256", "sinks=8,streaming=256"),
        ("sinks=0", ""),
        ("latent,heads=110,window=9,sinks=2", "window=9,sinks=2,heads=110,latent"),
    ],
)
def test_a_policy_prints_in_one_order_and_without_defaults(text: str, canonical: str):
    assert str(Policy.parse(text)) == canonical


def test_policies_join_with_a_comma():
    for one, other in [
        ("int8", "window=8"),
        ("", "int8"),
        ("window=8,sinks=2", ""),
        ("snapkv=64", "int4,page=8"),
    ]:
        joined = Policy.parse(f"{one},{other}")
        assert joined == Policy.parse(f"{other},{one}")
        wanted = {part for part in (*one.split(","), *other.split(",")) if part}
        assert set(filter(None, str(joined).split(","))) == wanted


def test_a_policy_shows_as_its_text():
    assert repr(Policy.parse("window=8,int8")) == "Policy('int8,window=8')"


def test_policies_are_values():
    assert len({Policy.parse("int8,window=8"), Policy.parse("window=8,int8"), Policy.parse("int8")}) == 2


# What a policy works out


def test_sinks_left_out_are_those_published():
    assert {name: Policy.parse(f"{name}=64").sinks for name in EVICTIONS} == {
        "streaming": 4,
        "h2o": 0,
        "tova": 0,
        "knorm": 0,
        "snapkv": 0,
        "pyramidkv": 0,
        "expected": 4,
    }


def test_the_page_size_is_that_of_the_element_unless_given():
    sizes = {text: Policy.parse(text).page_size for text in ("", "int8", "int8-kivi", "int4", "int4,page=8")}
    assert sizes == {"": 16, "int8": 16, "int8-kivi": 32, "int4": 32, "int4,page=8": 8}


def test_the_window_is_for_pruned_heads_only():
    policy = Policy.parse("window=8,heads=10/01")
    assert [[policy.window_of(layer, head) for head in (0, 1)] for layer in (0, 1)] == [[None, 8], [8, None]]
    one_row = Policy.parse("window=8,heads=011")
    assert [one_row.window_of(layer=5, head=head) for head in range(3)] == [8, None, None]
    assert Policy.parse("window=8").window_of(3, 5) == 8
    assert Policy().window_of(3, 5) is None


@pytest.mark.parametrize(
    ("heads", "L", "G", "fits"),
    [("101", 7, 3, True), ("101/010", 2, 3, True), ("101/010", 3, 3, False), ("101", 7, 2, False)],
)
def test_a_head_pattern_must_fit_the_model(heads: str, L: int, G: int, fits: bool):
    policy = Policy.parse(f"window=8,heads={heads}")
    if fits:
        policy.check_fits(L, G)
    else:
        with pytest.raises(
            OptionError, match=f"heads={heads} has .* takes {G} digits.* in one row or in {L}"
        ):
            policy.check_fits(L, G)


def test_one_row_and_one_digit_are_called_that():
    with pytest.raises(OptionError, match="has 1 row of 3 digits; this model takes 1 digit, one per"):
        Policy.parse("window=8,heads=101").check_fits(2, 1)
    with pytest.raises(OptionError, match="has 2 rows of 1 digit; this model takes 5 digits, one per"):
        Policy.parse("window=8,heads=1/0").check_fits(2, 5)


def test_a_policy_without_a_head_pattern_fits_every_model():
    Policy.parse("int8,window=8").check_fits(3, 5)


def test_evictions_act_at_every_step_or_after_the_prompt():
    acting = {name for name in EVICTIONS if Eviction(name, 64).acts_every_step}
    assert acting == {"streaming", "h2o", "tova", "knorm"}


# Refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int8,fp16", "int8 and fp16 are 2 element types|fp16 and int8 are 2 element types"),
        ("float32,int8", "are 2 element types; a policy has one"),
        ("h2o=64,snapkv=64", "h2o=64 and snapkv=64 are 2 evictions; a policy has one"),
        ("int8,int8", "int8 comes twice"),
        ("latent,latent", "latent comes twice"),
        ("window=8,window=8", "window comes twice"),
        ("window=0", "window must be at least 1, not 0"),
        ("page=0", "page must be at least 1, not 0"),
        ("window=-3", "window takes a whole number in digits, not '-3'"),
        ("window=1e3", "window takes a whole number in digits, not '1e3'"),
        ("window=٣", "window takes a whole number in digits"),
        ("page=" + "9" * 5000, "page takes a whole number"),
        ("window", "window needs a value, as in window=1024"),
        ("window=", "window needs a value"),
        ("latent=1", "latent takes no value, but came as 'latent=1'"),
        ("int8=", "int8 takes no value"),
        ("=8", "no part named ''"),
        ("sinks=4", "sinks=4 stay when others leave, and here all stay; add window=W or an eviction"),
        ("sinks=4,int8,latent", "sinks=4 stay when others leave"),
        ("heads=10", "heads needs window=W"),
        ("heads=10,sinks=2", "heads needs window=W"),
        ("heads=12,window=8", "heads takes rows of 1 .full. and 0 .pruned., as in heads=10/01, not '12'"),
        ("heads=10/1,window=8", "heads takes rows of equally many digits"),
        ("heads=10/,window=8", "heads takes rows of equally many digits"),
        ("heads=/,window=8", "heads takes rows of equally many digits"),
        ("rerotate", "rerotate moves together what an eviction leaves; add one"),
        ("rerotate,window=8,sinks=2", "rerotate moves together what an eviction leaves"),
        ("tova=64,window=8", "tova and window both say which tokens stay; take one of them"),
        ("tova=64,window=8,heads=10", "tova and heads both say which tokens stay"),
        ("tova=0", "tova needs a budget of at least 1 token, not 0"),
        ("tova=8,sinks=8", "tova=8 must be more than the 8 sinks that it includes; raise the budget"),
        ("streaming=4", "streaming=4 must be more than the 4 sinks"),
        ("expected=3", "expected=3 must be more than the 4 sinks"),
        ("h2o=64:max", "h2o adds up by sum, age or decay=FACTOR, as in h2o=512:decay=0.9, not by 'max'"),
        ("h2o=64:decay", "not by 'decay'"),
        ("h2o=64:decay=fast", "not by 'decay=fast'"),
        ("h2o=64:", "not by ''"),
        ("h2o=64:decay=0", "a factor above 0 and at most 1, not 0.0"),
        ("h2o=64:decay=nan", "a factor above 0 and at most 1, not nan"),
        ("h2o=64:decay=1.1", "a factor above 0 and at most 1, not 1.1"),
        ("snapkv=64:sum", "only h2o takes a scoring such as 'sum', not snapkv"),
        (
            "int4,tova=64",
            "tova drops tokens one by one, but keys of int4 share a step .* snapkv, pyramidkv, exp",
        ),
    ],
)
def test_contradictions_are_refused_in_words(text: str, message: str):
    with pytest.raises(OptionError, match=message):
        Policy.parse(text)


@pytest.mark.parametrize("element", ["int8-kivi", "int4"])
@pytest.mark.parametrize("name", EVICTIONS)
def test_a_step_per_channel_goes_with_evictions_after_the_prompt_only(element: str, name: str):
    if name in AFTER_PROMPT:
        Policy.parse(f"{element},{name}=64")
    else:
        with pytest.raises(OptionError, match=f"{name} drops tokens one by one, but keys of {element}"):
            Policy.parse(f"{element},{name}=64")


@pytest.mark.parametrize("name", EVICTIONS)
def test_sinks_combine_with_every_eviction(name: str):
    assert Policy.parse(f"{name}=64,sinks=5").sinks == 5


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("windows=8", "window"),
        ("INT8", "int8"),
        ("int-8", "int8"),
        ("fp8", "fp8-e4m3' or 'fp8-e5m2"),
        ("float16", "float32"),
        ("sink=4", "sinks"),
        ("snap=64", "snapkv"),
        ("pyramid=64", "pyramidkv"),
        ("head=10", "heads"),
        ("kivi", "int8-kivi"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(written: str, meant: str):
    with pytest.raises(OptionError, match=f"no part named {written.split('=')[0]!r}; did you mean '{meant}'"):
        Policy.parse(written)


def test_a_name_like_no_other_is_refused_with_all():
    with pytest.raises(OptionError, match=r"there are float32, .*latent, rerotate, window, .*expected"):
        Policy.parse("zzz")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"element": "int5"}, "no element type is named 'int5'"),
        ({"window": -1}, "window must be at least 1, not -1"),
        ({"window": 8, "sinks": -1}, "sinks must be at least 0, not -1"),
        ({"page": -2}, "page must be at least 1, not -2"),
        ({"window": 8, "heads": ()}, "heads takes rows"),
        ({"window": 8, "heads": ((),)}, "heads takes rows"),
    ],
)
def test_a_value_is_checked_as_its_text_is(fields: dict, message: str):
    with pytest.raises(OptionError, match=message):
        Policy(**fields)


def test_an_eviction_by_an_unknown_name_is_refused():
    with pytest.raises(OptionError, match="no eviction is named 'snapvk'; did you mean 'snapkv'"):
        Eviction("snapvk", 64)  # pyright: ignore[reportArgumentType]


def test_age_and_decay_do_not_go_together():
    with pytest.raises(OptionError, match=r"divided by age or decays \(by 0.9\), not both"):
        Scoring(by_age=True)


# The table


def test_the_table_names_every_part_of_a_policy():
    first_column = re.findall(r"^(\S.*?)(?:  |$)", sys.modules[Policy.__module__].__doc__ or "", re.MULTILINE)
    named = {part.partition("=")[0] for cell in first_column for part in re.split(", ?", cell)}
    assert {*ELEMENTS, *EVICTIONS, "window", "sinks", "heads", "latent", "rerotate", "page"} <= named


@pytest.mark.parametrize(("D", "P"), [(64, 32), (38, 7), (128, 16)])
def test_bytes_per_token_are_those_of_the_table(D: int, P: int):
    table = {
        "float32": 8 * D,
        "fp16": 4 * D,
        "bf16": 4 * D,
        "fp8-e4m3": 2 * D,
        "fp8-e5m2": 2 * D,
        "int8": 2 * D + 8,
        "int8-kivi": 2 * D + 4 + 4 * D / P,
        "int4": D + 4 * -(-D // 32) + 4 * D / P,
    }
    for name in ELEMENTS:
        assert PageLayout(name, P, D, D).nbytes == pytest.approx(P * table[name], abs=1e-6)
