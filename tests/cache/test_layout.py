"""What a page promises: its bytes to the byte, every number at its place, and what was written comes back."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.cache.elements import ELEMENTS
from qkv.cache.layout import PageLayout
from qkv.errors import OptionError, ShapeError

each_element = pytest.mark.parametrize("element", ELEMENTS)
BY_ROW = [name for name, element in ELEMENTS.items() if not element.closes_pages]
WHOLE = [name for name, element in ELEMENTS.items() if element.closes_pages]

layouts = st.builds(
    PageLayout,
    element=st.sampled_from(list(ELEMENTS)),
    P=st.integers(1, 37),
    D_k=st.integers(1, 50).map(lambda half: 2 * half),
    D_v=st.just(2),
    shares_values=st.booleans(),
    tracks=st.booleans(),
) | st.builds(
    PageLayout,
    element=st.sampled_from(list(ELEMENTS)),
    P=st.integers(1, 37),
    D_k=st.integers(1, 50).map(lambda half: 2 * half),
    D_v=st.integers(1, 50).map(lambda half: 2 * half),
    tracks=st.booleans(),
)


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def new_page(layout: PageLayout, fill: int = 0) -> np.ndarray:
    return np.full(layout.nbytes, fill, np.uint8)


def written(layout: PageLayout, k: np.ndarray, v: np.ndarray | None) -> np.ndarray:
    page = new_page(layout)
    layout.write(page, 0, k, v)
    return page


# Bytes


def bytes_of(layout: PageLayout) -> int:
    """Count a page's bytes from the formulas of the policy table, apart from the code that lays them out."""
    P, D_k, D_v = layout.P, layout.D_k, layout.D_v
    k = {
        "float32": 4 * P * D_k,
        "fp16": 2 * P * D_k,
        "bf16": 2 * P * D_k,
        "fp8-e4m3": P * D_k,
        "fp8-e5m2": P * D_k,
        "int8": P * D_k + 4 * P,
        "int8-kivi": P * D_k + 4 * D_k,
        "int4": P * D_k // 2 + 4 * D_k,
    }
    v = {
        "float32": 4 * P * D_v,
        "fp16": 2 * P * D_v,
        "bf16": 2 * P * D_v,
        "fp8-e4m3": P * D_v,
        "fp8-e5m2": P * D_v,
        "int8": P * D_v + 4 * P,
        "int8-kivi": P * D_v + 4 * P,
        "int4": P * D_v // 2 + 4 * P * ((D_v + 31) // 32),
    }
    shared, tracked = layout.shares_values, layout.tracks
    return k[layout.element] + (0 if shared else v[layout.element]) + (8 * P if tracked else 0)


@given(layouts)
def test_a_page_has_the_bytes_of_the_formulas(layout: PageLayout):
    assert layout.nbytes == bytes_of(layout)


def test_bytes_of_a_page_of_llama_3_8b_by_hand():
    # 16 tokens of head size 128 in float32: 16 x 128 x 4 bytes for keys and as many for values
    assert PageLayout("float32", 16, 128, 128).nbytes == 16_384
    assert PageLayout("int8", 16, 128, 128).nbytes == 2 * (16 * 128 + 16 * 4)
    assert PageLayout("int4", 32, 128, 128).nbytes == (32 * 64 + 128 * 4) + (32 * 64 + 32 * 4 * 4)
    # DeepSeek-V2: a latent of 512 and a rotary part of 64, with position and score
    assert PageLayout("fp16", 16, 576, 512, shares_values=True, tracks=True).nbytes == 16 * (576 * 2 + 8)


@given(layouts)
def test_sections_fill_the_page_without_gap_or_overlap_and_every_number_is_aligned(layout: PageLayout):
    sections = list(layout.sections.values())
    assert sections[0].offset == 0
    assert all(one.offset + one.nbytes == next_one.offset for one, next_one in pairwise(sections))
    assert sections[-1].offset + sections[-1].nbytes == layout.nbytes
    assert all(section.offset % section.dtype.itemsize == 0 for section in sections)


@pytest.mark.parametrize(
    ("element", "names"),
    [
        ("fp16", "positions score k v"),
        ("int8", "k_scale v_scale positions score k v"),
        ("int8-kivi", "v_scale positions score k_step k_low k v"),
        ("int4", "positions score k_step k_low v_step v_low k v"),
    ],
)
def test_sections_come_in_the_order_of_the_table(element: str, names: str):
    assert " ".join(PageLayout(element, 3, 10, 14, tracks=True).sections) == names
    untracked = names.replace("positions score ", "")
    assert " ".join(PageLayout(element, 3, 10, 14).sections) == untracked
    latent = " ".join(name for name in untracked.split() if not name.startswith("v"))
    assert " ".join(PageLayout(element, 3, 14, 10, shares_values=True).sections) == latent


def test_the_bytes_of_an_int8_page_by_hand():
    layout = PageLayout("int8", P=2, D_k=3, D_v=1, tracks=True)
    page = new_page(layout)
    layout.write(page, 0, np.array([[127, -1, 2], [0, 0, 0]]), np.array([[0], [254]]))
    layout.open(page)["positions"][:] = [1, 258]
    layout.open(page)["score"][:] = [0, 1]
    one, two = [0, 0, 0x80, 0x3F], [0, 0, 0, 0x40]  # 1.0 and 2.0 in float32, least byte first
    scales = [*one, 0, 0, 0, 0, 0, 0, 0, 0, *two]
    tracked = [1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, *one]
    assert page.tolist() == scales + tracked + [127, 255, 2, 0, 0, 0] + [0, 127]


# Views


@given(layouts)
def test_open_gives_views_of_the_bytes(layout: PageLayout):
    page = new_page(layout)
    for number, (name, view) in enumerate(layout.open(page).items(), start=1):
        section = layout.sections[name]
        assert (view.dtype, view.shape) == (section.dtype, section.shape)
        view.view(np.uint8)[...] = number
        assert (page[section.offset : section.offset + section.nbytes] == number).all()
    assert page.all()


@pytest.mark.parametrize("page", [np.zeros(31, np.uint8), np.zeros(32, np.int8), np.zeros((32, 1), np.uint8)])
def test_open_refuses_what_is_no_page(page: Any):
    layout = PageLayout("int8", 2, 4, 4)
    with pytest.raises(ShapeError, match="a page is 32 bytes of uint8 here"):
        layout.open(page)


# Writing and reading


@each_element
def test_read_returns_what_the_codecs_make_of_what_was_written(element: str):
    layout = PageLayout(element, 5, 38, 34)
    k, v = rows(5, 38), rows(5, 34, seed=1)
    got_k, got_v = layout.read(written(layout, k, v))
    keys, values = ELEMENTS[element].keys, ELEMENTS[element].values
    np.testing.assert_array_equal(got_k, keys.decode(keys.encode(k)))
    np.testing.assert_array_equal(got_v, values.decode(values.encode(v)))
    assert got_k.dtype == got_v.dtype == np.float32


@pytest.mark.parametrize("element", BY_ROW)
def test_rows_written_one_by_one_leave_the_bytes_of_rows_written_at_once(element: str):
    layout = PageLayout(element, 7, 6, 10)
    k, v = rows(7, 6), rows(7, 10, seed=1)
    page = new_page(layout)
    for start, stop in [(3, 7), (0, 1), (1, 3)]:
        layout.write(page, start, k[start:stop], v[start:stop])
    np.testing.assert_array_equal(page, written(layout, k, v))


@pytest.mark.parametrize("element", BY_ROW)
def test_a_write_touches_only_its_own_slots(element: str):
    layout = PageLayout(element, 7, 6, 10, tracks=True)
    page = new_page(layout, fill=0xA5)
    before = {name: view.copy() for name, view in layout.open(page).items()}
    layout.write(page, 2, rows(3, 6), rows(3, 10, seed=1))
    after = layout.open(page)
    elsewhere = [0, 1, 5, 6]
    for name, view in after.items():
        assert view[elsewhere].tobytes() == before[name][elsewhere].tobytes()
        assert (view[2:5].tobytes() == before[name][2:5].tobytes()) == (name in ("positions", "score"))


@pytest.mark.parametrize("element", WHOLE)
def test_closing_a_page_leaves_what_it_tracks(element: str):
    layout = PageLayout(element, 3, 6, 10, tracks=True)
    page = new_page(layout, fill=0xA5)
    layout.write(page, 0, rows(3, 6), rows(3, 10))
    assert all(layout.open(page)[name].tobytes() == b"\xa5" * 12 for name in ("positions", "score"))


@each_element
def test_no_rows_are_written_without_a_change(element: str):
    layout = PageLayout(element, 4, 6, 10).while_filling
    page = new_page(layout, fill=0xA5)
    layout.write(page, 4, rows(0, 6), rows(0, 10))
    assert (page == 0xA5).all()


@each_element
def test_pages_with_leading_axes_are_written_and_read_as_each_alone(element: str):
    layout = PageLayout(element, 5, 38, 34)
    k, v = rows(2, 3, 5, 38), rows(2, 3, 5, 34, seed=1)
    pages = np.zeros((2, 3, layout.nbytes), np.uint8)
    layout.write(pages, 0, k, v)
    np.testing.assert_array_equal(pages[1, 2], written(layout, k[1, 2], v[1, 2]))
    for together, alone in zip(layout.read(pages), layout.read(pages[1, 2]), strict=True):
        np.testing.assert_array_equal(together[1, 2], alone)


@each_element
def test_shared_values_are_a_view_of_the_first_numbers_of_the_keys(element: str):
    layout = PageLayout(element, 5, 38, 34, shares_values=True)
    k, v = layout.read(written(layout, rows(5, 38), None))
    assert k.shape == (5, 38)
    assert np.shares_memory(k, v)
    np.testing.assert_array_equal(v, k[:, :34])


def test_half_precision_and_float64_rows_are_taken():
    layout = PageLayout("float32", 2, 2, 2)
    for dtype in (np.float16, np.float64):
        k, _ = layout.read(written(layout, np.full((2, 2), 0.5, dtype), np.zeros((2, 2), dtype)))
        assert (k == 0.5).all()


def test_what_was_read_does_not_change_with_the_page():
    layout = PageLayout("float32", 2, 2, 2)
    page = written(layout, np.ones((2, 2)), np.ones((2, 2)))
    k, v = layout.read(page)
    page[:] = 0
    assert k.all()
    assert v.all()


# Pages under way


@pytest.mark.parametrize("element", WHOLE)
def test_a_page_under_way_holds_float32_until_it_is_full(element: str):
    layout = PageLayout(element, 5, 38, 34, tracks=True)
    filling = layout.while_filling
    assert filling == PageLayout("float32", 5, 38, 34, tracks=True)
    k, v = rows(5, 38), rows(5, 34, seed=1)
    page = new_page(filling)
    for slot in range(5):
        filling.write(page, slot, k[slot : slot + 1], v[slot : slot + 1])
    np.testing.assert_array_equal(filling.read(page)[0], k)
    np.testing.assert_array_equal(written(layout, *filling.read(page)), written(layout, k, v))


@pytest.mark.parametrize("element", BY_ROW)
def test_other_pages_fill_as_they_are(element: str):
    layout = PageLayout(element, 5, 3, 7)
    assert layout.while_filling is layout


@pytest.mark.parametrize("element", WHOLE)
def test_fewer_rows_than_a_page_cannot_be_encoded_as_a_whole(element: str):
    layout = PageLayout(element, 5, 6, 10)
    with pytest.raises(ShapeError, match="encodes a page of 5 tokens as a whole, not 4; keep fewer"):
        layout.write(new_page(layout), 0, rows(4, 6), rows(4, 10))


# Refusals


@pytest.mark.parametrize(
    ("first_slot", "k", "v"),
    [
        (0, (2, 4), (2, 7)),
        (0, (2, 3), (2, 3)),
        (0, (2, 3), (1, 7)),
        (4, (2, 3), (2, 7)),
        (-1, (2, 3), (2, 7)),
        (0, (6, 3), (6, 7)),
        (0, (1, 2, 3), (1, 2, 7)),
        (0, (2, 3), None),
    ],
)
def test_rows_that_do_not_fit_are_refused(first_slot: int, k: tuple, v: tuple | None):
    layout = PageLayout("int8", 5, 3, 7)
    page = new_page(layout)
    with pytest.raises(ShapeError):
        layout.write(page, first_slot, np.ones(k), None if v is None else np.ones(v))
    assert not page.any()


def test_values_beside_keys_that_hold_them_are_refused():
    layout = PageLayout("int8", 5, 7, 3, shares_values=True)
    with pytest.raises(ShapeError, match=r"with keys \(2, 7\) go values None, not \(2, 3\)"):
        layout.write(new_page(layout), 0, rows(2, 7), rows(2, 3))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"P": 0}, "P of at least 1, not 0"),
        ({"D_k": 0}, "D_k of at least 1"),
        ({"D_v": -1}, "D_v of at least 1"),
        ({"element": "int5"}, "no element type is named 'int5'"),
        ({"element": "int4", "D_k": 7}, "even head size D, not 7"),
        ({"element": "int4", "D_v": 7}, "even head size D, not 7"),
        ({"shares_values": True, "D_v": 8}, "D_v = 8 > D_k = 6"),
    ],
)
def test_sizes_that_make_no_page_are_refused(sizes: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        PageLayout(**{"element": "fp16", "P": 5, "D_k": 6, "D_v": 6} | sizes)


def test_a_layout_is_a_value():
    layout = PageLayout("int4", 5, 6, 10)
    assert layout == PageLayout("int4", 5, 6, 10)
    assert layout != PageLayout("int4", 5, 6, 10, tracks=True)
    assert len({layout, PageLayout("int4", 5, 6, 10), PageLayout("int4", 5, 10, 6)}) == 2
