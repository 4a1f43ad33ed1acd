"""What a comparison of times rests on: runs in turn, rests between them, medians of ratios."""

import pytest

from clocks import Clock
from qkv.bench.stopwatch import Spread, times_as_fast, wait_until_idle

BEFORE_LONG, BEFORE_SHORT = 2, 3
"""Calls of each run that tell how long it is, before the rounds begin."""


def test_median_and_quartiles_are_those_of_the_sorted_values():
    # Of seven sorted values the quartiles are the means of the 2nd and 3rd, and of the 5th and 6th.
    spread = Spread.of([13.0, 2.0, 7.0, 3.0, 17.0, 5.0, 11.0])
    assert (spread.low, spread.median, spread.high) == (4.0, 7.0, 12.0)


def test_quartiles_stay_within_what_was_measured():
    assert Spread.of([2.0, 6.0]) == Spread(median=4.0, low=3.0, high=5.0)


def test_a_ratio_is_taken_within_each_round_and_not_between_medians():
    times = {"qkv": (1.0, 2.0, 4.0), "NumPy": (5.0, 4.0, 4.0)}
    assert times_as_fast(times, "qkv", "NumPy").median == 2.0  # of 5, 2 and 1; the medians give 4 / 2 too ...
    times = {"qkv": (1.0, 2.0, 8.0), "NumPy": (3.0, 10.0, 8.0)}
    assert times_as_fast(times, "qkv", "NumPy").median == 3.0  # ... but here 8 / 2


def test_runs_take_turns_with_a_rest_before_each():
    clock = Clock()
    runs = {"a": clock.work("a", 1.0), "b": clock.work("b", 2.0)}
    times = clock.stopwatch(pairs=3).time_in_turn(runs)
    assert clock.done == ["a"] * BEFORE_LONG + ["b"] * BEFORE_LONG + ["rest", "a", "rest", "b"] * 3
    assert times == {"a": (1.0, 1.0, 1.0), "b": (2.0, 2.0, 2.0)}


def test_the_first_call_may_compile_and_counts_nowhere():
    clock = Clock()
    times = clock.stopwatch(pairs=2).time_in_turn({"a": clock.work("a", 1000.0, 3.0)})
    assert times == {"a": (3.0, 3.0)}


def test_each_round_has_its_own_time():
    clock = Clock()
    run = clock.work("a", 9.0, 9.0, 2.0, 5.0, 3.0)
    assert clock.stopwatch(pairs=3).time_in_turn({"a": run}) == {"a": (2.0, 5.0, 3.0)}


def test_a_short_call_is_warmed_up_and_repeated_until_it_can_be_timed():
    clock = Clock()
    times = clock.stopwatch(pairs=2).time_in_turn({"a": clock.work("a", 2**-9)})  # about 2 ms of 10
    assert clock.done == ["a"] * BEFORE_SHORT + (["rest", "a"] + ["a"] * 6) * 2
    assert times["a"] == (2**-9, 2**-9)


def test_a_call_of_middle_length_is_warmed_up_but_not_repeated():
    clock = Clock()
    clock.stopwatch(pairs=2).time_in_turn({"a": clock.work("a", 2**-5)})
    assert clock.done == ["a"] * BEFORE_SHORT + ["rest", "a", "a"] * 2


def test_one_slow_call_does_not_keep_a_short_one_from_being_repeated():
    clock = Clock()
    clock.stopwatch(pairs=2).time_in_turn({"a": clock.work("a", 1000.0, 2**-4, 2**-9)})
    assert clock.done[BEFORE_SHORT:] == (["rest", "a"] + ["a"] * 6) * 2


def test_a_trial_keeps_the_best_of_a_few_calls():
    clock = Clock()
    long = clock.work("a", 9.0, 5.0)
    assert clock.stopwatch(pairs=2).best_seconds(long) == 5.0
    assert clock.done == ["a"] * BEFORE_LONG
    short = [2**-5] * BEFORE_SHORT + [
        1.0,
        2**-5,
        1.0,
        2**-6,
        1.0,
        2**-5,
    ]  # each timed call after an untimed one
    assert clock.stopwatch(pairs=2).best_seconds(clock.work("b", *short)) == 2**-6


@pytest.mark.parametrize(("busy_steps", "sleeps"), [(0, 1), (5, 6), (10_000, 100)])
def test_a_rest_lasts_until_no_thread_takes_time_but_not_for_ever(busy_steps, sleeps):
    slept = []

    def cpu_seconds():
        return 0.02 * min(len(slept), busy_steps)

    wait_until_idle(cpu_seconds, slept.append)
    assert len(slept) == sleeps
