"""The index of prefixes: what is found was computed for the same beginning, and what is idle can go."""

import sys
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qkv.cache.pool import NO_PAGE, Ids, PagePool
from qkv.cache.prefix import Hit, PrefixIndex, PrefixStatistics
from qkv.errors import CacheFull, OptionError, ShapeError

NBYTES = 37
HASHES: dict[str, Callable[[tuple], int]] = {
    "a hash": hash,
    "always 0": lambda chain: 0,
    "0 to 2": lambda chain: hash(chain) % 3,
}


@pytest.fixture(params=HASHES)
def pool_and_index(request: pytest.FixtureRequest) -> tuple[PagePool, PrefixIndex]:
    pool = PagePool(budget_bytes=100 * NBYTES)
    return pool, PrefixIndex(pool, 4, HASHES[request.param])


def run(pool: PagePool, index: PrefixIndex, tokens: list[int], **under: str) -> list[Ids]:
    """Compute a text, remember it, and let go of it; return its pages."""
    pages = list(pool.take(NBYTES, len(tokens) // index.page_size)[:, None])
    index.insert(tokens, pages, **under)
    pool.free(pages)
    return pages


def release(pool: PagePool, hit: Hit) -> None:
    pool.free(hit.ids_per_page)
    if hit.partial_ids is not None:
        pool.free(hit.partial_ids)


def found(pool: PagePool, index: PrefixIndex, tokens: list[int], **under: str) -> tuple[int, int]:
    """How many tokens of a text are found, in full pages and in part of one more."""
    hit = index.lookup(tokens, **under)
    release(pool, hit)
    return hit.num_tokens, hit.partial_tokens


def text(start: int, end: int) -> list[int]:
    return list(range(start, end + 1))


# What is found


def test_only_full_pages_of_the_same_beginning_are_shared(pool_and_index):
    pool, index = pool_and_index
    a, b = run(pool, index, text(1, 10))
    hit = index.lookup([*text(1, 8), 9, 99])
    assert (hit.num_tokens, [page.tolist() for page in hit.ids_per_page]) == (8, [a, b])
    assert (hit.partial_tokens, hit.partial_ids) == (0, None)
    release(pool, hit)
    assert found(pool, index, [9, 9, 9, 9, *text(5, 10)]) == (0, 0)
    assert found(pool, index, text(1, 7)) == (4, 3)
    assert index.num_cached_tokens == 8
    index.check_integrity()


def test_what_another_salt_or_adapter_computed_is_never_found(pool_and_index):
    pool, index = pool_and_index
    run(pool, index, text(1, 8), salt="x")
    assert found(pool, index, text(1, 8), adapter="x") == (0, 0)
    assert found(pool, index, text(1, 8), salt="y") == (0, 0)
    assert found(pool, index, text(1, 8), salt="x", adapter="x") == (0, 0)
    assert found(pool, index, text(1, 8)) == (0, 0)
    assert found(pool, index, text(1, 8), salt="x") == (8, 0)
    index.check_integrity()


@pytest.mark.parametrize(
    ("num_tokens", "full", "partial"), [(8, 4, 3), (9, 8, 0), (12, 8, 3), (1, 0, 0), (4, 0, 3), (5, 4, 0)]
)
def test_a_text_known_in_full_leaves_one_token_to_compute(
    pool_and_index, num_tokens: int, full: int, partial: int
):
    """Page by page 4, 1 and 4 tokens of 8, 9 and 12 are to be computed again; token by token 1 of each."""
    pool, index = pool_and_index
    tokens = text(1, num_tokens)
    run(pool, index, tokens)
    assert found(pool, index, tokens[:-1]) == (full, partial)


def test_within_a_page_the_entry_that_begins_most_alike_is_found(pool_and_index):
    pool, index = pool_and_index
    pages = {}
    for ends in ([5, 1, 1, 1], [5, 6, 2, 2], [5, 6, 7, 3], [5, 6, 7, 9], [300, 6, 7, 8], [4, 6, 7, 8]):
        pages[tuple(ends)] = run(pool, index, [1, 2, 3, 4, *ends])[1]
    for rest, partial in [
        ([5, 6, 7, 8], 3),
        ([5, 6, 2, 7], 3),
        ([5, 6, 9], 2),
        ([5, 6], 2),
        ([5, 0, 0, 0], 1),
        ([300], 1),
        ([6, 6, 7, 8], 0),
        ([], 0),
    ]:
        hit = index.lookup([1, 2, 3, 4, *rest])
        assert (hit.num_tokens, hit.partial_tokens) == (4, partial)
        if partial:
            (alike,) = (ends for ends, ids in pages.items() if ids is not None and ids == hit.partial_ids)
            assert list(alike[:partial]) == rest[:partial]
        release(pool, hit)
    assert pool.nbytes == pool.idle_bytes


def test_pages_are_found_in_the_shape_they_were_inserted_in(pool_and_index):
    pool, index = pool_and_index
    ids = pool.take(NBYTES, 2 * 3 * 5).reshape(2, 3, 5)
    ids[1, 0, 2] = NO_PAGE
    index.insert(text(1, 8), ids)
    hit = index.lookup(text(1, 9))
    np.testing.assert_array_equal(np.stack(hit.ids_per_page), ids)
    assert pool.references(ids).max() == 3


def test_nobody_can_change_what_the_index_holds():
    pool = PagePool()
    index = PrefixIndex(pool, 4)
    ids = pool.take(NBYTES, 1)
    index.insert(text(1, 4), [ids])
    expected, ids[0] = ids[0], 99
    hit = index.lookup(text(1, 4))
    assert hit.ids_per_page[0] == expected
    with pytest.raises(ValueError, match="read-only"):
        hit.ids_per_page[0][0] = 99


def test_where_tokens_are_known_the_known_pages_stay(pool_and_index):
    pool, index = pool_and_index
    first = run(pool, index, text(1, 8))
    second = pool.take(NBYTES, 3)
    index.insert(text(1, 12), second[:, None])
    hit = index.lookup(text(1, 12))
    assert np.concatenate(hit.ids_per_page[:2]).tolist() == np.concatenate(first).tolist()
    assert hit.ids_per_page[2] == second[2]
    release(pool, hit)
    pool.free(second)
    assert pool.num_pages == 3
    index.check_integrity()


def test_tokens_of_texts_looked_up_are_counted(pool_and_index):
    pool, index = pool_and_index
    assert index.statistics == PrefixStatistics()
    run(pool, index, text(1, 10))
    found(pool, index, [1, 2, 3, 4, 5, 6, 99, 99])
    found(pool, index, text(1, 9))
    found(pool, index, [7])
    assert index.statistics == PrefixStatistics(full_tokens=4 + 8, partial_tokens=2, missed_tokens=2 + 1 + 1)


# What is refused


@pytest.mark.parametrize("num_pages", [1, 3])
def test_as_many_pages_as_tokens_fill_are_inserted(num_pages: int):
    pool = PagePool()
    index = PrefixIndex(pool, 4)
    with pytest.raises(ShapeError, match="10 tokens fill 2 pages of 4"):
        index.insert(text(1, 10), pool.take(NBYTES, num_pages))


@pytest.mark.parametrize("which", [[0, 0], [0, 2]], ids=["twice in one text", "of another text"])
def test_a_page_cannot_hold_two_runs_of_tokens(which: list[int]):
    pool = PagePool()
    index = PrefixIndex(pool, 4)
    ids = pool.take(NBYTES, 3)
    index.insert(text(11, 14), ids[2:])
    with pytest.raises(OptionError, match="kept once"):
        index.insert(text(1, 8), ids[which])
    assert index.num_cached_tokens == 4
    assert pool.references(ids).tolist() == [1, 1, 2]
    index.check_integrity()


def test_a_page_that_was_freed_cannot_be_inserted():
    pool = PagePool()
    index = PrefixIndex(pool, 4)
    ids = pool.take(NBYTES, 2)
    pool.free(ids[1])
    with pytest.raises(OptionError, match="is not held"):
        index.insert(text(1, 8), ids)
    assert (index.num_cached_tokens, pool.num_pages) == (0, 1)
    index.check_integrity()


def test_tokens_without_any_page_cannot_be_inserted():
    pool = PagePool()
    index = PrefixIndex(pool, 4)
    with pytest.raises(ShapeError, match="at least one id"):
        index.insert(text(1, 8), [pool.take(NBYTES, 1), [NO_PAGE]])
    assert (index.num_cached_tokens, pool.references(0)) == (0, 1)


def test_one_text_at_a_time():
    index = PrefixIndex(PagePool(), 4)
    with pytest.raises(ShapeError, match=r"one text, \(S,\), not of shape \(2, 3\)"):
        index.lookup([[1, 2, 3], [4, 5, 6]])
    with pytest.raises(OptionError, match="at least one token"):
        PrefixIndex(PagePool(), 0)


# What is idle


def test_a_page_used_for_other_tokens_is_not_found_under_its_old_ones(pool_and_index):
    """A pool of 2 pages of 4: tokens 1 to 4, then 5 to 12 in both, so that 1 to 4 are gone."""
    _, index = pool_and_index
    pool = PagePool(budget_bytes=2 * NBYTES)
    index = PrefixIndex(pool, 4, index._tree._hash)
    (old,) = run(pool, index, text(1, 4))
    assert found(pool, index, [1, 2, 3, 4, 0]) == (4, 0)
    new = pool.take(NBYTES, 2)
    assert old in new
    assert pool.references(new).tolist() == [1, 1]
    index.insert(text(5, 12), new)
    assert found(pool, index, [1, 2, 3, 4, 0]) == (0, 0)
    pool.free(new)
    with pytest.raises(OptionError, match="fewer references"):
        pool.free(new)
    assert found(pool, index, text(5, 12)) == (8, 0)
    assert pool.num_pages == 2
    index.check_integrity()


def test_an_entry_is_idle_while_no_sequence_holds_any_of_its_pages(pool_and_index):
    pool, index = pool_and_index
    ids = pool.take(NBYTES, 3)
    index.insert(text(1, 4), [ids])
    for used, idle_bytes in ((ids[:1], 0), (ids[1:2], 0), (ids[2:], 3 * 37)):
        assert index.idle_bytes == pool.idle_bytes == 0
        pool.free(used)
        assert index.idle_bytes == pool.idle_bytes == idle_bytes
    hit = index.lookup(text(1, 4))
    assert index.idle_bytes == 0
    release(pool, hit)
    assert index.idle_bytes == 3 * 37
    index.check_integrity()


def test_the_longest_unused_goes_first(pool_and_index):
    pool, index = pool_and_index
    texts = {name: text(start, start + 3) for name, start in (("a", 10), ("b", 20), ("c", 30), ("d", 40))}
    pages = {name: run(pool, index, tokens)[0] for name, tokens in texts.items()}
    found(pool, index, texts["a"])
    found(pool, index, [*texts["c"][:2], 0])
    in_use = index.lookup(texts["d"])
    for name in ("b", "a", "c"):
        index.reclaim(1)
        assert pool.references(pages.pop(name)) == 0
        assert [int(pool.references(page)[0]) for page in pages.values()] == [1] * (len(pages) - 1) + [2]
        index.check_integrity()
    index.reclaim(1)
    assert index.num_cached_tokens == 4
    release(pool, in_use)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]], ids=str)
def test_a_page_never_goes_before_those_behind_it(pool_and_index, order: list[int]):
    """In whatever order a sequence lets go of its pages, as behind a window."""
    pool, index = pool_and_index
    ids = pool.take(NBYTES, 3)
    index.insert(text(1, 12), ids)
    for number in order:
        pool.free(ids[number])
    run(pool, index, text(101, 104))
    for references in ([1, 1, 0], [1, 0, 0], [0, 0, 0]):
        index.reclaim(1)
        assert pool.references(ids).tolist() == references
        index.check_integrity()
    assert found(pool, index, text(101, 104)) == (4, 0)


def test_what_is_found_is_as_new_as_what_is_behind_it(pool_and_index):
    """Two texts that begin alike: the beginning goes after the last of both, with the newer."""
    pool, index = pool_and_index
    shared, older = run(pool, index, text(1, 8))
    (between,) = run(pool, index, text(50, 53))
    newer = pool.take(NBYTES, 1)
    hit = index.lookup(text(1, 4))
    index.insert([1, 2, 3, 4, 9, 9, 9, 9], [hit.ids_per_page[0], newer])
    release(pool, hit)
    pool.free(newer)
    for gone in (older, between, newer, shared):
        assert pool.references(gone) == 1
        index.reclaim(1)
        assert pool.references(gone) == 0
    assert pool.num_pages == 0


def test_what_nobody_could_find_any_more_is_let_go(pool_and_index):
    """A window has left the first pages, and the pool needs them: the rest stays with its sequence alone."""
    pool, index = pool_and_index
    ids = pool.take(NBYTES, 4)
    index.insert(text(1, 16), ids)
    pool.free(ids[:2])
    index.reclaim(2 * NBYTES)
    assert pool.references(ids).tolist() == [0, 0, 1, 1]
    assert index.num_cached_tokens == 0
    index.check_integrity()
    pool.free(ids[2:])
    assert pool.num_pages == 0


def test_clear_forgets_everything_and_takes_nothing_in_use(pool_and_index):
    pool, index = pool_and_index
    run(pool, index, text(1, 12))
    run(pool, index, text(101, 104), salt="x")
    hit = index.lookup(text(1, 8))
    index.clear()
    assert (index.num_cached_tokens, pool.num_pages, pool.idle_bytes) == (0, 2, 0)
    assert found(pool, index, text(1, 12)) == (0, 0)
    release(pool, hit)
    assert pool.num_pages == 0
    index.check_integrity()


def test_a_salt_leaves_nothing_behind():
    pool = PagePool(budget_bytes=3 * NBYTES)
    index = PrefixIndex(pool, 4)
    for number in range(100):
        run(pool, index, text(1, 4), salt=f"user {number}")
        found(pool, index, text(1, 4), salt=f"never computed {number}")
    assert len(index._tree._roots) == 3
    assert len(index._tree._with_key) == 3


def test_two_page_sizes_share_one_pool():
    pool = PagePool(budget_bytes=6 * NBYTES)
    small, large = PrefixIndex(pool, 3), PrefixIndex(pool, 5)
    run(pool, small, text(1, 9))
    run(pool, large, text(1, 15))
    assert (small.idle_bytes, large.idle_bytes) == (3 * 37, 3 * 37)
    pool.take(NBYTES, 4)
    assert (small.num_cached_tokens, large.num_cached_tokens) == (0, 10)
    assert found(pool, large, text(1, 15)) == (10, 0)
    small.check_integrity()
    large.check_integrity()


def num_calls(work: Callable[[], object]) -> int:
    """Count the calls of functions, those of NumPy and of built-in ones included."""
    calls = Counter()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


def test_an_entry_costs_the_same_beside_many():
    """Beside 10 entries and beside 5,000: looked up, freed, inserted, and given back."""
    calls = []
    for num_entries in (10, 5000):
        pool = PagePool()
        index = PrefixIndex(pool, 4)
        ids = pool.take(1, num_entries + 2)
        for number in range(num_entries):
            index.insert([number + 10] * 4, ids[number : number + 1])
        pool.free(ids[:num_entries])

        def lookup_insert_and_reclaim(
            pool: PagePool = pool, index: PrefixIndex = index, ids: Ids = ids
        ) -> None:
            release(pool, index.lookup([11] * 4))
            index.insert([11] * 4 + [5] * 4, ids[-2:])
            pool.free(ids[-2:])
            index.reclaim(1)

        calls.append(num_calls(lookup_insert_and_reclaim))
    # an ordered list of children is searched by halves: 5000 are 2 ** 9 times as many as 10
    assert calls[0] <= calls[1] <= calls[0] + 4 * 9


def test_pages_of_a_long_text_cost_as_much_as_those_of_a_short_one():
    """Per page, to find a text of 50 or of 400 pages and to let go of it."""
    calls = []
    for num_pages in (50, 400):
        pool = PagePool()
        index = PrefixIndex(pool, 1)
        tokens = text(1, num_pages)
        pages = pool.take(1, num_pages)[:, None]
        index.insert(tokens, pages)
        pool.free(pages)

        def find_and_free(
            pool: PagePool = pool, index: PrefixIndex = index, tokens: list[int] = tokens
        ) -> None:
            release(pool, index.lookup(tokens))

        calls.append(num_calls(find_and_free) / num_pages)
    assert calls[1] <= 1.1 * calls[0]


def test_notes_on_pages_are_doubled_not_added_one_by_one():
    pool = PagePool()
    index = PrefixIndex(pool, 1)
    grown = set()
    for number in range(1000):
        index.insert([number], pool.take(1, 1)[:, None])
        grown.add(len(index._first_ids))
    assert len(grown) <= 11  # 1, 2, 4, ..., 1024


# Integrity


def forget_an_entry(index: PrefixIndex) -> None:
    index._with_first_id.popitem()


def mistake_the_entry(index: PrefixIndex) -> None:
    index._first_ids[0] = 1


def lose_a_hash(index: PrefixIndex) -> None:
    index._tree._with_key.popitem()


def mistake_a_hash(index: PrefixIndex) -> None:
    next(iter(index._tree)).key += 1


def mistake_a_parent(index: PrefixIndex) -> None:
    first, second, *_ = index._tree
    second.parent = first.parent


def disorder_children(index: PrefixIndex) -> None:
    next(iter(index._tree)).children.reverse()


def add_a_child_twice(index: PrefixIndex) -> None:
    children = next(iter(index._tree)).children
    children.insert(0, children[0])


def keep_an_empty_root(index: PrefixIndex) -> None:
    index._tree._roots["x", ""] = index._tree.root("x", "")


def mistake_use_for_idleness(index: PrefixIndex) -> None:
    index._idle[next(iter(index._tree))] = None


def mistake_idleness_for_use(index: PrefixIndex) -> None:
    index.idle_bytes -= index._nbytes(index._idle.popitem()[0])


def damage_idle_bytes(index: PrefixIndex) -> None:
    index.idle_bytes += 1


def free_a_page_behind_its_back(index: PrefixIndex) -> None:
    index._pool.give_back(next(iter(index._idle)).ids, index)


@pytest.mark.parametrize(
    "damage",
    [
        forget_an_entry,
        mistake_the_entry,
        lose_a_hash,
        mistake_a_hash,
        mistake_a_parent,
        disorder_children,
        add_a_child_twice,
        keep_an_empty_root,
        mistake_use_for_idleness,
        mistake_idleness_for_use,
        damage_idle_bytes,
        free_a_page_behind_its_back,
    ],
)
def test_integrity_is_lost_by_any_damage(damage: Callable[[PrefixIndex], None]):
    pool = PagePool()
    index = PrefixIndex(pool, 2)
    for ends in ([3, 4], [5, 6], [7, 8]):
        run(pool, index, [1, 2, *ends])
    index.lookup([1, 2, 5])
    index.check_integrity()
    damage(index)
    with pytest.raises((AssertionError, KeyError)):
        index.check_integrity()


# Requests that end in any way

P, L, G, ROW = 3, 2, 2, 5  # page size, layers, heads, bytes of a token in a page


def row_of(salt: str, tokens: tuple[int, ...], page: int) -> np.ndarray:
    """What a layer and head would store for the last of these tokens: it depends on all of them."""
    content = repr((salt, tokens, page)).encode()
    return np.frombuffer(blake2b(content, digest_size=ROW).digest(), np.uint8)


class Text:
    """A sequence with its pages: shares what is known, and copies before it writes to what others hold."""

    def __init__(self, pool: PagePool, salt: str) -> None:
        self.pool, self.salt = pool, salt
        self.tokens: tuple[int, ...] = ()
        self.table = np.zeros((0, L, G), np.int64)

    def begin(self, index: PrefixIndex, tokens: tuple[int, ...]) -> None:
        """Take over what is known of all tokens but the last."""
        hit = index.lookup(tokens[:-1], salt=self.salt)
        self.table = np.array(hit.ids_per_page, np.int64).reshape(-1, L, G)
        self.tokens = tokens[: hit.num_tokens]
        if hit.partial_ids is not None:
            try:
                self.table = np.concatenate([self.table, [self.copied(hit.partial_ids)]])
                self.tokens = tokens[: hit.num_tokens + hit.partial_tokens]
            except CacheFull:
                pass  # then it is computed instead
            self.pool.free(hit.partial_ids)

    def copied(self, ids: Ids) -> Ids:
        copies = self.pool.take(P * ROW, ids.size).reshape(ids.shape)
        for copy, original in zip(copies.flat, ids.flat, strict=True):
            self.pool.page(copy)[:] = self.pool.page(original)
        return copies

    def append(self, token: int) -> None:
        page, slot = divmod(len(self.tokens), P)
        if page == len(self.table):
            new = self.pool.take(P * ROW, L * G).reshape(1, L, G)
            self.table = np.concatenate([self.table, new])
        elif (self.pool.references(self.table[page]) > 1).any():
            shared = self.table[page].copy()
            self.table[page] = self.copied(shared)
            self.pool.free(shared)
        self.tokens += (token,)
        for number, i in enumerate(self.table[page].flat):
            self.pool.page(i)[slot * ROW : (slot + 1) * ROW] = row_of(self.salt, self.tokens, number)

    def fork(self) -> "Text":
        twin = Text(self.pool, self.salt)
        self.pool.share(self.table)
        twin.tokens, twin.table = self.tokens, self.table.copy()
        return twin

    def trim(self, length: int) -> None:
        num_pages = -(-length // P)
        self.pool.free(self.table[num_pages:])
        self.table, self.tokens = self.table[:num_pages], self.tokens[:length]

    def evict(self, pages: slice, heads: slice) -> None:
        """Let go of pages of full tokens, as behind a window, in some heads or in all."""
        num_full = len(self.tokens) // P
        self.pool.free(self.table[:num_full][pages, :, heads])
        self.table[:num_full][pages, :, heads] = NO_PAGE

    def remember(self, index: PrefixIndex) -> None:
        num_full = len(self.tokens) // P
        index.insert(self.tokens, self.table[:num_full], salt=self.salt)

    @property
    def is_whole(self) -> bool:
        return bool((self.table != NO_PAGE).all())

    def check(self) -> None:
        """See that each page holds what this text, and no other, would have stored."""
        for end in range(1, len(self.tokens) + 1):
            page, slot = divmod(end - 1, P)
            for number, i in enumerate(self.table[page].flat):
                if i != NO_PAGE:
                    row = self.pool.page(i)[slot * ROW : (slot + 1) * ROW]
                    assert (row == row_of(self.salt, self.tokens[:end], number)).all()


def bytes_of_noise(nbytes: int) -> np.ndarray:
    return np.frombuffer(b"\xff" * nbytes, np.uint8).copy()


def test_requests_that_end_in_any_way_leave_no_page_behind():
    """1000 requests, each ended after a random step: while it waits, in its prompt, or as it goes on."""
    rng = np.random.default_rng(0)
    budget = 40 * L * G * P * ROW
    pool = PagePool(budget, bytes_of_noise)
    index = PrefixIndex(pool, P)
    running: list[Text] = []
    for number in range(1000):
        request = Text(pool, salt="")
        running.append(request)
        prompt = tuple(rng.integers(0, 2, rng.integers(1, 17)).tolist())
        try:
            request.begin(index, prompt)
            for token in prompt[len(request.tokens) : rng.integers(0, 24)]:
                request.append(token)
            if number % 3 == 0:
                request.remember(index)
        except CacheFull:
            pass
        while len(running) > rng.integers(0, 9):
            running.pop(rng.integers(len(running))).trim(0)
        assert pool.free_bytes is not None
        assert pool.free_bytes + pool.nbytes == budget
    for request in running:
        request.trim(0)
    assert pool.nbytes == pool.idle_bytes == index.num_cached_tokens * L * G * ROW > 0
    pool.check_integrity()
    index.check_integrity()


class PoolAndIndex(RuleBasedStateMachine):
    """Texts that begin, go on, fork, are cut and end in any order, in a pool too small for them."""

    texts: list[Text]

    @initialize(num_pages=st.integers(0, 15), hash=st.sampled_from(list(HASHES.values())))
    def set_up(self, num_pages: int, hash: Callable[[tuple], int]):
        self.pool = PagePool(num_pages * L * G * P * ROW + 7, bytes_of_noise)
        self.index = PrefixIndex(self.pool, P, hash)
        self.texts = []

    def any_text(self, data: st.DataObject) -> Text:
        return data.draw(st.sampled_from(self.texts))

    def is_as_it_was_if_full(self, work: Callable[[], None]) -> None:
        before = self.pool.nbytes, self.pool.idle_bytes, self.index.num_cached_tokens
        try:
            work()
        except CacheFull as full:
            assert before == (self.pool.nbytes, self.pool.idle_bytes, self.index.num_cached_tokens)
            assert full.pages_that_fit < full.asked_pages

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=13), salt=st.sampled_from("xy"))
    def begin(self, tokens: list[int], salt: str):
        begun = Text(self.pool, salt)
        self.texts.append(begun)
        begun.begin(self.index, tuple(tokens))
        begun.check()
        for token in tokens[len(begun.tokens) :]:
            self.is_as_it_was_if_full(lambda token=token: begun.append(token))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=7))
    def append(self, data: st.DataObject, tokens: list[int]):
        appended = self.any_text(data)
        if appended.is_whole or len(appended.tokens) % P == 0:
            for token in tokens:
                self.is_as_it_was_if_full(lambda token=token: appended.append(token))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data: st.DataObject):
        self.texts.append(self.any_text(data).fork())

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def trim(self, data: st.DataObject):
        trimmed = self.any_text(data)
        if trimmed.is_whole:
            trimmed.trim(data.draw(st.integers(0, len(trimmed.tokens))))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), heads=st.sampled_from([slice(None), slice(1, None)]))
    def evict(self, data: st.DataObject, heads: slice):
        evicted = self.any_text(data)
        first = data.draw(st.integers(0, 3))
        evicted.evict(slice(first, first + data.draw(st.integers(1, 3))), heads)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def remember(self, data: st.DataObject):
        remembered = self.any_text(data)
        if remembered.is_whole:
            remembered.remember(self.index)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def end(self, data: st.DataObject):
        ended = self.any_text(data)
        self.texts.remove(ended)
        self.pool.free(ended.table)

    @rule(nbytes=st.integers(1, 500), count=st.integers(0, 20))
    def take_and_free(self, nbytes: int, count: int):
        self.is_as_it_was_if_full(lambda: self.pool.free(self.pool.take(nbytes, count)))

    @rule(nbytes=st.integers(0, 500))
    def reclaim(self, nbytes: int):
        before = self.pool.nbytes, self.pool.idle_bytes
        self.index.reclaim(nbytes)
        freed = before[0] - self.pool.nbytes
        assert freed >= min(nbytes, before[1])

    @rule()
    def clear(self):
        self.index.clear()

    @invariant()
    def integrity(self):
        self.pool.check_integrity()
        self.index.check_integrity()

    @invariant()
    def references_are_those_of_texts_and_index(self):
        holders = Counter(i for held in self.texts for i in held.table.flat if i != NO_PAGE)
        holders.update(i for entry in self.index._tree for i in entry.ids.flat if i != NO_PAGE)
        ids = np.array(list(holders), np.int64)
        assert self.pool.references(ids).tolist() == list(holders.values())
        assert self.pool.num_pages == len(holders)

    @invariant()
    def pages_hold_what_their_texts_stored(self):
        for held in self.texts:
            held.check()

    def teardown(self):
        for held in self.texts:
            self.pool.free(held.table)
        assert self.pool.nbytes == self.pool.idle_bytes
        self.index.clear()
        assert self.pool.nbytes == self.pool.num_pages == 0
        self.integrity()


PoolAndIndex.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolAndIndex = PoolAndIndex.TestCase


class OldestFirst(RuleBasedStateMachine):
    """Entries go in the order of their last use, a use of any text being one of all its beginnings."""

    @initialize()
    def set_up(self):
        self.pool = PagePool()
        self.index = PrefixIndex(self.pool, 1)
        self.last_use: dict[tuple[int, ...], int] = {}  # of what is remembered
        self.page: dict[tuple[int, ...], int] = {}
        self.now = 0

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def use(self, tokens: list[int]):
        hit = self.index.lookup(tokens)
        new = self.pool.take(NBYTES, len(tokens) - hit.num_tokens)
        table = np.concatenate([*hit.ids_per_page, new[:, None]], axis=None)
        self.index.insert(tokens, table[:, None])
        self.pool.free(table)
        self.now += 1
        for end, i in enumerate(table.tolist(), 1):
            self.last_use[tuple(tokens[:end])] = self.now
            self.page[tuple(tokens[:end])] = i

    @precondition(lambda self: self.last_use)
    @rule()
    def reclaim(self):
        oldest = min(self.last_use, key=lambda tokens: (self.last_use[tokens], -len(tokens)))
        self.index.reclaim(1)
        del self.last_use[oldest]
        assert self.pool.references(self.page[oldest]) == 0
        assert self.index.num_cached_tokens == len(self.last_use)


OldestFirst.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestOldestFirst = OldestFirst.TestCase
