"""One configuration per engine, and the machine it is for."""

import os

import pytest

from qkv import PlanError
from qkv.ops.backend import is_compiled
from qkv.planner.advice import advise, room
from qkv.planner.machine import machine_memory

with_kernels = pytest.mark.skipif(not is_compiled(), reason="without the kernels all weights are float32")


def settings(*args, **options):
    return {advice.engine: advice for advice in advise(*args, **options)}


def taken(advice):
    outcome = advice.plan.recommended.outcome
    assert outcome is not None
    return outcome


def test_three_engines_are_told_what_fits_them():
    advice = settings("llama-3-8b", users=64, context=8192, memory="72GiB")
    assert advice["qkv"].setting == 'cache = qkv.new_cache(model, "int8")'
    assert (
        "--max-model-len 8192 --max-num-seqs 64 --kv-cache-dtype int8_per_token_head"
        in advice["vllm"].setting
    )
    assert "--ctx-size 524288 --parallel 64 --cache-type-k q8_0" in advice["llama.cpp"].setting
    assert all(taken(each).users_that_fit >= 64 for each in advice.values())
    assert "of 72.00 GiB" in room(advice["vllm"].plan)


def test_what_fits_without_loss_needs_no_setting():
    advice = settings("llama-3.2-1b", users=1, context=4096, memory="24GiB")
    assert advice["qkv"].setting == 'cache = qkv.new_cache(model, "")'
    assert "--kv-cache-dtype auto" in advice["vllm"].setting
    assert "flash-attn" not in advice["llama.cpp"].setting


def test_without_a_length_the_longest_that_loses_nothing_is_taken():
    advice = settings("llama-3-8b", users=64, memory="72GiB")
    assert 1000 < advice["vllm"].plan.request.context < 8192
    assert taken(advice["vllm"]).strategy.is_lossless
    assert settings("llama-3-8b", memory="72GiB")["vllm"].plan.request.context == 8192


def test_a_model_that_is_too_large_is_said_to_be():
    advice = settings("llama-3-70b", context=100, memory="70GiB")
    assert all(each.setting == "" and "leaves nothing" in each.reason for each in advice.values())


@with_kernels
def test_weights_are_made_smaller_for_qkv_where_nothing_else_helps():
    advice = settings("llama-3-70b", context=100, memory="80GiB")
    assert advice["vllm"].setting == advice["llama.cpp"].setting == ""
    loading = 'model = qkv.load(folder, weights="int8"); '
    assert advice["qkv"].setting == f'{loading}cache = qkv.new_cache(model, "")'
    assert advice["qkv"].reason.startswith("weights are rounded to int8, ")


@with_kernels
def test_the_form_of_weights_can_be_given_and_is_for_qkv_alone():
    plain = settings("llama-3-8b", context=100, memory="80GiB")
    advice = settings("llama-3-8b", context=100, memory="80GiB", weights="int8")
    assert advice["qkv"].setting.startswith('model = qkv.load(folder, weights="int8"); ')
    assert room(advice["qkv"].plan) != room(plain["qkv"].plan)
    assert [room(advice[name].plan) == room(plain[name].plan) for name in ("vllm", "llama.cpp")] == [True] * 2


def test_too_many_users_are_counted():
    advice = settings("llama-3-8b", users=4000, context=8192, memory="80GiB")
    assert advice["vllm"].setting == "" and "nothing fits 4,000 users" in advice["vllm"].reason


def test_a_common_beginning_turns_sharing_on():
    advice = settings("llama-3-8b", users=9, context=4096, memory="80GiB", shared_prefix=2048)
    assert "--enable-prefix-caching" in advice["vllm"].setting


def test_a_model_without_a_length_asks_for_one():
    with pytest.raises(PlanError, match="context="):
        advise("bloom", memory="600GiB")


def test_the_machines_memory_is_what_it_has_or_may_use(tmp_path):
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = tmp_path / "memory.max"
    limit.write_text("12345\n")
    unlimited = tmp_path / "other"
    unlimited.write_text("max\n")
    assert machine_memory((limit, unlimited)) == 12345
    assert machine_memory((unlimited, tmp_path / "missing")) == physical
