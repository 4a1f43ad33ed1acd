"""Pictures of heads show their weights, their names, and which of them share keys."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from attention_views import CONTEXT, H, L, previous_head, view_of, view_of_many
from qkv.errors import OptionError
from qkv.viz.attention_pictures import draw_grid, draw_map, picture

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")


def drawn(draw, *arguments):
    axes = figures.Figure(figsize=(9, 9)).add_subplot()
    draw(*arguments, axes)
    return axes


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_the_grid_shows_each_heads_map_where_it_stands():
    view = view_of()
    axes = drawn(draw_grid, view)
    assert len(axes.images) == L * H
    for image, (layer, head) in zip(axes.images, view.maps.heads, strict=True):
        left, right, bottom, top = image.get_extent()
        assert head < left < right < head + 1 and 1.2 * layer < top < bottom < 1.2 * (layer + 1)
        shown = image.get_array()
        np.testing.assert_allclose(shown.filled(0) ** 2, view.maps.weights[layer, head], atol=1e-6)
        assert shown.mask[0, 1] and not shown.mask[1, 0]


def test_the_grid_names_heads_and_brackets_those_that_share_keys():
    axes = drawn(draw_grid, previous_head(view_of(), 1, 4))
    assert words(axes).count("previous 75%") == 1
    assert {"key/value head 0", "key/value head 1", "head 5", "layer 2"} <= set(words(axes))
    spans = [(line.get_xdata()[0], line.get_xdata()[-1]) for line in axes.lines]
    assert [(round(left), round(right)) for left, right in spans] == [(0, 3), (3, 6)]
    assert not drawn(draw_grid, view_of_many(2, 4, 4)).lines


def test_one_map_has_its_tokens_on_both_sides():
    view = view_of()
    axes = drawn(draw_map, view, (2, 1))
    np.testing.assert_allclose(axes.images[0].get_array().filled(0), view.head(2, 1).weights())
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == list(view.tokens)


def test_a_long_map_is_pooled_and_says_so():
    axes = drawn(draw_map, view_of(CONTEXT), (0, 3))
    shown = axes.images[0].get_array().filled(0)
    assert shown.shape == (53, 53) and "4 x 4 tokens" in axes.get_xlabel()
    np.testing.assert_allclose(shown.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("chosen", [None, (1, 2)])
def test_files_are_what_their_endings_say_and_the_same_each_time(chosen):
    view = view_of()
    assert picture(view, chosen, "png").startswith(b"\x89PNG")
    written = picture(view, chosen, "svg")
    assert ElementTree.fromstring(written).tag.endswith("svg")
    assert written == picture(view, chosen, "svg")


def test_tokens_are_text_in_a_picture_and_no_markup_or_mathematics():
    view = view_of()
    view = replace(view, tokens=("<b>&", "$x$", r"$\frac", "世", *view.tokens[4:]))
    root = ElementTree.fromstring(picture(view, (0, 0), "svg"))
    shown = {"".join(one.itertext()).strip() for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"<b>&", "$x$", r"$\frac", "世"} <= shown


def test_a_head_that_is_not_there_is_refused():
    with pytest.raises(OptionError, match="head must be from 0 to 5"):
        picture(view_of(), (0, 6), "png")
