"""The pool: pages by number, counted references, a budget that holds."""

import ctypes
import pickle
import tracemalloc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.cache.pool import NO_PAGE, Ids, PagePool
from qkv.errors import CacheFull, OptionError, ShapeError

NBYTES = 37


class Shelf:
    """A keeper that does nothing but keep, and notes what it was told and asked."""

    def __init__(self, pool: PagePool) -> None:
        self.pool, self.ids = pool, np.zeros(0, np.int64)
        self.told: list[list[int]] = []
        self.asked: list[int] = []
        pool.keepers.append(self)

    @property
    def idle(self) -> Ids:
        return self.ids[self.pool.references(self.ids) == 1]

    @property
    def idle_bytes(self) -> int:
        return int(self.pool.sizes(self.idle).sum())

    def keep(self, ids: Ids) -> None:
        self.pool.keep(ids, self)
        self.ids = np.append(self.ids, ids)

    def reclaim(self, nbytes: int) -> None:
        self.asked.append(nbytes)
        enough = self.pool.nbytes - nbytes
        while self.pool.nbytes > enough and self.idle.size:
            gone = self.idle[0]
            self.ids = self.ids[self.ids != gone]
            self.pool.give_back(gone, self)

    def references_changed(self, ids: Ids) -> None:
        self.told.append(ids.tolist())


def state(pool: PagePool, ids: Ids) -> tuple:
    """Everything a caller can see of a pool."""
    seen = pool.nbytes, pool.peak_nbytes, pool.free_bytes, pool.num_pages, pool.idle_bytes
    return *seen, pool.references(ids).tolist(), pool.sizes(ids).tolist()


# What is taken is there


def test_a_page_taken_has_its_size_and_one_reference():
    pool = PagePool()
    ids = pool.take(NBYTES, 3)
    assert ids.dtype == np.int64 and ids.shape == (3,)
    assert [(pool.page(i).shape, pool.page(i).dtype) for i in ids] == [((NBYTES,), np.uint8)] * 3
    assert pool.references(ids).tolist() == [1, 1, 1]
    assert (pool.nbytes, pool.num_pages) == (3 * 37, 3)
    pool.check_integrity()


def test_taking_nothing_gives_no_ids():
    pool = PagePool()
    assert pool.take(NBYTES, 0).shape == (0,)
    assert (pool.nbytes, pool.num_pages) == (0, 0)
    pool.check_integrity()


def test_pages_of_several_sizes_share_one_pool():
    pool = PagePool()
    small, large = pool.take(7, 5), pool.take(101, 3)
    assert pool.sizes([small[0], large[2], NO_PAGE]).tolist() == [7, 101, 0]
    assert pool.nbytes == 5 * 7 + 3 * 101
    pool.free(small[1:])
    assert pool.nbytes == 7 + 3 * 101
    pool.check_integrity()


def test_what_lies_at_an_address_is_the_page():
    pool = PagePool()
    ids = pool.take(NBYTES, 6).reshape(2, 3)
    for i in ids.flat:
        pool.page(i)[:] = 10 * i + np.arange(NBYTES)
    addresses = pool.addresses(ids)
    assert addresses.shape == (2, 3) and addresses.dtype == np.int64
    for i, address in zip(ids.flat, addresses.ravel().tolist(), strict=True):
        assert list((ctypes.c_uint8 * NBYTES).from_address(address)) == pool.page(i).tolist()


def test_no_page_has_no_address_and_nothing_to_share_or_free():
    pool = PagePool()
    ids = pool.take(NBYTES, 2)
    table = np.array([[ids[0], NO_PAGE], [NO_PAGE, ids[1]]])
    assert (pool.addresses(table) != 0).tolist() == [[True, False], [False, True]]
    pool.share(table)
    assert pool.references(table).tolist() == [[2, 0], [0, 2]]
    pool.free(table)
    pool.free(table)
    assert pool.num_pages == 0
    pool.free([NO_PAGE])
    pool.check_integrity()


def test_new_page_makes_the_pages():
    pool = PagePool(new_page=lambda nbytes: np.full(nbytes, 255, np.uint8))
    (i,) = pool.take(8, 1)
    assert np.isnan(pool.page(i).view(np.float32)).all()


@pytest.mark.parametrize(
    "new_page",
    [
        lambda nbytes: np.empty(nbytes + 1, np.uint8),
        lambda nbytes: np.empty(nbytes, np.int8),
        lambda nbytes: np.empty((1, nbytes), np.uint8),
        lambda nbytes: np.empty(2 * nbytes, np.uint8)[::2],
    ],
    ids=["too long", "other numbers", "two axes", "in pieces"],
)
def test_new_page_must_make_so_many_bytes_in_one_piece(new_page: Callable):
    pool = PagePool(new_page=new_page)
    with pytest.raises(ShapeError, match=r"new_page makes \(37,\) bytes in one piece"):
        pool.take(NBYTES, 1)
    assert pool.num_pages == 0
    pool.check_integrity()


@pytest.mark.parametrize(("nbytes", "count"), [(0, 1), (-1, 1), (1, -1)])
def test_no_pages_of_no_bytes(nbytes: int, count: int):
    with pytest.raises(OptionError, match="1 byte or more"):
        PagePool().take(nbytes, count)


# References


def test_a_page_is_there_until_its_last_reference_is_given_up():
    pool = PagePool()
    ids = pool.take(NBYTES, 2)
    pool.share(ids)
    pool.share(ids[:1])
    assert pool.references(ids).tolist() == [3, 2]
    for nbytes, references in [(74, [2, 1]), (37, [1, 0])]:
        pool.free(ids)
        assert (pool.nbytes, pool.references(ids).tolist()) == (nbytes, references)
    pool.free(ids[0])
    assert (pool.nbytes, pool.num_pages) == (0, 0)
    pool.check_integrity()


def test_a_page_named_twice_is_shared_and_freed_twice():
    pool = PagePool()
    (i,) = pool.take(NBYTES, 1)
    pool.share([i, i])
    assert pool.references(i) == 3
    pool.free([[i, i], [i, NO_PAGE]])
    assert pool.num_pages == 0
    pool.check_integrity()


@pytest.mark.parametrize("verb", ["share", "free", "addresses", "page"])
def test_a_page_that_was_freed_cannot_be_used_again(verb: str):
    pool = PagePool()
    ids = pool.take(NBYTES, 3)
    pool.free(ids[1])
    before = state(pool, ids)
    with pytest.raises(OptionError, match=f"page {ids[1]} is not held"):
        getattr(pool, verb)(ids[1] if verb == "page" else ids)
    assert state(pool, ids) == before
    pool.check_integrity()


def test_freeing_more_references_than_there_are_frees_none():
    pool = PagePool()
    ids = pool.take(NBYTES, 3)
    before = state(pool, ids)
    with pytest.raises(OptionError, match=f"page {ids[2]} has fewer references"):
        pool.free([ids[0], ids[2], ids[2]])
    assert state(pool, ids) == before
    pool.check_integrity()


@pytest.mark.parametrize("beyond", [3, -2, 10**6, -(10**6)])
@pytest.mark.parametrize("verb", ["share", "free", "addresses", "references", "sizes"])
def test_an_id_that_never_was_is_refused(verb: str, beyond: int):
    pool = PagePool()
    ids = pool.take(NBYTES, 3)
    with pytest.raises(OptionError, match="expected ids of this pool"):
        getattr(pool, verb)([ids[0], beyond])
    with pytest.raises(OptionError, match="is not held"):
        pool.page(beyond)
    assert pool.references(ids).tolist() == [1, 1, 1]


def test_ids_of_freed_pages_are_used_again_in_their_order():
    pool = PagePool()
    ids = pool.take(NBYTES, 7)
    pool.free(ids[2:5])
    assert pool.take(NBYTES, 3).tolist() == ids[2:5].tolist()
    pool.free(ids)
    for _ in range(50):
        assert pool.take(NBYTES, 7).tolist() == ids.tolist()
        pool.free(ids)
    pool.check_integrity()


def test_forked_sequences_copy_a_page_before_they_write_to_it():
    """Pages of 4 tokens, 6 tokens, one fork, one token more for each: 2 pages, 2, then 3; then 2 again."""
    pool = PagePool()
    parent = pool.take(4, 2)
    pool.page(parent[1])[:2] = 5, 6
    child = parent.copy()
    pool.share(child)
    assert pool.num_pages == 2

    for sequence, token in ((parent, 7), (child, 8)):
        if pool.references(sequence[1]) > 1:
            (copy,) = pool.take(4, 1)
            pool.page(copy)[:] = pool.page(sequence[1])
            pool.free(sequence[1])
            sequence[1] = copy
        pool.page(sequence[1])[2] = token
    assert pool.num_pages == 3
    assert pool.references([*parent, *child]).tolist() == [2, 1, 2, 1]

    pool.free(parent)
    assert pool.num_pages == 2
    assert pool.page(child[1])[:3].tolist() == [5, 6, 8]
    pool.check_integrity()


# The budget


def test_a_budget_holds_to_the_byte():
    pool = PagePool(budget_bytes=3 * NBYTES)
    ids = pool.take(NBYTES, 3)
    assert pool.free_bytes == 0
    with pytest.raises(CacheFull):
        pool.take(1, 1)
    pool.free(ids[0])
    with pytest.raises(CacheFull):
        pool.take(NBYTES + 1, 1)
    pool.take(NBYTES, 1)
    pool.check_integrity()


def test_a_full_pool_says_what_was_asked_what_is_free_and_what_would_fit():
    pool = PagePool(budget_bytes=1000)
    pool.take(150, 5)
    with pytest.raises(CacheFull) as caught:
        pool.take(100, 7)
    full = caught.value
    assert (full.asked_pages, full.page_nbytes, full.free_bytes, full.idle_bytes) == (7, 100, 250, 0)
    assert (full.budget_bytes, full.pages_that_fit) == (1000, 2)
    assert "7 pages of 100 bytes do not fit: of the budget of 1000 bytes 250 are free" in str(full)
    assert "enough for 2 pages" in str(full)
    assert str(pickle.loads(pickle.dumps(full))) == str(full)


def test_a_full_pool_is_as_it_was():
    pool = PagePool(budget_bytes=10 * NBYTES)
    shelf, ids = Shelf(pool), pool.take(NBYTES, 7)
    shelf.keep(ids[3:5])
    pool.free(ids[4:])
    before = state(pool, ids)
    with pytest.raises(CacheFull) as caught:
        pool.take(NBYTES, 7)
    assert state(pool, ids) == before
    assert (caught.value.idle_bytes, caught.value.pages_that_fit) == (37, 6)
    assert shelf.asked == []
    pool.check_integrity()


def test_a_page_that_cannot_be_made_leaves_the_pool_as_it_was():
    made = []

    def new_page(nbytes: int) -> np.ndarray:
        if len(made) == 5:
            raise MemoryError
        made.append(np.empty(nbytes, np.uint8))
        return made[-1]

    pool = PagePool(new_page=new_page)
    ids = pool.take(NBYTES, 3)
    before = state(pool, ids)
    with pytest.raises(MemoryError):
        pool.take(NBYTES, 3)
    assert state(pool, ids) == before
    pool.check_integrity()


@pytest.mark.parametrize("budget", [None, 10**9])
def test_the_peak_is_the_most_there_ever_was(budget: int | None):
    pool = PagePool(budget)
    first = pool.take(10, 5)
    pool.free(first[:3])
    pool.take(10, 2)
    assert (pool.nbytes, pool.peak_nbytes) == (40, 50)
    pool.take(20, 1)
    assert (pool.nbytes, pool.peak_nbytes) == (60, 60)


def test_without_a_budget_nothing_is_said_to_be_free():
    assert PagePool().free_bytes is None
    with pytest.raises(OptionError, match="0 bytes or more"):
        PagePool(budget_bytes=-1)


# Keepers


def test_a_keeper_gives_back_only_what_is_needed():
    pool = PagePool(budget_bytes=7 * NBYTES)
    shelf, ids = Shelf(pool), pool.take(NBYTES, 7)
    shelf.keep(ids[2:6])
    pool.free(ids[1:6])
    assert (pool.free_bytes, pool.idle_bytes) == (37, 4 * 37)
    pool.take(NBYTES, 1)
    assert shelf.asked == []
    pool.take(NBYTES, 2)
    assert shelf.asked == [2 * 37]
    assert pool.references(shelf.ids).tolist() == [1, 1]
    assert (pool.free_bytes, pool.idle_bytes) == (0, 2 * 37)
    pool.check_integrity()


def test_keepers_are_asked_in_turn():
    pool = PagePool(budget_bytes=5 * NBYTES)
    first, second, third = Shelf(pool), Shelf(pool), Shelf(pool)
    ids = pool.take(NBYTES, 5)
    first.keep(ids[:2])
    second.keep(ids[2:4])
    third.keep(ids[4:])
    pool.free(ids)
    pool.take(NBYTES, 3)
    assert (first.asked, second.asked, third.asked) == ([3 * 37], [37], [])
    pool.check_integrity()


def test_a_keeper_hears_of_changes_to_its_own_pages_alone():
    pool = PagePool()
    first, second, ids = Shelf(pool), Shelf(pool), pool.take(NBYTES, 5)
    first.keep(ids[:2])
    second.keep(ids[2:3])
    pool.share(ids[1:])
    pool.free(ids[3:])
    pool.free(ids[:1])
    assert first.told == [[ids[1]], [ids[0]]]
    assert second.told == [[ids[2]]]


def test_the_keepers_reference_is_nobody_elses_to_free():
    pool = PagePool()
    shelf, ids = Shelf(pool), pool.take(NBYTES, 2)
    shelf.keep(ids)
    assert pool.references(ids).tolist() == [2, 2]
    pool.free(ids)
    before = state(pool, ids)
    with pytest.raises(OptionError, match=f"page {ids[0]} has fewer references"):
        pool.free(ids)
    assert state(pool, ids) == before
    pool.give_back(ids, shelf)
    assert pool.num_pages == 0
    pool.check_integrity()


def test_a_page_given_back_stays_with_those_who_hold_it():
    pool = PagePool()
    shelf, ids = Shelf(pool), pool.take(NBYTES, 2)
    shelf.keep(ids)
    pool.give_back(ids, shelf)
    assert pool.references(ids).tolist() == [1, 1]
    pool.free(ids)
    assert (pool.num_pages, shelf.told) == (0, [])


@pytest.mark.parametrize("which", [[0, 2], [2, 2]], ids=["kept already", "given twice"])
def test_a_page_is_kept_once(which: list[int]):
    pool = PagePool()
    first, second, ids = Shelf(pool), Shelf(pool), pool.take(NBYTES, 3)
    first.keep(ids[:1])
    before = state(pool, ids)
    with pytest.raises(OptionError, match="kept once, by one keeper"):
        second.keep(ids[which])
    assert state(pool, ids) == before


@pytest.mark.parametrize("which", [[1], [0, 0], [2]], ids=["another's", "given twice", "not kept"])
def test_only_what_a_keeper_keeps_is_its_to_give_back(which: list[int]):
    pool = PagePool()
    first, second, ids = Shelf(pool), Shelf(pool), pool.take(NBYTES, 3)
    first.keep(ids[:1])
    second.keep(ids[1:2])
    before = state(pool, ids)
    with pytest.raises(OptionError, match="not this keeper's"):
        pool.give_back(ids[which], first)
    assert state(pool, ids) == before


def test_a_keeper_that_keeps_nothing_may_be_dismissed_and_the_others_keep_what_they_keep():
    pool = PagePool()
    first, second, third = Shelf(pool), Shelf(pool), Shelf(pool)
    ids = pool.take(NBYTES, 3)
    for shelf, which in ((first, slice(1)), (third, slice(1, 3))):
        shelf.keep(ids[which])
    with pytest.raises(OptionError, match="gives them back before"):
        pool.dismiss(first)
    pool.dismiss(second)
    pool.free(ids)
    assert (first.told, second.told, third.told) == ([[ids[0]]], [], [ids[1:].tolist()])
    pool.give_back(ids[1:], third)
    pool.give_back(ids[:1], first)
    pool.check_integrity()
    assert pool.keepers == [first, third] and pool.num_pages == 0


# Memory and work


def test_a_page_that_was_freed_is_dropped():
    pool = PagePool()
    ids = pool.take(NBYTES, 2)
    kept, dropped = (weakref.ref(pool.page(i)) for i in ids)
    pool.free(ids[1])
    assert kept() is not None and dropped() is None


def test_freed_memory_goes():
    """Pages of 64 KiB: what Python has allocated follows ``nbytes`` to less than half a page."""
    pool, notes = PagePool(), 2**15
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ids = pool.take(2**16, 101)
        for freed in (ids[:50], ids[50:]):
            assert pool.nbytes <= tracemalloc.get_traced_memory()[0] - before < pool.nbytes + notes
            pool.free(freed)
        assert pool.nbytes == 0
        assert tracemalloc.get_traced_memory()[0] - before < notes
    finally:
        tracemalloc.stop()


def test_a_few_pages_cost_the_same_beside_many():
    """Nothing as long as the pool's 100,000 pages is made to take, share or free 3 of them."""
    pool = PagePool(budget_bytes=2 * 10**5)
    shelf, ids = Shelf(pool), pool.take(1, 10**5)
    pool.take(1, 10)
    shelf.keep(ids[:5])
    tracemalloc.start()
    try:
        for _ in range(3):
            few = pool.take(1, 3)
            pool.share(few)
            pool.addresses(few)
            pool.free(few)
            pool.free(few)
        assert tracemalloc.get_traced_memory()[1] < 2**14
    finally:
        tracemalloc.stop()


def test_ids_are_doubled_not_added_one_by_one():
    pool = PagePool()
    grown = set()
    for _ in range(1000):
        pool.take(1, 1)
        grown.add(len(pool._references))
    # room for 1, 2, 4, ..., 1024 pages and for none
    assert sorted(grown) == [2**n + 1 for n in range(11)]


# Integrity


def damage_free_list(pool: PagePool) -> None:
    pool._free_ids.append(0)


def damage_free_list_twice(pool: PagePool) -> None:
    pool._free_ids.append(pool._free_ids[0])


def lose_an_id(pool: PagePool) -> None:
    pool._free_ids.pop()


def damage_references(pool: PagePool) -> None:
    pool._references[1] = 0


def damage_freed_references(pool: PagePool) -> None:
    pool._references[pool._free_ids[0]] = 1


def damage_no_page(pool: PagePool) -> None:
    pool._references[NO_PAGE] = 1


def damage_bytes(pool: PagePool) -> None:
    pool.nbytes -= 1


def damage_size(pool: PagePool) -> None:
    pool._sizes[0] += 1
    pool.nbytes += 1


def damage_address(pool: PagePool) -> None:
    pool._addresses[0] += 1


def give_one_array_to_two_pages(pool: PagePool) -> None:
    pool._pages[0], pool._addresses[0] = pool._pages[1], pool._addresses[1]


def damage_peak(pool: PagePool) -> None:
    pool.peak_nbytes = pool.nbytes - 1


def exceed_budget(pool: PagePool) -> None:
    pool.budget_bytes = pool.nbytes - 1


@pytest.mark.parametrize(
    "damage",
    [
        damage_free_list,
        damage_free_list_twice,
        lose_an_id,
        damage_references,
        damage_freed_references,
        damage_no_page,
        damage_bytes,
        damage_size,
        damage_address,
        give_one_array_to_two_pages,
        damage_peak,
        exceed_budget,
    ],
)
def test_integrity_is_lost_by_any_damage(damage: Callable[[PagePool], None]):
    pool = PagePool(budget_bytes=10**6)
    pool.free(pool.take(NBYTES, 7)[3:])
    pool.check_integrity()
    damage(pool)
    with pytest.raises(AssertionError):
        pool.check_integrity()


@given(
    counts=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=20),
    rng=st.randoms(use_true_random=False),
)
def test_bytes_free_and_bytes_used_are_the_budget(counts: list[tuple[int, int]], rng):
    pool, held = PagePool(budget_bytes=97), []
    for nbytes, count in counts:
        try:
            held += pool.take(nbytes, count).tolist()
        except CacheFull as full:
            assert full.pages_that_fit == pool.free_bytes // nbytes < count  # pyright: ignore
            rng.shuffle(held)
            pool.free(held[: len(held) // 2])
            del held[: len(held) // 2]
        pool.check_integrity()
        assert pool.free_bytes is not None
        assert pool.free_bytes + pool.nbytes == 97
        assert pool.num_pages == len(held) == len(set(held))
