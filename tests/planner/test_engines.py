"""Other engines' ways of laying out memory, against figures from their logs and by hand."""

from fractions import Fraction

import pytest

from qkv import PlanError, plan
from qkv.app.cli.plan_report import report
from qkv.planner import find_model
from qkv.planner.engines.vllm import VLLM, block_kinds, group_size
from qkv.planner.strategies import Request

MIB, GIB = 2**20, 2**30


def sequence_mib(name, engine, step_tokens=None):
    return plan(name, context=32_768, engine=engine, step_tokens=step_tokens).bytes / MIB


def comparison(name, engine, title):
    outcomes = plan(name, context=32_768, engine=engine).outcomes
    return next(outcome.total_bytes for outcome in outcomes if title in outcome.strategy.title) / MIB


@pytest.mark.parametrize(
    ("name", "ideal", "llama_cpp", "vllm_2048", "vllm_8192", "windows_off"),
    [
        ("gemma-3-4b", 756, 814, 1002, 1722, 4352),
        ("gpt-oss-20b", 771, 786, 819, 963, 1536),
        ("llama-4-scout", 2688, None, 2976, 3840, 6144),
        ("mistral-7b-v0.1", 512, 576, 770, 1538, 4096),
    ],
)
def test_a_windowed_model_takes_what_each_engine_rounds_it_to(
    name, ideal, llama_cpp, vllm_2048, vllm_8192, windows_off
):
    assert sequence_mib(name, "ideal") == ideal
    if llama_cpp is not None:
        assert sequence_mib(name, "llama.cpp") == llama_cpp
    assert round(sequence_mib(name, "vllm", 2048)) == vllm_2048
    assert round(sequence_mib(name, "vllm", 8192)) == vllm_8192
    assert comparison(name, "vllm", "allocator off") == windows_off
    assert comparison(name, "llama.cpp", "swa-full") == windows_off


def vllm_users(name, memory, context, step_tokens=8192):
    """Users with fractions, as vLLM's log line has them."""
    model = find_model(name)
    request = Request(users=1, context=context, step_tokens=step_tokens)
    strategy = VLLM().read("", request)
    kinds = block_kinds(model, strategy, request)
    block = group_size([kind.count for kind in kinds]) * kinds[0].block_bytes
    return Fraction(memory // block * block, VLLM().demand(model, strategy, request).per_user)


@pytest.mark.parametrize(
    ("blocks", "context", "gib", "concurrency"),
    [
        (1952, 20_000, 3.81, 1.56),
        (1478, 29_000, 2.89, 0.82),
        (127_626, 2048, 249.27, 997.08),
        (1381, 2048, 2.70, 10.79),
    ],
)
def test_the_log_lines_of_llama_3_1_8b_come_out(blocks, context, gib, concurrency):
    memory = blocks * 16 * 131_072
    assert round(memory / GIB, 2) == gib
    assert round(float(vllm_users("llama-3.1-8b", memory, context)), 2) == concurrency
    # A part of a block more is of no use.
    assert vllm_users("llama-3.1-8b", memory + 16 * 131_072 - 1, context) == vllm_users(
        "llama-3.1-8b", memory, context
    )


def test_tokens_are_concurrency_times_length_when_every_layer_has_a_window():
    # 2,198,512 tokens of one layer kind; 4,095 + 8,192 tokens are 768 blocks, and one more.
    request = Request(users=1, context=16_384, step_tokens=8192)
    model = find_model("mistral-7b-v0.1")
    (kind,) = block_kinds(model, VLLM().read("", request), request)
    assert kind.blocks == 769
    assert round(float(vllm_users("mistral-7b-v0.1", 2_198_512 * 131_072, 16_384)), 2) == 178.68
    whole = plan("mistral-7b-v0.3", context=16_384, engine="vllm", kv_memory=2_198_512 * 131_072)
    assert whole.users_that_fit == 134  # 134.19 if every layer were charged in full


def test_a_pool_holds_the_tokens_that_logs_and_papers_say():
    assert 78_384 * plan("gpt-oss-120b").bytes_per_token / GIB == pytest.approx(5.38, abs=0.005)
    assert 12 * GIB // plan("opt-13b").bytes_per_token == 15_728
    assert round(264 * GIB / plan("opt-175b").bytes_per_token) == 60_075


@pytest.mark.parametrize(("cells", "mib"), [(1024, 18.0), (1536, 27.0)])
def test_llama_cpp_logs_gemma_3_270m_like_this(cells, mib):
    gemma = {"model_type": "llama", "hidden_size": 640, "num_hidden_layers": 18, "num_attention_heads": 4}
    config = {**gemma, "num_key_value_heads": 1, "head_dim": 256}
    assert plan(config, context=cells, engine="llama.cpp").bytes == mib * MIB


@pytest.mark.parametrize("context", [1, 255, 256])
def test_llama_cpp_sets_cells_aside_by_256(context):
    assert plan("llama-3-8b", context=context, engine="llama.cpp").bytes == 256 * 131_072


def test_llama_cpp_keeps_windows_in_16_bits_whatever_the_rest_is():
    # 5 full layers of 32,768 cells in 34 bytes per 32 numbers, 29 of 1,536 cells in 2 bytes a number.
    made = plan("gemma-3-4b", context=32_768, engine="llama.cpp", cache="q8_0")
    assert made.bytes == 5 * 32_768 * 2 * 4 * 256 * 34 // 32 + 29 * 1536 * 2 * 4 * 256 * 2


@pytest.mark.parametrize(
    ("form", "bytes_per_32"),
    [("q8_0", 34), ("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18), ("iq4_nl", 18)],
)
def test_the_block_formats_take_their_bytes(form, bytes_per_32):
    made = plan("llama-3-8b", context=256, engine="llama.cpp", cache=form)
    assert made.bytes == 256 * 32 * 2 * 8 * 128 * bytes_per_32 // 32


def test_groups_are_padded_where_counts_do_not_divide():
    # Gemma 3 27B: 52 layers with a window in groups of 10, 8 of 60 slots idle; 10 full layers.
    assert group_size([52, 10]) == 10
    request = Request(users=1, context=32_768)
    demand = VLLM().demand(find_model("gemma-3-27b"), VLLM().read("", request), request)
    assert demand.per_user == (2048 + 6 * 193) * 10 * 16 * (2 * 16 * 128 * 2)


def test_counts_that_are_close_share_the_larger_group():
    assert group_size([10, 14]) == 14
    assert group_size([10, 15]) == 10


def test_scales_per_token_and_head_are_counted():
    made = plan("llama-3-8b", context=16, engine="vllm", cache="int8")
    assert made.bytes == 16 * 32 * 8 * 2 * (128 + 4)


def test_a_latent_in_fp8_keeps_its_rotary_part_in_16_bits():
    made = plan("deepseek-v3", context=16, engine="vllm", cache="fp8_ds_mla")
    assert made.bytes == 16 * 61 * 656
    with pytest.raises(PlanError, match="latent"):
        plan("llama-3.2-1b", context=16, engine="vllm", cache="fp8_ds_mla")


@pytest.mark.parametrize(
    ("name", "devices", "bytes_per_token"),
    [("llama-3-70b", 8, 327_680), ("llama-3-70b", 16, 655_360), ("deepseek-v3", 8, 562_176)],
)
def test_heads_that_cannot_be_split_further_are_stored_again(name, devices, bytes_per_token):
    made = plan(name, context=16, engine="vllm", tensor_parallel=devices)
    assert made.bytes == 16 * bytes_per_token
    assert made.chosen.bytes_per_device == made.bytes // devices


def test_heads_that_do_not_divide_are_rounded_up_on_each_device():
    assert plan("llama-3-8b", context=16, tensor_parallel=3).bytes == 16 * 131_072 * 9 // 8


@pytest.mark.parametrize(
    ("name", "devices"), [("llama-3-8b", 2), ("llama-3-8b", 3), ("llama-3-8b", 16), ("deepseek-v3", 8)]
)
def test_the_product_shown_is_that_of_all_devices_together(name, devices):
    made = plan(name, context=1, tensor_parallel=devices)
    assert made.bytes == made.bytes_per_token
    assert all(term.factors[-1] == (devices, "devices") for term in made.terms)


def test_a_hybrids_states_are_those_of_all_devices_together():
    made = plan("qwen3.5-27b", context=1, tensor_parallel=5)
    assert f"{made.bytes - made.bytes_per_token:,} bytes a user" in report(made)


def test_devices_that_do_not_divide_the_query_heads_are_refused_for_vllm():
    with pytest.raises(PlanError, match="a divisor of the 32 query heads, got 3"):
        plan("llama-3-8b", context=16, engine="vllm", tensor_parallel=3)


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_an_engine_without_pages_takes_no_page_size(engine):
    with pytest.raises(PlanError, match="has no pages; leave page_size out"):
        plan("llama-3-8b", context=16, engine=engine, page_size=16)


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_an_engine_that_shares_nothing_says_so(engine):
    alone, shared = (plan("llama-3-8b", 3, 2048, engine=engine, shared_prefix=n) for n in (0, 1024))
    assert alone.bytes == shared.bytes
    assert f"{engine} stores the 1,024 tokens in common once for each user" in shared.warnings
    assert not any("in common" in warning for warning in alone.warnings)


@pytest.mark.parametrize(
    ("page_size", "is_one"), [(8, False), (24, False), (16, True), (48, True), (128, True)]
)
def test_vllm_has_blocks_of_multiples_of_16_tokens(page_size, is_one):
    if is_one:
        assert plan("llama-3-8b", context=1, engine="vllm", page_size=page_size).bytes == page_size * 131_072
        return
    with pytest.raises(PlanError, match=f"a multiple of 16 tokens on GPUs, not page_size {page_size}"):
        plan("llama-3-8b", context=1, engine="vllm", page_size=page_size)


def test_two_page_sizes_are_one_too_many():
    with pytest.raises(PlanError, match="page_size 8 and page=32 of the cache contradict"):
        plan("llama-3-8b", context=64, engine="qkv", cache="page=32", page_size=8)
    plan("llama-3-8b", context=64, engine="qkv", cache="page=32", page_size=32)


def test_qkv_is_not_planned_on_several_devices():
    with pytest.raises(PlanError, match="one device, not on 2"):
        plan("llama-3-8b", context=16, engine="qkv", tensor_parallel=2)


def test_a_hybrids_state_takes_a_block_of_its_own():
    kinds = block_kinds(find_model("qwen3.5-27b"), VLLM().read("", Request(1, 4096)), Request(1, 4096))
    assert [kind.count for kind in kinds] == [16, 48]
    assert kinds[0].block_bytes == kinds[1].block_bytes >= find_model("qwen3.5-27b").states[0].bytes_per_layer
    assert kinds[1].blocks == 1


def test_transformers_keeps_one_token_less_than_the_window():
    made = plan("mistral-7b-v0.1", context=32_768, engine="transformers")
    assert made.bytes == 4095 * 131_072


def test_transformers_int4_is_not_a_quarter():
    four, sixteen = (
        plan("llama-3-8b", context=4096, engine="transformers", cache=c).bytes for c in ("int4", "")
    )
    assert round(100 * four / sixteen, 1) == 30.4  # 28.1 % and the latest 128 tokens in full


def test_an_engine_that_is_not_known_is_refused_with_the_list():
    with pytest.raises(PlanError, match=r"ideal, qkv, vllm, llama\.cpp, transformers"):
        plan("llama-3-8b", engine="tensorrt")


@pytest.mark.parametrize("engine", ["ideal", "vllm", "llama.cpp", "transformers"])
@pytest.mark.parametrize(
    "cache",
    ["nonsense", "bf16,fp16", "window", "window=0", "window=-3", "window=x", "sinks=4", "keep=1e3", "seed=3"],
)
def test_a_cache_that_means_nothing_is_refused(engine, cache):
    with pytest.raises(PlanError):
        plan("llama-3-8b", engine=engine, cache=cache)


@pytest.mark.parametrize("cache", ["keep=512,keep=100", "window=8,window=8", "int8,window=8,sinks=2,sinks=3"])
def test_what_is_kept_is_limited_once_in_each_way(cache):
    with pytest.raises(PlanError, match="is given once, not"):
        plan("llama-3-8b", cache=cache)


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "transformers"])
@pytest.mark.parametrize("cache", ["keep=512", "window=128", "bf16,window=128,sinks=4"])
def test_an_engine_that_drops_nothing_is_not_planned_as_if_it_did(engine, cache):
    with pytest.raises(PlanError, match="keeps every token that the model's layers see"):
        plan("llama-3-8b", context=8192, engine=engine, cache=cache)
