"""Ways to give out the slots of a pool: runs of a power of two, or pages wherever they are free."""

from typing import Protocol

from qkv.cache.pool import Ids, PagePool


class BuddyAllocator:
    """Runs of a power of two of slots, halved when a smaller one is asked for, joined when freed.

    What Orca and others used for contiguous caches (Kwon et al. 2023, section 6.1). A pool that is no
    power of two begins as the sum of some.

    Parameters
    ----------
    num_slots : int

    Examples
    --------
    >>> buddies = BuddyAllocator(24)  # 16 + 8
    >>> buddies.take(5), buddies.take(9), buddies.take(9)
    (16, 0, None)
    >>> buddies.free(16, 5)
    >>> buddies.take(8)
    16
    """

    def __init__(self, num_slots: int) -> None:
        self._free: list[set[int]] = [set() for _ in range(num_slots.bit_length() + 1)]
        start = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    def take(self, size: int) -> int | None:
        """Return where a run of at least ``size`` slots begins; ``None`` if there is none."""
        wanted = (size - 1).bit_length()
        order = next((o for o in range(wanted, len(self._free)) if self._free[o]), None)
        if order is None:
            return None
        start = self._free[order].pop()
        while order > wanted:
            order -= 1
            self._free[order].add(start + (1 << order))
        return start

    def free(self, start: int, size: int) -> None:
        """Give a run back, joined with its neighbour if that is free as a whole."""
        order = (size - 1).bit_length()
        while (buddy := start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free[order].add(start)


class Pages(Protocol):
    """Pages of one size, given out by number."""

    num_pages: int

    @property
    def num_free(self) -> int:
        """Pages that are free."""
        ...

    def take(self, count: int) -> list[int]:
        """Take so many pages; there are as many."""
        ...

    def free(self, pages: list[int]) -> None:
        """Give pages back."""
        ...


class CountedPages:
    """Pages that exist as numbers alone."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages))

    @property
    def num_free(self) -> int:
        """Pages that are free."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take so many pages; there are as many."""
        assert count <= len(self._free), "more pages were taken than there are"
        return [self._free.pop() for _ in range(count)]

    def free(self, pages: list[int]) -> None:
        """Give pages back."""
        self._free += pages


class PooledPages:
    """Pages of our own cache's `PagePool`: what the engine allocates from."""

    def __init__(self, num_pages: int, page_nbytes: int) -> None:
        self.num_pages = num_pages
        self.pool = PagePool(budget_bytes=num_pages * page_nbytes)
        self._page_nbytes = page_nbytes

    @property
    def num_free(self) -> int:
        """Pages that are free."""
        free = self.pool.free_bytes
        assert free is not None
        return free // self._page_nbytes

    def take(self, count: int) -> list[int]:
        """Take so many pages; there are as many."""
        ids: Ids = self.pool.take(self._page_nbytes, count)
        return ids.tolist()

    def free(self, pages: list[int]) -> None:
        """Give pages back."""
        self.pool.free(pages)
