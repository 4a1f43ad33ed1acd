"""A timeline holds what the cache held, and its picture shows it step by step."""

import io

import numpy as np
import pytest

from qkv.cache import CacheShape, PagedCache
from qkv.errors import OptionError
from qkv.viz.timeline import DROPPED, HELD, NOT_YET, draw_timeline, record, timeline_inches

SHAPE = CacheShape(num_layers=3, num_kv_heads=2, head_dim=5)
H, PROMPT, STEPS = 4, 11, 29


def filled(policy, prompt=PROMPT, steps=STEPS, shape=SHAPE):
    """An empty cache, and steps that fill it: a prompt, then one token each."""
    cache = PagedCache(shape, policy)
    random = np.random.default_rng(7)

    def run():
        for T in [prompt] + [1] * (steps - 1):
            for layer in range(shape.num_layers):
                k, v = random.normal(size=(2, 1, shape.num_kv_heads, T, shape.head_dim)).astype(np.float32)
                cache.append(layer, k, v)
                cache.attend(layer, random.normal(size=(1, H, T, shape.head_dim)).astype(np.float32))
            yield T

    return cache, run()


def recorded(policy, **options):
    cache, steps = filled(policy, **options)
    return record(steps, cache), cache


def test_a_token_goes_with_the_last_of_its_page():
    """Behind a window of 3 and the token of one step back: page 0-1 goes with 5 tokens, page 2-3 with 7."""
    shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=2)
    timeline = recorded("window=3,page=2", prompt=2, steps=6, shape=shape)[0]
    assert timeline.lengths == (2, 3, 4, 5, 6, 7)
    assert timeline.came.tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert timeline.gone.tolist() == [[[3, 3, 5, 5, 6, 6, 6]]]
    assert timeline.held(4).astype(int).tolist() == [[[0, 0, 1, 1, 1, 1, 0]]]
    assert timeline.nbytes == tuple(2 * 2 * 2 * 4 * pages for pages in (1, 2, 2, 2, 2, 2))


@pytest.mark.parametrize("policy", ["window=7,sinks=2,page=3", "int8-kivi,window=7,page=3"])
def test_behind_a_window_whole_pages_go(policy):
    timeline, _ = recorded(policy)
    W, P, sinks = 7, 3, 2 if "sinks" in policy else 0
    for step, n in enumerate(timeline.lengths):
        expected = [t < n and ((t // P + 1) * P <= n - W and t // P * P >= sinks) is False for t in range(39)]
        for layer, head in np.ndindex(3, 2):
            assert timeline.held(step)[layer, head].tolist() == expected


@pytest.mark.parametrize(
    "policy", ["h2o=8,page=3", "tova=8,page=3", "int8,knorm=8,page=3", "pyramidkv=8,page=3"]
)
def test_tokens_that_were_evicted_are_those_the_cache_has_written_down(policy):
    timeline, cache = recorded(policy)
    assert cache.drops[0]
    held = [set() for _ in range(3 * 2)]
    for step, n in enumerate(timeline.lengths):
        came = range(n if step == 0 else n - 1, n) if step else range(n)
        for layer, head in np.ndindex(3, 2):
            tokens = held[2 * layer + head]
            tokens.update(came)
            for dropped in cache.drops[0]:
                if dropped.at == n and dropped.layer == layer:
                    tokens.difference_update(dropped.positions[head].tolist())
            assert set(np.flatnonzero(timeline.held(step)[layer, head]).tolist()) == tokens


@pytest.mark.parametrize(
    "policy", ["", "int8,window=7,page=3", "h2o=8,page=3", "int8-kivi,page=8", "snapkv=8,page=3"]
)
def test_bytes_are_those_of_the_pages_and_as_predicted(policy):
    timeline, cache = recorded(policy)
    assert timeline.nbytes == timeline.predicted_nbytes
    assert timeline.nbytes[-1] == cache.nbytes
    one = 3 * 2 * 16 * 2 * 5 * 4  # layers, key heads, tokens of a page, keys and values of 5 numbers
    assert timeline.full_nbytes == tuple(one * -(-n // 16) for n in timeline.lengths)


def test_work_saved_is_what_each_step_would_have_run_again():
    timeline, _ = recorded("")
    assert (timeline.tokens_run, timeline.tokens_run_anew) == (39, sum(11 + step for step in range(29)))


def test_several_tokens_of_one_item_are_one_step_and_an_item_without_a_token_is_none():
    cache, steps = filled("")

    def two_by_two():
        for _ in steps:
            next(steps, None)
            yield
            yield

    assert record(two_by_two(), cache).lengths == (*range(12, 40, 2), 39)


def test_a_prompt_that_was_read_before_is_the_first_step():
    cache, steps = filled("h2o=8,page=3")
    next(steps)
    timeline = record(steps, cache)
    assert timeline.lengths == tuple(range(11, 40)) and timeline.nbytes == timeline.predicted_nbytes


def test_what_is_no_timeline_is_refused():
    cache, steps = filled("")
    with pytest.raises(OptionError, match="added no token"):
        record([1, 2], cache)
    with pytest.raises(OptionError, match="one sequence"):
        record(steps, PagedCache(SHAPE, batch_size=2))

    def back():
        yield from steps
        cache.trim(5)
        yield

    with pytest.raises(OptionError, match="only grows, but 5 tokens came behind 39"):
        record(back(), cache)


# The picture


def drawn(timeline):
    figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")
    figure = figures.Figure(figsize=timeline_inches(timeline))
    axes = figure.add_subplot()
    draw_timeline(timeline, axes)
    return figure, axes


def test_each_key_head_has_a_map_in_which_cells_are_what_was_held():
    timeline, _ = recorded("knorm=8,page=3")
    _, axes = drawn(timeline)
    panels = [one for one in axes.child_axes if one.images]
    assert len(panels) == 3 * 2
    for panel, (layer, head) in zip(panels, np.ndindex(3, 2), strict=True):
        shown = panel.images[0].get_array()
        assert shown.shape == (39, 29, 3)
        for step, n in enumerate(timeline.lengths):
            for token in range(39):
                held = timeline.held(step)[layer, head, token]
                assert tuple(shown[token, step]) == (HELD if held else DROPPED if token < n else NOT_YET)
    assert [panel.get_title() for panel in panels[:3]] == ["key head 0", "key head 1", ""]


def test_bytes_stand_beside_the_maps_predicted_and_measured():
    timeline, _ = recorded("int8,streaming=8,page=3")
    _, axes = drawn(timeline)
    (beside,) = (one for one in axes.child_axes if not one.images)
    full, predicted, measured = (line.get_ydata() * 1024 for line in beside.lines)
    assert full.tolist() == list(timeline.full_nbytes)
    assert predicted.tolist() == list(timeline.predicted_nbytes)
    assert measured.tolist() == list(timeline.nbytes)
    assert beside.lines[2].get_label() == "measured: as predicted\nat 29 of 29 steps"
    assert axes.get_title(loc="left").startswith("int8,streaming=8,page=3: 39 tokens run; 725 without")


def test_a_picture_is_the_same_each_time():
    def picture():
        timeline, _ = recorded("h2o=8,page=3")
        written = io.BytesIO()
        drawn(timeline)[0].savefig(written, format="png")
        return written.getvalue()

    assert picture() == picture()
