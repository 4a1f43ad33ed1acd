"""Every kind of work at a tiny size: it runs, checks results, and says what it is. Nothing is timed."""

from itertools import count

import numpy as np
import pytest

import reference
from qkv import use_backend
from qkv.bench import attention
from qkv.bench.attention import CAUSAL, FULL, OWN_FULL, SHORT, Prefill, attention_cases
from qkv.bench.attention_work import AttentionCall
from qkv.bench.caching import Caching
from qkv.bench.comparison import Instruments
from qkv.bench.decode import Decode, Heads, SlidingDecode
from qkv.bench.latent import LatentDecode, LatentSizes
from qkv.bench.limits import MATRIX, NUMPY_MATRIX, READ, machine_limits
from qkv.bench.matmul import Products
from qkv.bench.matmul import numpy_ways as numpy_products
from qkv.bench.measurement import Measurement, Skipped
from qkv.bench.measurement import measured as measured_only
from qkv.bench.policies import CODES, CachePolicies
from qkv.bench.sections import Extent, chosen_cases
from qkv.bench.stopwatch import Stopwatch
from qkv.bench.textbook import numpy_ways
from qkv.bench.tiling import Tiling, peak_bytes
from qkv.errors import NumericError, OptionError
from qkv.ops.backend import can_compile

HEADS = Heads(H=6, G=2, D=5)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Leave the peers out; tests/peers has them."""
    for peer in ("torch_peer", "onnxruntime_peer"):
        monkeypatch.setattr(f"qkv.bench.{peer}.is_installed", lambda package: False)


def instruments(free_bytes: int | None = 10**12, **options):
    seconds = count()
    stopwatch = Stopwatch(2, clock=lambda: next(seconds), rest=lambda: None)
    return Instruments(stopwatch, free_bytes=lambda: free_bytes, **options)


def measure(case, **options) -> list[Measurement]:
    """Measure a case of which nothing is skipped."""
    results = case.measure(instruments(**options))
    measurements = measured_only(results)
    assert measurements == results
    return measurements


def peers_of(measured):
    return [ratio.peer for ratio in measured.ratios]


def test_a_full_text_is_compared_with_the_formula():
    (measured,) = measure(Prefill(17, 5, False, FULL))
    assert (peers_of(measured), measured.work.sizes) == (["NumPy"], {"H": 8, "D": 5, "n": 17})
    assert measured.work.flops == 4 * 8 * 5 * 17 * 17


def test_a_causal_text_is_compared_with_ourselves_over_the_full_one_too():
    (measured,) = measure(Prefill(17, 5, True, CAUSAL))
    assert peers_of(measured) == ["NumPy", OWN_FULL]
    assert measured.work.flops == 4 * 8 * 5 * (17 * 18 // 2)


def test_a_text_too_long_for_the_formula_is_measured_without_it(monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_IN_NUMPY", 16)
    (measured,) = measure(Prefill(17, 5, False, FULL))
    assert peers_of(measured) == []


def test_a_peer_for_which_memory_does_not_suffice_is_named():
    scores_bytes = 4 * 8 * 17 * 17
    (enough,) = measure(Prefill(17, 5, False, FULL), free_bytes=5 * scores_bytes)
    (short,) = measure(Prefill(17, 5, False, FULL), free_bytes=5 * scores_bytes - 1)
    assert enough.notes == ()
    assert "onnxruntime left out at n = 17" in short.notes[0]


def test_prefill_is_measured_beside_numpys_matrix_rate_too():
    limits = machine_limits(side=7, read_bytes=80)
    (measured,) = measure(Prefill(17, 5, False, FULL), limits=limits)
    assert [share.limit for share in measured.shares] == [MATRIX, NUMPY_MATRIX, READ]


def test_short_texts_have_a_table_of_their_own_and_the_least_head_size():
    cases = attention_cases([1024], [128, 64], [8, 16])
    assert cases == [
        Prefill(1024, 128, False, FULL),
        Prefill(1024, 64, False, FULL),
        Prefill(1024, 128, True, CAUSAL),
        Prefill(1024, 64, True, CAUSAL),
        Prefill(8, 64, False, SHORT),
        Prefill(16, 64, False, SHORT),
    ]


def test_decode_is_compared_with_the_formula_of_folded_groups():
    (measured,) = measure(Decode(19, 3, HEADS))
    assert isinstance(measured, Measurement)
    assert [(ratio.peer, ratio.form) for ratio in measured.ratios] == [("NumPy", "groups folded")]
    assert measured.work.sizes == {"H": 6, "G": 2, "D": 5, "B": 3, "S": 19}


@pytest.mark.parametrize(("free_bytes", "reason"), [(10**9, "1.0 GB are free"), (None, "is not known")])
def test_a_cache_for_which_memory_does_not_suffice_is_skipped_with_the_reason(free_bytes, reason):
    # 8 x 8 x 128 x 2 numbers for each key, and 4 times as many for each query head.
    (skipped,) = Decode(32768, 8).measure(instruments(free_bytes))
    assert isinstance(skipped, Skipped)
    assert skipped.reason.startswith("needs 11.8 GB") and reason in skipped.reason


def test_a_small_cache_needs_no_look_at_the_memory():
    assert isinstance(Decode(19, 1, HEADS).measure(instruments(None))[0], Measurement)


def test_each_length_under_a_window_is_compared_with_the_first():
    results = measure(SlidingDecode((11, 13, 29), 7, HEADS))
    assert [(peers_of(measured), measured.work.sizes["S"]) for measured in results] == [
        (["at 11 keys"], 11), (["at 11 keys"], 13), (["at 11 keys"], 29),
    ]  # fmt: skip
    assert {measured.work.flops for measured in results} == {4 * 6 * 5 * 7}


def test_a_window_that_shows_other_keys_is_refused(monkeypatch):
    monkeypatch.setattr("qkv.bench.decode.attend", lambda q, k, v, **options: np.zeros_like(q))
    with pytest.raises(NumericError, match="sliding window"):
        SlidingDecode((11,), 7, HEADS).measure(instruments())


@pytest.mark.skipif(not can_compile(), reason="this machine has no fused multiply-add")
def test_products_are_compared_with_numpy_and_compact_weights_with_float32():
    with use_backend("compiled"):
        results = measure(Products(3, 37, 2), limits=machine_limits(side=7, read_bytes=80))
    assert [(measured.work.sizes["weights"], peers_of(measured)) for measured in results] == [
        ("float32", ["NumPy"]), ("bfloat16", ["NumPy", "float32"]), ("int8", ["NumPy", "float32"]),
    ]  # fmt: skip
    assert {measured.seconds.median for measured in results} == {0.5}  # a second for two products
    assert {measured.work.flops for measured in results} == {2 * 3 * 37 * 37}
    float32, bfloat16, int8 = (measured.work.num_bytes or 0 for measured in results)
    assert float32 > bfloat16 > int8 > 0


def test_with_the_kernels_turned_off_products_are_skipped():
    with use_backend("numpy"):
        results = Products(3, 37, 2).measure(instruments())
    assert len(results) == 3
    for result in results:
        assert isinstance(result, Skipped) and result.reason == "the compiled kernels are turned off"


def test_numpy_multiplies_by_the_weights_either_way_they_lie():
    x, weight = np.eye(2, 3, dtype=np.float32), np.arange(15, dtype=np.float32).reshape(5, 3)
    for way in numpy_products(x, [weight]):
        np.testing.assert_array_equal(way.output(way.run()), [weight.T[:2]])


def test_tiling_compares_every_path_of_our_own_in_time_and_memory():
    (measured,) = measure(Tiling(17), limits=machine_limits(side=7, read_bytes=80))
    assert peers_of(measured) == ["textbook", "dense", "tiled"]
    assert list(measured.peak_bytes) == ["qkv", "textbook", "dense", "tiled"]
    assert measured.peak_bytes["textbook"] > 4 * 8 * 17 * 17
    assert measured.shares == ()


def test_peak_memory_is_the_most_at_once_and_not_the_sum():
    assert 300_000 <= peak_bytes(lambda: [len(bytes(300_000)) for _ in range(7)]) < 2 * 300_000


def test_the_cache_is_compared_with_computing_anew():
    (measured,) = measure(Caching(5))
    assert (peers_of(measured), measured.work.sizes["n"], measured.shares) == (["no cache"], 5, ())


SMALL_HEADS = Heads(H=6, G=2, D=6)
"""An even D, for two codes of int4 share a byte."""


def test_each_policy_is_compared_with_the_same_cache_in_float32():
    results = measure(CachePolicies(67, SMALL_HEADS, window=5))
    policies = [measured.work.sizes["policy"] for measured in results]
    assert policies == ["float32", *CODES, "window=5", "knorm=6"]
    assert {tuple(peers_of(measured)) for measured in results} == {("float32",)}
    # Four floating-point operations for each number of each head and key that is seen.
    assert [measured.work.flops for measured in results] == [4 * 6 * 6 * n for n in (*[68] * 8, 5, 6)]
    plain, half, *_, window, evicted = (measured.work.num_bytes for measured in results)
    assert plain == 2 * 4 * 2 * 6 * 80  # five pages of 16
    assert (half, window) == (plain // 2, 2 * plain // 5)  # tokens 63 to 67 lie in two of them
    assert evicted == plain // 5 + 2 * 16 * (4 + 4)  # for each slot its place in the text, and a score


@pytest.mark.skipif(not can_compile(), reason="this machine has no fused multiply-add")
def test_a_policy_whose_result_is_not_that_of_what_it_holds_is_refused(monkeypatch):
    nothing = np.zeros((1, 6, 1, 6)), np.zeros((1, 6, 1))
    monkeypatch.setattr("qkv.cache.attending._attend_decoded", lambda *_: nothing)
    with use_backend("compiled"), pytest.raises(NumericError, match=r"decode over a cache.*float32.*NumPy"):
        CachePolicies(67, SMALL_HEADS).measure(instruments())


def test_policies_for_which_memory_does_not_suffice_are_skipped_with_the_reason():
    # 8 x 128 x 2 numbers for each key, four times, and half of that for each of 7 policies.
    (skipped,) = CachePolicies(32768).measure(instruments(10**9))
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "needs 3.1 GB of memory; 1.0 GB are free"


def test_absorbed_latents_are_compared_with_keys_and_values_made_anew():
    (measured,) = measure(LatentDecode(17, LatentSizes(H=3, nope=5, rope=2, value=7, latent=11)))
    assert (peers_of(measured), measured.work.sizes) == (["up-projected"], {"H": 3, "S": 17})
    # Each head maps its query and its output, and meets 17 keys of 11 + 2 numbers and values of 11.
    assert measured.work.flops == 2 * 3 * (5 * 11 + 7 * 11 + 17 * (13 + 11))
    assert measured.work.num_bytes == 4 * (17 * 13 + 3 * 12 * 11)


CALLS = {
    "full": AttentionCall(2, 3, 3, 7, 7, 5),
    "causal": AttentionCall(2, 3, 3, 7, 7, 5, causal=True),
    "decode": AttentionCall(2, 6, 3, 1, 11, 5, causal=True),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_the_textbook_formula_is_the_formula(call):
    q, k, v = call.draw()
    (way,) = numpy_ways(call, q, k, v)
    expected = reference.attend(q, k, v, causal=call.causal)[0]
    np.testing.assert_allclose(way.output(way.run()), expected, atol=1e-6)


def test_a_whole_run_has_the_sizes_that_are_promised():
    cases = chosen_cases([], Extent())
    assert list(cases) == ["attention", "decode", "matmul", "tiling", "cache", "policies", "latent"]
    long = {
        Prefill(n, D, name == CAUSAL, name)
        for n in (1024, 2048, 4096, 8192)
        for D in (64, 128)
        for name in (FULL, CAUSAL)
    }
    short = {Prefill(n, 64, False, SHORT) for n in (8, 16, 32, 64, 100)}
    assert set(cases["attention"]) == long | short
    window = SlidingDecode((2048, 4096, 8192, 16384, 32768), 1024)
    assert set(cases["decode"]) == {Decode(S, B) for S in (1024, 8192, 32768) for B in (1, 8)} | {window}
    assert {Products(1, 4096, 4), Products(1536, 1536, 1)} < set(cases["matmul"])
    assert cases["policies"] == [CachePolicies(8192), CachePolicies(32768)]
    assert cases["latent"] == [LatentDecode(128), LatentDecode(1024), LatentDecode(8192)]


def test_a_section_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(OptionError, match=r"'speed'.*attention, decode, matmul, tiling, cache"):
        chosen_cases(["decode", "speed"], Extent())
