"""The picture shows the plan's own numbers."""

import pytest

from qkv import OptionError, plan
from qkv.viz.memory import draw_memory, save

pytest.importorskip("matplotlib", reason="needs the extra: pip install 'qkv[viz]'")

GIB = 2**30


@pytest.fixture(scope="module")
def drawn():
    made = plan("gemma-3-4b", users=8, context=4096, kv_memory="3GiB")
    return made, draw_memory(made)


def test_each_strategy_is_a_line_through_its_own_bytes(drawn):
    made, figure = drawn
    for axes, at in zip(figure.axes, (made.request.users, made.request.context), strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        for outcome in made.outcomes:
            line = lines[outcome.strategy.title]
            nearest = min(line.get_xydata(), key=lambda point: abs(point[0] - at))
            if nearest[0] == at:
                assert nearest[1] == pytest.approx(outcome.total_bytes / GIB)
        assert lines["budget"].get_ydata()[0] == 3.0


def test_axes_say_what_they_show(drawn):
    _, figure = drawn
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "users of 4,096 tokens",
        "tokens of each of 8 users",
    ]
    assert figure.axes[0].get_ylabel() == "GiB"


def test_a_picture_is_a_file_of_a_kind_that_is_known(drawn, tmp_path):
    _, figure = drawn
    save(figure, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OptionError, match=r"name a \.png"):
        save(figure, tmp_path / "memory.odd")
    with pytest.raises(OptionError):
        save(figure, tmp_path / "missing" / "memory.png")
