"""What a plan promises: the article's figures, what fits, what to take, and that it never says too little."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv import PlanError, plan
from qkv.planner import LayerGroup, ModelMemory, find_model
from qkv.planner.engines import ENGINES
from qkv.planner.speed import prefill_operations

GIB = 2**30
LOCAL = ModelMemory(
    "local", "gemma3_text", (LayerGroup(22, 1, 256, 256, "sliding", 512), LayerGroup(4, 1, 256, 256))
)
"""26 layers of one key head of 256 numbers, 22 of which see 512 tokens."""


def test_100_users_of_4096_tokens_are_50_gib_and_not_50_gb():
    made = plan("llama-3-8b", users=100, context=4096)
    assert made.bytes == 2 * 32 * 8 * 128 * 2 * 4096 * 100 == 53_687_091_200
    assert made.bytes / GIB == 50.0
    assert round(made.bytes / 1e9, 2) == 53.69


def test_every_factor_of_the_product_is_named():
    (term,) = plan("llama-3-8b", context=1).terms
    assert term.factors == (
        (2, "keys and values"),
        (32, "layers"),
        (8, "key heads"),
        (128, "numbers"),
        (2, "bytes"),
    )
    assert term.bytes_per_token == plan("llama-3-8b", context=1).bytes_per_token == 131_072


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "gemma-3-27b", "deepseek-v3", "qwen3-next-80b-a3b", "whisper-large-v3"]
)
@pytest.mark.parametrize("cache", ["", "int8", "int4", "q8_0"])
def test_the_terms_add_up_to_the_bytes_of_one_token(name, cache):
    model = find_model(name)
    made = plan(model, context=1, cache=cache)
    cross = sum(g.count for g in model.layers if g.source_tokens)
    if not cross:
        assert made.bytes == made.bytes_per_token + model.state_bytes


@pytest.mark.parametrize(
    ("name", "times"),
    {
        **{"llama-3-8b": 4, "llama-3-70b": 8, "llama-3.2-3b": 3, "qwen3-0.6b": 2, "gemma-2-9b": 2},
        **{"qwen2.5-7b": 7, "llama-3.1-405b": 16, "falcon-7b": 71},
    }.items(),
)
def test_grouped_heads_save_from_2_to_71_times_and_not_4_to_8(name, times):
    model = find_model(name)
    assert model.num_query_heads == times * model.layers[0].num_kv_heads


@pytest.mark.parametrize(("head_dim", "percent"), [(64, 53.1), (96, 52.1), (128, 51.6), (256, 50.8)])
def test_int8_with_its_scales_is_not_half(head_dim, percent):
    model = ModelMemory("", "llama", (LayerGroup(3, 5, head_dim, head_dim),))
    eight, sixteen = (plan(model, context=7, cache=cache).bytes for cache in ("int8", ""))
    assert round(100 * eight / sixteen, 1) == percent == round(100 * (head_dim + 4) / (2 * head_dim), 1)


@pytest.mark.parametrize(
    ("cache", "percent"),
    [("fp8", 50.0), ("q8_0", 53.1), ("int4", 28.1), ("int4-g32", 31.2), ("q4_0", 28.1), ("nvfp4", 28.1)],
)
def test_fewer_bits_save_less_than_their_number_says(cache, percent):
    few, sixteen = (plan("llama-3-8b", context=16, cache=c).bytes for c in (cache, ""))
    assert int(1000 * few / sixteen) / 10 == percent


def test_the_users_in_40_gib_are_those_of_the_table():
    made = plan("llama-3-8b", users=100, context=4096, kv_memory="40GiB")
    by_text = {outcome.strategy.text: outcome for outcome in made.outcomes if outcome.strategy.text}
    assert {text: by_text[text].users_that_fit for text in ("bf16", "int8", "fp8", "q8_0", "int4")} == {
        "bf16": 80,
        "int8": 155,
        "fp8": 160,
        "q8_0": 150,
        "int4": 284,
    }
    assert [round(by_text[t].total_bytes / GIB, 2) for t in ("int8", "fp8", "q8_0", "int4")] == [
        25.78,
        25.0,
        26.56,
        14.06,
    ]


def test_a_common_beginning_is_stored_once():
    made = plan("llama-3-8b", users=100, context=4096, shared_prefix=3072, page_size=16)
    assert made.bytes / GIB == 12.875
    # Tokens of a page that is not full of them are each user's own.
    ragged = plan("llama-3-8b", users=100, context=4096, shared_prefix=3087, page_size=16)
    assert ragged.bytes == made.bytes


def test_what_a_window_has_left_behind_is_shared_by_no_one():
    tokens, shared, P = 4096, 1024, 16
    made = plan(LOCAL, users=7, context=tokens, shared_prefix=shared, page_size=P)
    full = 4 * 1024 * (shared + 7 * (tokens - shared))
    assert made.bytes == full + 7 * 22 * 1024 * 512


@pytest.mark.parametrize(("tokens", "kept"), [(100, 2_662_400), (4096, 28_311_552), (32_768, 145_752_064)])
def test_a_layer_with_a_window_is_charged_no_more_than_it_keeps(tokens, kept):
    assert plan(LOCAL, context=tokens).bytes == kept


def test_seventeen_tokens_take_two_pages():
    assert plan("llama-3-8b", context=17, page_size=16).bytes == 32 * 131_072
    assert plan("llama-3-8b", context=17).bytes == 17 * 131_072


def test_a_page_counts_the_layers_that_keep_keys_and_no_others():
    qwen = find_model("qwen3.5-27b")
    one, two = (plan(qwen, context=tokens, page_size=64).bytes for tokens in (64, 65))
    assert two - one == 4 * 2**20  # 16 of 64 layers


def test_eviction_keeps_its_tokens_and_no_more():
    assert plan("llama-3-8b", users=3, context=10_000, cache="keep=512").bytes == 3 * 512 * 131_072
    assert plan("llama-3-8b", context=100, cache="keep=512").bytes == 7 * 16 * 131_072
    # 1,004 tokens are 63 pages of 16; of 4, they are 251.
    limited = {"context": 10_000, "cache": "fp8,window=1000,sinks=4"}
    assert plan("llama-3-8b", **limited).bytes == 1008 * 131_072 // 2
    assert plan("llama-3-8b", **limited, page_size=4).bytes == 1004 * 131_072 // 2


def test_what_a_user_limits_has_the_name_and_the_bytes_of_its_like_in_the_comparison():
    made = plan("llama-3-8b", context=200, cache="keep=50")
    assert made.chosen == made.outcomes[-1]
    assert made.chosen.strategy.title == "16 bit, 50 tokens kept each"


def test_a_strategy_that_shares_nothing_says_so():
    made = plan("llama-3-8b", 3, 4096, cache="window=512", shared_prefix=1024)
    assert made.chosen.strategy.title == "16 bit, window 512"
    assert made.bytes == plan("llama-3-8b", 3, 4096, cache="window=512").bytes
    (said,) = [warning for warning in made.warnings if "16 bit, window 512" in warning]
    assert "in common are counted once for each user" in said
    assert not any("in common" in warning for warning in plan("llama-3-8b", 3, 4096).warnings)


def test_sinks_beyond_the_context_are_refused():
    with pytest.raises(PlanError, match="sinks=5,000,000 are more than the 8,192 tokens"):
        plan("llama-3-8b", cache="window=4,sinks=5000000")
    plan("llama-3-8b", context=4, cache="window=4,sinks=4")


# What to take


def taken(**request):
    made = plan("llama-3-8b", users=100, context=4096, **request)
    return made.recommended.outcome and made.recommended.outcome.strategy.text, made.recommended.reason


def test_what_loses_nothing_is_taken_first():
    assert taken(kv_memory="50GiB") == (
        "bf16",
        "it loses nothing, and its 50.00 GiB (53.69 GB) fit in 50.00 GiB (53.69 GB)",
    )


@pytest.mark.parametrize(
    ("memory", "text"), [("49.9GiB", "int8"), ("25.5GiB", "fp8"), ("24GiB", "int4"), ("14GiB", "keep=1136")]
)
def test_then_what_loses_least_of_what_fits(memory, text):
    choice, reason = taken(kv_memory=memory)
    assert choice == text and "least" in reason


def test_sharing_a_beginning_goes_before_fewer_bits():
    made = plan("llama-3-8b", users=100, context=4096, kv_memory="13GiB", shared_prefix=3072)
    outcome = made.recommended.outcome
    assert outcome is not None and outcome.strategy.is_lossless and outcome.strategy.shares_prefix


def test_where_nothing_fits_it_says_how_many_do():
    choice, reason = taken(kv_memory="100MiB")
    assert choice is None and "nothing fits 100 users" in reason
    alone = plan("llama-3-8b", context=4096, kv_memory="1MiB").recommended
    assert alone.outcome is None and "nothing fits 1 user in" in alone.reason


def test_an_eviction_keeps_as_many_tokens_as_there_is_room_for():
    made = plan("llama-3-8b", users=100, context=4096, kv_memory="14GiB")
    outcome = made.recommended.outcome
    assert outcome is not None and outcome.strategy.budget is not None
    assert outcome.users_that_fit >= 100
    more = outcome.strategy.budget + 16
    assert plan("llama-3-8b", 100, 4096, cache=f"keep={more}", kv_memory="14GiB").users_that_fit < 100


# What fits


def test_a_card_holds_weights_and_workspace_before_the_cache():
    made = plan("llama-3-8b", users=100, context=4096, memory="80GiB")
    assert made.memory is not None
    assert made.memory.weights == find_model("llama-3-8b").weight_bytes
    assert made.memory.weights >= 2 * 8_030_261_248
    assert made.budget == made.memory.cache == 80 * GIB - made.memory.weights - made.memory.workspace
    assert 0 < made.memory.workspace < GIB


def test_vllm_leaves_a_tenth_of_the_card_alone():
    made = plan("llama-3-8b", context=4096, memory="80GiB", engine="vllm")
    assert made.memory is not None and made.memory.reserve == pytest.approx(8 * GIB, abs=1)


def test_weights_that_alone_are_too_large_are_named():
    made = plan("llama-3-70b", context=4096, memory="80GiB")
    assert (made.users_that_fit, made.budget, made.fits) == (0, 0, False)
    assert any("leaves nothing" in warning for warning in made.warnings)
    assert made.recommended.outcome is None


@pytest.mark.parametrize("cache", [None, 8, ["int8"]], ids=str)
def test_a_cache_setting_is_text(cache: Any):
    with pytest.raises(PlanError, match=f"cache is text such as 'int8'.* not this {type(cache).__name__}"):
        plan("llama-3-8b", context=100, cache=cache)


@pytest.mark.parametrize("engine", [None, 8, ["qkv"], "vlm"], ids=str)
def test_an_engine_is_one_of_those_by_name(engine: Any):
    with pytest.raises(PlanError, match="an engine is one of ideal, qkv, vllm") as refused:
        plan("llama-3-8b", context=100, engine=engine)
    assert str(refused.value).endswith(f"not {engine!r}")


def test_unknown_weights_are_asked_for():
    with pytest.raises(PlanError, match="weights="):
        plan("qwen3.5-27b", context=100, memory="80GiB")
    assert plan("qwen3.5-27b", context=100, memory="80GiB", weights="54GB").fits


def test_what_does_not_fit_is_refused_with_the_longest_that_does():
    made = plan("llama-3-8b", users=3, context=8192, kv_memory="2GiB")
    with pytest.raises(PlanError, match="the longest that fits is 5,461"):
        made.check_fits()
    plan("llama-3-8b", users=3, context=5461, kv_memory="2GiB").check_fits()
    with pytest.raises(PlanError, match="the longest that fits is 5,461"):
        plan("llama-3-8b", users=3, context=5462, kv_memory="2GiB").check_fits()


def test_a_length_that_does_not_matter_has_no_limit():
    made = plan("mistral-7b-v0.1", users=1, context=4096, kv_memory="1GiB")
    assert made.longest_context is None and made.fits


@given(
    name=st.sampled_from(["llama-3-8b", "gemma-3-4b", "deepseek-v3", "mistral-7b-v0.1", "gpt-oss-20b"]),
    engine=st.sampled_from(sorted(set(ENGINES) - {"qkv"})),
    users=st.integers(1, 50),
    context=st.integers(1, 50_000),
    memory=st.integers(2**24, 2**40),
)
def test_what_is_said_to_fit_does_and_one_more_does_not(name, engine, users, context, memory):
    made = plan(name, users, context, engine=engine, kv_memory=memory)
    assert made.fits == (made.users_that_fit >= users)
    assert made.chosen.shared_bytes + made.users_that_fit * made.bytes_per_user <= memory
    longest = made.longest_context
    if longest:
        assert plan(name, users, longest, engine=engine, kv_memory=memory).fits
        assert not plan(name, users, longest + 1, engine=engine, kv_memory=memory).fits


@given(
    engine=st.sampled_from(sorted(ENGINES)),
    users=st.integers(1, 9),
    context=st.integers(1, 3000),
    more=st.integers(0, 500),
)
def test_more_users_and_longer_texts_never_take_less(engine, users, context, more):
    small = plan("smollm2-135m", users, context, engine=engine).bytes
    assert small <= plan("smollm2-135m", users + more, context, engine=engine).bytes
    assert small <= plan("smollm2-135m", users, context + more, engine=engine).bytes


# Requests without meaning


@pytest.mark.parametrize(
    "request_",
    [
        {"users": 0},
        {"users": -3},
        {"users": 1.5},
        {"users": True},
        {"users": 10**30},
        {"users": 10**6000},
        {"context": 0},
        {"context": "4096"},
        {"page_size": 0},
        {"shared_prefix": -1},
        {"shared_prefix": 5000, "context": 4096},
        {"new_tokens": 5000, "context": 4096},
        {"tensor_parallel": 0},
        {"kv_memory": "40 apples"},
        {"kv_memory": "40G"},
        {"kv_memory": "-3GiB"},
        {"kv_memory": 0},
        {"kv_memory": float("nan")},
        {"kv_memory": 10**6000},
        {"kv_memory": "1GiB", "memory": "2GiB"},
        {"bandwidth": "fast"},
        {"bandwidth": "0GB/s"},
        {"bandwidth": "50GB/s", "compute": "3 apples"},
        {"compute": "990TFLOP/s"},
        {"cache": "keep=512,keep=100"},
    ],
)
def test_a_request_without_meaning_is_refused_in_words(request_):
    with pytest.raises(PlanError) as refused:
        plan("llama-3-8b", **request_)
    assert len(str(refused.value)) < 400


def test_the_models_own_length_is_taken_where_none_is_named():
    assert plan("llama-3-8b").request.context == 8192
    with pytest.raises(PlanError, match="give context="):
        plan("bloom")


def test_speed_is_bounded_by_what_must_be_read():
    made = plan("llama-3-8b", users=100, context=4096, bandwidth="3.35TB/s", compute="990TFLOP/s")
    weights = find_model("llama-3-8b").weight_bytes
    assert made.speed is not None and weights is not None
    assert made.speed.step_bytes == weights + made.bytes
    assert made.speed.decode_tokens_per_second == pytest.approx(3.35e12 / (weights + made.bytes))
    # Two operations a weight and token; scores and their mix for each pair a causal mask leaves.
    pairs = 4096 * 4097 // 2
    by_hand = 2 * (find_model("llama-3-8b").num_parameters or 0) * 4096 + 32 * 2 * 32 * 256 * pairs
    assert made.speed.prefill_operations == by_hand
    assert made.speed.prefill_seconds == pytest.approx(by_hand / 990e12)


def test_a_window_bounds_the_pairs_of_a_prompt():
    local = ModelMemory("", "", (LayerGroup(1, 1, 3, 3, "sliding", 2),), num_query_heads=1)
    assert prefill_operations(local, 5) == 2 * 6 * (1 + 2 + 2 + 2 + 2)
