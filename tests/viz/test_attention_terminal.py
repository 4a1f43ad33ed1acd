"""The terminal: every head has its place and its name, a map's lines add up, nothing runs over the edge."""

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from attention_views import CONTEXT, H, L, previous_head, view_of, view_of_many
from qkv.errors import OptionError
from qkv.viz.attention_terminal import HARDLY, head_grid, head_map, head_view, overview, reading
from qkv.viz.terminal import SHADES


def lines_of(shown, width=80):
    written = StringIO()
    Console(file=written, width=width, no_color=True).print(shown)
    return written.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("length", [5, 23, 131, CONTEXT])
@pytest.mark.parametrize("width", [80, 100, 132])
def test_nothing_is_wider_than_the_terminal(length, width):
    view = view_of(length)
    for shown in (overview(view, width), head_view(view, (1, 4), width)):
        lines = lines_of(shown, 1000)
        assert max(cell_len(line.rstrip()) for line in lines) <= width


@pytest.mark.parametrize("width", [43, 60])
def test_a_map_fits_into_a_narrow_terminal_line_by_line(width):
    rows = lines_of(head_map(view_of(), (1, 4), width), 1000)[2:]
    assert max(cell_len(line.rstrip()) for line in rows) <= width


def test_wide_letters_are_counted_as_two_columns():
    view = view_of(23)
    view = replace(view, tokens=("世界世界世界世界世",) * 23)
    assert max(cell_len(line.rstrip()) for line in lines_of(head_map(view, (0, 0), 80), 1000)) <= 80


def test_every_head_has_a_small_map_and_its_name():
    lines = lines_of(head_grid(previous_head(view_of(), 1, 4), 80))
    layers = [line for line in lines if line.startswith("layer")]
    assert [line[:7] for line in layers] == [f"layer {layer}" for layer in range(L)]
    assert layers[1].split()[2 + 4] == "previous" and "previous" not in layers[0] + layers[2]
    assert "head 5" in lines[1]


def test_small_maps_show_what_the_heads_look_at():
    view = view_of_many(2, 6, 2)
    weights = np.zeros((2, 6, 16, 16))
    weights[..., 0] = 1.0
    weights[1, 4] = np.eye(16)
    lines = lines_of(head_grid(replace(view, maps=replace(view.maps, weights=weights)), 80))
    of_layers = lines[3:6], lines[8:11]
    for layer, head in ((0, 0), (0, 4), (1, 3)):
        small = [line[8 + 12 * head :][:11].rstrip() for line in of_layers[layer]]
        assert small == ["█" + HARDLY * 3, "█" + HARDLY * 6, "█" + HARDLY * 10]
    # 5, 5 and 6 queries a line; keys 0 1 2-3 4 | 5-6 7 8-9 | 10 11-12 13 14-15 in 11 columns
    small = [line[8 + 12 * 4 :][:11].rstrip() for line in of_layers[1]]
    assert small == ["▒▒▓▒", HARDLY * 4 + "▓▒▓", HARDLY * 7 + "▒▒▒▒"]


def test_heads_that_share_keys_stand_under_one_bracket():
    bracket, numbers = lines_of(head_grid(view_of(), 80))[:2]
    assert bracket.count("╭") == bracket.count("╮") == 2
    assert bracket.index("╭") == numbers.index("head 0")
    assert bracket.rindex("╭") == numbers.index("head 3")
    assert "k/v 0" in bracket and "k/v 1" in bracket


def test_heads_with_keys_of_their_own_have_no_brackets():
    lines = lines_of(head_grid(view_of_many(3, 4, 4), 80))
    assert lines[0].split() == ["head", "0", "head", "1", "head", "2", "head", "3"]


@pytest.mark.parametrize(("num_heads", "each"), [(32, 2), (64, 1)])
def test_many_heads_have_signs_and_a_key_to_them(num_heads, each):
    view = previous_head(view_of_many(5, num_heads, 8), 3, 17)
    lines = lines_of(head_grid(view, 80))
    assert len(lines) == 5 + 1
    assert lines[3][8:][::each][:num_heads] == "·" * 17 + "P" + "·" * (num_heads - 18)
    assert lines[-1].split() == ["P", "previous", "·", "diffuse"]


def test_many_layers_have_names_without_maps():
    assert len(lines_of(head_grid(view_of_many(40, 6, 2), 80))) == 2 + 40


def test_the_reading_lists_the_strongest_heads_first():
    view = previous_head(previous_head(view_of(), 1, 4), 1, 4)
    shares = {name: table.copy() for name, table in view.maps.shares.items()}
    shares["previous"][2, 1] = 0.875
    view = replace(view, maps=replace(view.maps, shares=shares))
    lines = lines_of(reading(view))
    [line] = [line for line in lines if line.startswith("previous")]
    assert "the token before" in line and "2.1 88%, 1.4 75%" in line
    assert line.split()[-1] == f"{view.maps.even['previous']:.0%}"


def test_a_short_text_is_said_to_be_too_short():
    shown = "\n".join(lines_of(overview(view_of(5), 80)))
    assert "from 8 tokens on" in shown and "too short" not in shown


def test_a_map_has_a_line_for_each_query_and_the_key_it_looks_at_most():
    view = view_of()
    weights = view.head(1, 4).weights()
    lines = lines_of(head_map(view, (1, 4), 80))
    assert len(lines) == 2 + 23
    for t, line in enumerate(lines[2:]):
        best = int(weights[t].argmax())
        assert line.split()[:2] == [str(t), f"t{t}"]
        assert line.split()[-2:] == [f"{weights[t, best]:.0%}", f"t{best}"]


def test_the_darker_a_cell_the_more_attention():
    view = view_of(7)
    lines = lines_of(head_map(view, (1, 4), 80))[2:]
    weights = view.head(1, 4).weights()
    for t, line in enumerate(lines):
        cells = line[16 : 16 + 3 * (t + 1)]
        for s in range(t + 1):
            level = min(int(np.sqrt(weights[t, s]) * 5), 4)
            assert cells[3 * s + 1] == (SHADES[level] if level else HARDLY)


def test_a_long_map_is_drawn_in_blocks_and_says_so():
    view = view_of(CONTEXT)
    lines = lines_of(head_map(view, (0, 0), 80))
    assert "each cell is 5 x 5 tokens" in lines[1]
    assert len(lines) == 3 + -(-CONTEXT // 5)
    weights = view.head(0, 0).weights()
    first = weights[5:10, :5].sum(axis=1).mean(), weights[5:10, 5:10].sum(axis=1).mean()
    assert lines[4].split()[:2] == ["5", "t5…"]
    assert lines[4].split()[-2:] == [f"{max(first):.0%}", "t0…" if first[0] > first[1] else "t5…"]


def test_one_head_shows_its_share_of_every_pattern():
    view = previous_head(view_of(), 1, 4)
    lines = lines_of(head_view(view, (1, 4), 80))
    [line] = [line for line in lines if line.startswith("  previous")]
    assert line.split()[1] == "75%" and line.count("█") == 24
    assert f"even attention {view.maps.even['previous']:.0%}" in line


@pytest.mark.parametrize("at", [(L, 0), (0, H), (-1, 0)])
def test_a_head_that_is_not_there_is_refused(at):
    with pytest.raises(OptionError, match="must be from 0 to"):
        head_view(view_of(), at, 80)
