"""Our own cache, planned and then filled: the same bytes, under every policy."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tiny_deepseek
import tiny_models
from qkv import Engine, PlanError, load, new_cache, plan
from qkv.cache.layout import PageLayout
from qkv.cache.policy import Policy
from qkv.errors import OptionError
from qkv.planner.engines.own import Own
from qkv.planner.outcomes import outcome_of
from qkv.planner.sources import find_model
from qkv.planner.strategies import Request

MODEL = {
    **{"model_type": "llama", "hidden_size": 42, "num_hidden_layers": 3, "num_attention_heads": 6},
    **{"num_key_value_heads": 2, "head_dim": 14},
}
"""3 layers of 2 key heads of 14 numbers."""

POLICIES = (
    *("", "fp16", "bf16", "int8", "fp8-e4m3", "fp8-e5m2", "int8-kivi", "int4", "page=1", "int8,page=5"),
    *("window=7", "window=7,sinks=3", "int8,window=9,page=4", "streaming=11", "streaming=11,rerotate"),
    *("h2o=13", "h2o=13:sum", "h2o=13:age", "int8,h2o=13,page=4", "tova=9", "knorm=9"),
    *("snapkv=12", "int4,snapkv=12,page=8", "pyramidkv=16", "expected=12"),
)


@pytest.fixture(scope="module", params=(*tiny_models.FAMILIES, "deepseek_v3"))
def model_and_config(request, tmp_path_factory):
    kind, folder = request.param, tmp_path_factory.mktemp(request.param) / "model"
    write = tiny_deepseek.write_model if kind.startswith("deepseek") else tiny_models.write_model
    folder = write(folder, kind)
    return load(folder), json.loads((folder / "config.json").read_text())


def every_other_head(shape):
    """A policy under which key heads are full and pruned in turns."""
    rows = (range(layer, layer + shape.num_kv_heads) for layer in range(shape.num_layers))
    digits = "/".join("".join(str(place % 2) for place in row) for row in rows)
    return f"heads={digits},window=7,sinks=2,page=4"


def is_possible(policy, model):
    turns = "expected" in policy or "rerotate" in policy
    halves = "int4" in policy and model.cache_shape.head_dim % 2
    return not (turns and model.rotation is None) and not halves


def check_bytes(model_and_config, prompt, new):
    """Fill a cache of every policy with a prompt and some tokens; compare after both."""
    model, config = model_and_config
    policies = (*POLICIES, every_other_head(model.cache_shape))
    for text in filter(partial(is_possible, model=model), policies):
        cache = new_cache(model, text)
        model.next_logits(np.arange(prompt) % 90, cache)
        assert plan(config, context=prompt, cache=text, engine="qkv").bytes == cache.nbytes, text
        for token in range(new):
            model.next_logits([token], cache)
        made = plan(config, context=prompt + new, cache=text, engine="qkv", new_tokens=new)
        assert made.bytes == cache.nbytes, text


def test_a_filled_cache_has_the_bytes_that_were_planned(model_and_config):
    check_bytes(model_and_config, prompt=37, new=6)


@pytest.mark.parametrize("model_and_config", ["qwen2"], indirect=True)
def test_it_has_them_when_tokens_come_one_by_one(model_and_config):
    check_bytes(model_and_config, prompt=1, new=33)


def test_a_page_of_each_key_head_is_counted():
    # 37 tokens are 3 pages of 16 rows of 2 x 14 float32 for each of 3 x 2 key heads.
    assert plan(MODEL, context=37, engine="qkv").bytes == 3 * 6 * 16 * 2 * 14 * 4


def test_a_page_that_is_not_full_is_held_in_float32():
    # 2 pages of 32 tokens in 4 bits and one of 6 tokens on the way, for each of 6 key heads.
    closed, on_the_way = PageLayout("int4", 32, 14, 14).nbytes, PageLayout("float32", 32, 14, 14).nbytes
    assert plan(MODEL, context=70, cache="int4", engine="qkv").bytes == 6 * (2 * closed + on_the_way)
    assert plan(MODEL, context=64, cache="int4", engine="qkv").bytes == 6 * 2 * closed


def test_pages_behind_a_window_are_gone_but_for_those_of_sinks():
    page = 6 * PageLayout("float32", 4, 14, 14).nbytes
    assert plan(MODEL, context=41, cache="window=9,page=4", engine="qkv").bytes == 3 * page
    assert plan(MODEL, context=41, cache="window=9,sinks=5,page=4", engine="qkv").bytes == 5 * page


def test_a_common_beginning_is_held_in_the_same_pages():
    page = 6 * PageLayout("float32", 16, 14, 14).nbytes
    made = plan(MODEL, users=10, context=100, shared_prefix=70, engine="qkv")
    assert made.bytes == (4 + 10 * (7 - 4)) * page


@pytest.mark.parametrize(
    "cache", ["", "int8", "int4", "window=8,page=4", "int8,window=7,sinks=3", "snapkv=12", "pyramidkv=16"]
)
def test_every_length_up_to_the_longest_fits_and_one_more_does_not(cache):
    """The slow twin goes through all lengths."""
    engine, model, request = Own(), find_model(MODEL), Request(users=1, context=60)
    strategy = engine.read(cache, request)
    grown = [engine.demand(model, strategy, replace(request, context=n)).room_per_user for n in range(1, 150)]
    for budget in {size - less for size in grown[:80] for less in (0, 1)}:
        longest = outcome_of(model, engine, strategy, request, budget).longest_context
        assert max(grown[:longest], default=0) <= budget
        assert longest is None or budget < grown[longest]


def test_what_an_eviction_lets_fill_before_it_acts_must_have_room():
    """11 tokens and up to 3 more, in pages of 4: three pages of each key head, and four on the way."""
    page = 6 * PageLayout("float32", 4, 14, 14, tracks=True).nbytes
    made = plan(
        MODEL, context=60, new_tokens=40, cache="streaming=11,page=4", engine="qkv", kv_memory=4 * page
    )
    assert made.fits and (made.bytes, made.chosen.room_per_device) == (3 * page, 4 * page)


def test_what_a_page_takes_until_it_is_full_must_have_room():
    # 64 tokens are two pages in 4 bits for each of 6 key heads; in the step to 64 the second page is there
    # in float32 too.
    full = 6 * 2 * PageLayout("int4", 32, 14, 14).nbytes
    most = full + 6 * PageLayout("float32", 32, 14, 14).nbytes
    made = plan(MODEL, context=64, cache="int4", engine="qkv", kv_memory=most)
    assert (made.bytes, made.chosen.room_per_device, made.users_that_fit, made.longest_context) == (
        *(full, most, 1, 95),
    )
    made = plan(MODEL, context=64, cache="int4", engine="qkv", kv_memory=most - 1)
    assert (made.users_that_fit, made.longest_context) == (0, 63) and not made.fits
    with pytest.raises(PlanError, match="the longest that fits is 63"):
        made.check_fits()


@pytest.mark.parametrize(
    ("cache", "more"),
    [
        *(("snapkv=12", "kept besides"), ("expected=12", "kept besides"), ("pyramidkv=16", "kept besides")),
        *(("h2o=13", "up to a page more"), ("streaming=11", "up to a page more")),
    ],
)
def test_what_is_assumed_of_an_eviction_is_said_where_nobody_says_what_is_generated(cache, more):
    silent, told = (plan(MODEL, context=119, cache=cache, engine="qkv", new_tokens=n) for n in (0, 40))
    (said,) = [warning for warning in silent.warnings if cache in warning]
    assert "after a prompt of all 119 tokens" in said and more in said and "new_tokens=" in said
    assert told.bytes > silent.bytes and not any("new_tokens" in warning for warning in told.warnings)


def test_nothing_is_said_of_generation_where_no_row_evicts():
    assert not any("new_tokens" in warning for warning in plan(MODEL, context=119).warnings)


@pytest.mark.parametrize(
    "cache", ["streaming=13", "h2o=13", "snapkv=13", "pyramidkv=16", "int4", "window=10"]
)
@pytest.mark.parametrize("new", [1, 15])
def test_a_pool_of_the_room_that_was_planned_is_enough_and_a_byte_less_is_not(cache, new, tmp_path):
    """51 tokens held, of which the prompt under an eviction is read in one step."""
    folder, policy = tiny_models.write_model(tmp_path / "model", "qwen2"), f"{cache},page=4"
    model, config = load(folder), json.loads((folder / "config.json").read_text())
    room = plan(config, context=51, new_tokens=new, cache=policy, engine="qkv").chosen.room_per_device
    made = plan(config, context=51, new_tokens=new, cache=policy, engine="qkv", kv_memory=room - 1)
    assert made.users_that_fit == 0 and (made.longest_context or 0) < 51
    for budget in (room, room - 1):
        engine = Engine(model, pool_bytes=budget, policy=policy)
        stream = engine.submit([1] * (51 - new), max_tokens=new + 1, ignore_eos=True)
        engine.run()
        assert stream.finish_reason == ("length" if budget == room else "error"), budget


def test_the_recommended_policy_is_one_the_cache_understands():
    for memory in ("70KiB", "40KiB", "20KiB", "9KiB"):
        outcome = plan(MODEL, users=2, context=64, engine="qkv", kv_memory=memory).recommended.outcome
        if outcome is not None:
            Policy.parse(outcome.strategy.text)
            assert plan(MODEL, 2, 64, cache=outcome.strategy.text, engine="qkv").bytes == outcome.total_bytes


def test_int4_is_not_offered_for_an_odd_head_size():
    odd = {**MODEL, "head_dim": 15}
    texts = [outcome.strategy.text for outcome in plan(odd, context=64, engine="qkv").outcomes]
    assert "int4" not in texts and "int8" in texts
    with pytest.raises(PlanError, match="even head size"):
        plan(odd, context=64, cache="int4", engine="qkv")


@pytest.mark.parametrize("name", ["qwen3.5-27b", "whisper-large-v3"])
def test_a_model_that_qkv_has_no_cache_for_is_refused(name):
    with pytest.raises(PlanError, match="no cache"):
        plan(name, context=64, engine="qkv")


@pytest.mark.parametrize("cache", ["windw=8", "heads=1010,window=8", "int8,int4", "streaming=4"])
def test_a_policy_that_means_nothing_is_the_planners_error(cache):
    with pytest.raises(PlanError):
        plan(MODEL, context=64, cache=cache, engine="qkv")


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("llama-3-8b", "latent"),
        ("llama-3-8b", "int8,streaming=512,rerotate"),
        ("llama-3-8b", "pyramidkv=128,rerotate"),
        ("gpt2", "expected=128"),
        ("gpt2", "streaming=128,rerotate"),
        ("deepseek-v2-lite", "expected=128"),
    ],
)
def test_a_policy_that_no_cache_of_the_model_can_have_is_refused(name, cache):
    with pytest.raises(PlanError):
        plan(name, context=600, cache=cache, engine="qkv")


@pytest.mark.parametrize("model_and_config", ["gpt2", "qwen2", "deepseek_v3"], indirect=True)
@pytest.mark.parametrize(
    "cache", ["latent", "expected=12", "streaming=11,rerotate", "int8,streaming=11,rerotate"]
)
def test_what_a_new_cache_refuses_is_not_planned_and_the_rest_is(model_and_config, cache):
    model, config = model_and_config
    try:
        new_cache(model, cache)
    except OptionError as error:
        with pytest.raises(PlanError) as refused:
            plan(config, context=50, cache=cache, engine="qkv")
        assert str(refused.value) == str(error)
    else:
        assert plan(config, context=50, cache=cache, engine="qkv").bytes > 0
