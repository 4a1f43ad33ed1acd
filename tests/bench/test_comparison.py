"""A peer is compared only if it computes the same, and by its fastest form."""

import numpy as np
import pytest

from clocks import Clock
from qkv.bench.comparison import Instruments, Way, compare
from qkv.bench.limits import NUMPY_PRODUCT, READING, Limits
from qkv.bench.measurement import Workload
from qkv.errors import NumericError

WORK = Workload("attention", {"n": 7}, flops=12, num_bytes=20)
RESULT = np.array([[1.0, -2.0, 3.0], [500.0, 0.0, 7.0]], np.float32)


def way(clock, name, *seconds, result=RESULT, form="", **options):
    return Way(name, clock.work(name + form, *seconds, result=result), form, **options)


def run_compare(clock, peers, **options):
    ours = clock.work("qkv", 2.0, result=RESULT)
    return compare(WORK, ours, peers, Instruments(clock.stopwatch(pairs=3)), **options)


def test_a_peer_that_takes_three_times_as_long_is_a_third_as_fast():
    clock = Clock()
    measured = run_compare(clock, [way(clock, "NumPy", 6.0), way(clock, "PyTorch", 1.0)])
    assert [(ratio.peer, ratio.spread.median) for ratio in measured.ratios] == [
        ("NumPy", 3.0),
        ("PyTorch", 0.5),
    ]
    assert (measured.seconds.median, measured.flops_per_second, measured.bytes_per_second) == (2.0, 6.0, 10.0)


WRONG = {
    "one number": (RESULT + np.array([[0, 0, 0], [0, 0.01, 0]], np.float32), "0.01"),
    "a large number": (np.where(RESULT == 500, np.float32(500.25), RESULT), "0.25"),
    "a NaN": (np.where(RESULT == 7, np.float32(np.nan), RESULT), "nan"),
    "the shape": (RESULT[None], r"\(1, 2, 3\)"),
}


@pytest.mark.parametrize(("result", "named"), WRONG.values(), ids=WRONG.keys())
def test_a_peer_that_computes_something_else_is_refused_and_nothing_is_timed(result, named):
    clock = Clock()
    peers = [way(clock, "NumPy", 6.0), way(clock, "PyTorch", 6.0, result=result, form="folded")]
    with pytest.raises(NumericError, match=rf"attention .*'n': 7.*PyTorch \(folded\).*{named}"):
        run_compare(clock, peers)
    assert "rest" not in clock.done


def test_rounding_is_no_difference():
    clock = Clock()
    result = RESULT * np.float32(1 + 1e-5) + np.float32(1e-4)  # the largest number is 500
    assert run_compare(clock, [way(clock, "NumPy", 6.0, result=result)]).ratio("NumPy")


def test_a_result_that_lies_differently_is_turned_before_it_is_compared():
    clock = Clock()
    turned = way(clock, "PyTorch", 6.0, result=RESULT.T, output=np.transpose)
    assert run_compare(clock, [turned]).ratio("PyTorch")


def test_the_fastest_form_of_each_library_is_the_one_compared_and_named():
    clock = Clock()
    peers = [
        way(clock, "PyTorch", 9.0, form="plain"),
        way(clock, "PyTorch", 4.0, form="folded"),
        way(clock, "onnxruntime", 8.0, form="Attention"),
    ]
    measured = run_compare(clock, peers)
    assert [(r.peer, r.form, r.spread.median) for r in measured.ratios] == [
        ("PyTorch", "folded", 2.0),
        ("onnxruntime", "Attention", 4.0),
    ]


def test_a_baseline_is_timed_but_its_result_is_its_own():
    clock = Clock()
    baselines = {"own full": clock.work("full", 3.0, result="something else")}
    measured = run_compare(clock, [], baselines=baselines, notes=["a note"])
    (ratio,) = measured.ratios
    assert (ratio.peer, ratio.spread.median, measured.notes) == ("own full", 1.5, ("a note",))


def test_the_limits_run_in_the_same_rounds():
    clock = Clock()
    runs = {NUMPY_PRODUCT: clock.work("product", 1.0), READING: clock.work("reading", 1.0)}
    instruments = Instruments(clock.stopwatch(pairs=2), Limits(runs, {NUMPY_PRODUCT: 24, READING: 40}))
    measured = compare(WORK, clock.work("qkv", 2.0, result=RESULT), [], instruments)
    assert clock.done[-6:] == ["rest", "qkv", "rest", "product", "rest", "reading"]
    assert [share.spread.median for share in measured.shares] == [0.25, 0.25]
