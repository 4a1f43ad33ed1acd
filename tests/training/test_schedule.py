import pytest

from qkv.errors import OptionError
from qkv.training.schedule import Schedule


def test_the_rate_rises_in_a_line_and_falls_along_half_a_cosine():
    schedule = Schedule(peak=0.4, steps=13, warm_up=3, last_share=0.25)
    assert [schedule.at(step) for step in range(3)] == pytest.approx([0.4 / 3, 0.8 / 3, 0.4])
    assert schedule.at(3) == pytest.approx(0.4)
    assert schedule.at(8) == pytest.approx((0.4 + 0.1) / 2)  # half way
    assert schedule.at(13) == pytest.approx(0.1)
    rates = [schedule.at(step) for step in range(3, 14)]
    assert rates == sorted(rates, reverse=True)


def test_without_warm_up_it_begins_at_the_peak():
    assert Schedule(peak=0.4, steps=1, warm_up=0).at(0) == 0.4


@pytest.mark.parametrize(
    "wrong",
    [
        {"warm_up": 5},
        {"warm_up": -1},
        {"peak": 0.0},
        {"peak": float("nan")},
        {"peak": float("inf")},
        {"last_share": 1.5},
    ],
)
def test_settings_without_meaning_are_refused(wrong: dict):
    with pytest.raises(OptionError, match="expected"):
        Schedule(**{"peak": 1.0, "steps": 5, "warm_up": 1, **wrong})
