"""A page map is what the tables and the pool say, and pictures and text show all of it."""

import io
from collections import Counter

import numpy as np
import pytest
from rich.console import Console

from qkv.cache import CacheShape, PagedCache, PagePool, PrefixIndex
from qkv.errors import OptionError
from qkv.viz.pages import Page, page_map
from qkv.viz.pages_picture import COLOURS, draw_pages, pages_inches
from qkv.viz.pages_terminal import page_table

L, G, D, P, H = 3, 2, 5, 7, 4
SHAPE = CacheShape(num_layers=L, num_kv_heads=G, head_dim=D)
PAGE_NBYTES = P * 2 * D * 4


def feed(cache, T):
    """Let a cache take T tokens of each sequence, whatever they are."""
    random = np.random.default_rng(T)
    for layer in range(L):
        k, v = random.normal(size=(2, cache.batch_size, G, T, D)).astype(np.float32)
        cache.append(layer, k, v)
        cache.attend(layer, random.normal(size=(cache.batch_size, H, T, D)).astype(np.float32))


@pytest.fixture
def shared():
    """A text of 2 pages and 3 tokens that an index knows, one that begins alike, and a fork of the first."""
    pool = PagePool(budget_bytes=100 * PAGE_NBYTES)
    index = PrefixIndex(pool, page_size=P)
    first, alike, gone = (PagedCache(SHAPE, f"page={P}", pool=pool) for _ in range(3))
    feed(gone, P)
    gone.remember_prefix(index, range(1000, 1000 + P))
    gone.free()  # 6 pages that only the index holds
    feed(first, 17)
    first.remember_prefix(index, range(17))
    assert alike.adopt_prefix(index, [*range(P), 99, 98, 97]) == P
    feed(alike, 3)
    return {"first": first, "alike": alike, "fork": first.fork()}


def pages_of(made, name) -> list[Page]:
    """The pages of a table that has no holes."""
    table = made.sequences[name]
    assert None not in table
    return list(table)


def ids_of(cache, layer, head):
    return [page_id for page_id in cache.sequences[0].pages.ids[layer, head].tolist() if page_id >= 0]


@pytest.mark.parametrize(("layer", "head"), list(np.ndindex(L, G)))
def test_pages_are_those_of_the_tables_and_count_who_holds_them(shared, layer, head):
    made = page_map(shared, layer, head)
    ids = {name: ids_of(cache, layer, head) for name, cache in shared.items()}
    assert {name: [page.id for page in pages_of(made, name)] for name in made.sequences} == ids
    holders = Counter(page_id for some in ids.values() for page_id in some)
    known = ids["first"][:2]  # to the index too
    for name in made.sequences:
        for page in pages_of(made, name):
            assert page.references == holders[page.id] + (page.id in known)
            assert page.kind == ("shared" if page.references > 1 else "own")
            assert len(made.holders(page.id)) == holders[page.id]
    assert [page.tokens for page in pages_of(made, "fork")] == [7, 7, 3]
    assert [page.references for page in pages_of(made, "first")] == [4, 3, 2]
    assert [page.references for page in pages_of(made, "alike")] == [4, 1]
    assert (len(made.pages), made.pages_unshared, made.num_columns) == (4, 3 + 2 + 3, 3)


def test_the_pool_is_counted_in_pages(shared):
    made = page_map(shared, 1, 0)
    assert (made.idle_pages, len(made.pages), made.other_pages) == (6, 4, 4 * 5)
    assert made.free_pages == 100 - 6 - 4 * 6
    cache = PagedCache(SHAPE, f"page={P}")
    feed(cache, 8)
    assert page_map({"text": cache}).free_pages is None


def test_who_writes_to_a_shared_page_is_shown_with_a_copy(shared):
    before = page_map(shared, 2, 1)
    feed(shared["fork"], 5)
    after = page_map(shared, 2, 1, before)
    was = pages_of(before, "first")[2].id
    assert [page.copy_of for page in pages_of(after, "fork")] == [None, None, was, None]
    assert [page.kind for page in pages_of(after, "fork")] == ["shared", "shared", "copied", "own"]
    assert [page.tokens for page in pages_of(after, "fork")] == [7, 7, 7, 1]
    assert pages_of(after, "first")[2].references == 1 and pages_of(after, "first")[2].copy_of is None
    assert pages_of(before, "fork")[2].id == was  # frozen


def test_a_page_that_is_encoded_when_full_is_nobodys_copy():
    cache = PagedCache(SHAPE, f"int8-kivi,page={P}")
    feed(cache, 6)
    before = page_map({"text": cache})
    feed(cache, 3)
    after = page_map({"text": cache}, before=before)
    assert [(page.tokens, page.kind) for page in pages_of(after, "text")] == [(7, "own"), (2, "own")]


def test_pages_behind_a_window_are_holes_and_sequences_of_one_cache_are_numbered():
    cache = PagedCache(SHAPE, f"window=5,page={P}", batch_size=2)
    feed(cache, 23)
    made = page_map({"text": cache}, 0, 1)
    assert list(made.sequences) == ["text 0", "text 1"]
    for table in made.sequences.values():
        assert [page is None for page in table] == [True, True, False, False]
    assert lines_of(made)[2].split() == ["text", "0", "·", "·", *cells_of(made, "text 0")[2:]]


def test_what_has_no_one_map_is_refused(shared):
    with pytest.raises(OptionError, match="one cache or more"):
        page_map({})
    with pytest.raises(OptionError, match=r"3 layers of 2 key heads.*no 3\.0"):
        page_map(shared, 3, 0)
    with pytest.raises(OptionError, match="one pool"):
        page_map(shared | {"other": PagedCache(SHAPE, f"page={P}")})
    other_form = PagedCache(SHAPE, f"int8,page={P}", pool=shared["first"].pool)
    with pytest.raises(OptionError, match="one form of page"):
        page_map(shared | {"int8": other_form})


# Text


def lines_of(made, width=80):
    written = io.StringIO()
    Console(file=written, width=width).print(page_table(made, width))
    return written.getvalue().splitlines()


def cells_of(made, name):
    shown = []
    for page in made.sequences[name]:
        if page is None:
            shown.append("·")
            continue
        shown.append(f"{page.id}×{page.references}" if page.copy_of is None else f"{page.id}←{page.copy_of}")
        shown += [f"{page.tokens}/{P}"] if page.tokens < P else []
    return shown


def test_the_table_has_every_page_with_its_references(shared):
    before = page_map(shared, 0, 1)
    feed(shared["fork"], 2)
    made = page_map(shared, 0, 1, before)
    lines = lines_of(made)
    assert lines[0] == "layer 0, key head 1: pages of 7 tokens, as id×references"
    assert lines[1].split() == ["slots", "0-6", "7-13", "14-20"]
    for line, name in zip(lines[2:5], made.sequences, strict=True):
        assert line.split() == [name, *cells_of(made, name)]
    assert any("←" in line for line in lines)
    summary = f"5 pages, 8 if nothing were shared; of others {5 * 5}, idle 6, room for {100 - 6 - 5 * 6}"
    assert lines[5:] == [summary]


def test_a_long_table_goes_on_below(shared):
    feed(shared["first"], 60)
    made = page_map(shared)
    lines = lines_of(made, width=40)
    assert max(map(len, lines)) <= 40
    shown = [word for line in lines if line.startswith("first ") for word in line.split()[1:]]
    assert shown == cells_of(made, "first") and len(made.sequences["first"]) == 11
    titles = [word for line in lines if line.startswith("slots ") for word in line.split()[1:]]
    assert titles == [f"{7 * place}-{7 * place + 6}" for place in range(11)]


# The picture


def drawn(made):
    figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")
    figure = figures.Figure(figsize=pages_inches(made))
    axes = figure.add_subplot()
    draw_pages(made, axes)
    return figure, axes


def test_each_page_is_a_frame_filled_as_far_as_its_tokens_go(shared):
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    before = page_map(shared, 1, 1)
    feed(shared["fork"], 2)
    made = page_map(shared, 1, 1, before)
    _, axes = drawn(made)
    pool_bar = {patch for bars in axes.containers for patch in bars}
    patches = [one for one in axes.patches if isinstance(one, Rectangle) and one not in pool_bar]
    every = [page for name in made.sequences for page in pages_of(made, name)] + list(made.pages)
    assert len(patches) == 2 * len(every) == 2 * (8 + 5)
    for page, fill in zip(every, patches[::2], strict=True):
        assert fill.get_width() == pytest.approx(0.92 * page.tokens / P)
        assert to_hex(fill.get_facecolor()) == COLOURS[page.kind]
    texts = Counter(text.get_text() for text in axes.texts)
    assert all(texts[str(page_id)] >= count for page_id, count in Counter(page.id for page in every).items())
    references = Counter(f"×{page.references}" for page in every if page.copy_of is None)
    assert {says: texts[says] for says in references} == references
    copied = pages_of(made, "fork")[2]
    assert texts[f"×1, was {copied.copy_of}"] == 2


def test_each_reference_is_a_square_in_its_sequences_colour_or_hollow(shared):
    made = page_map(shared)
    _, axes = drawn(made)
    colours = Counter(line.get_markerfacecolor() for line in axes.lines)
    # 3, 2 and 3 pages of the sequences; the index knows two of them.
    assert colours == {"C0": 3, "C1": 2, "C2": 3, "none": 2}


def test_the_pool_is_one_bar_of_all_pages(shared):
    made = page_map(shared)
    _, axes = drawn(made)
    widths = {bars.get_label(): bars[0].get_width() for bars in axes.containers}
    shares = {name: width / sum(widths.values()) for name, width in widths.items()}
    assert shares == pytest.approx({"these": 0.04, "of other heads or texts": 0.2, "idle": 0.06, "free": 0.7})
    assert "these 4, of other heads or texts 20, idle 6, room for 70" in [
        one.get_text() for one in axes.texts
    ]


def test_a_hole_is_an_empty_frame():
    cache = PagedCache(SHAPE, f"window=5,page={P}")
    feed(cache, 23)
    _, axes = drawn(page_map({"text": cache}))
    assert sum(patch.get_linestyle() in (":", "dotted") for patch in axes.patches) == 2
    assert "no budget" in axes.texts[-1].get_text()


def test_an_empty_cache_has_an_empty_row():
    made = page_map({"text": PagedCache(SHAPE, f"page={P}")})
    assert made.sequences == {"text": ()} and lines_of(made)[1].startswith("0 pages")
    _, axes = drawn(made)
    assert "these 0, of other heads or texts 0, idle 0, no budget" in [one.get_text() for one in axes.texts]


def test_more_pages_than_a_picture_shows_are_refused_and_printed():
    cache = PagedCache(SHAPE, "page=1")
    feed(cache, 65)
    made = page_map({"text": cache})
    with pytest.raises(OptionError, match="64 pages side by side, not 65; print page_table"):
        drawn(made)
    assert sum(line.count("×1") for line in lines_of(made)) == 65


def test_a_picture_is_the_same_each_time(shared):
    def picture():
        written = io.BytesIO()
        drawn(page_map(shared))[0].savefig(written, format="png")
        return written.getvalue()

    assert picture() == picture()
