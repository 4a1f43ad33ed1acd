"""Caches of every policy, random texts for them, and pages that tell who reads what was never written."""

import weakref
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from qkv.cache import CacheShape, PagedCache, PagePool, Policy, Rotation
from qkv.cache.attending import positions_of
from qkv.cache.elements import ELEMENTS
from qkv.ops.backend import Backend, can_compile
from qkv.ops.rotary import Rotary, rotary_frequencies
from slow_cache import Sizes

BACKENDS: tuple[Backend, ...] = ("numpy", "compiled") if can_compile() else ("numpy",)

GROUPED = Sizes(L=2, G=2, H=4, D=6, D_v=10)
ONE_KEY_HEAD = Sizes(L=3, G=1, H=3, D=32, D_v=32)  # whole vectors, whose codes are read as they are
AS_MANY = Sizes(L=2, G=3, H=3, D=5, D_v=7)
LATENT = Sizes(L=2, G=1, H=3, D=24, D_v=16, shares_values=True)
SIZES = {GROUPED: "grouped", ONE_KEY_HEAD: "one key head", AS_MANY: "as many", LATENT: "latent"}
HEADS = {GROUPED: "10/01", ONE_KEY_HEAD: "0/1/0", AS_MANY: "101", LATENT: "0/1"}

WINDOWS = ("", "window=5", "window=6,sinks=2", "window=5,sinks=3,heads=", "window=3,sinks=9")
EVERY_STEP = ("streaming=7", "streaming=7,sinks=0", "h2o=7:sum", "h2o=7:age,sinks=1", "h2o=7")
EVERY_STEP += ("tova=7", "knorm=7,sinks=2")
AFTER_PROMPT = ("snapkv=7", "snapkv=8,sinks=3", "pyramidkv=7", "expected=7", "expected=7,sinks=0")
REROTATED = ("streaming=7,rerotate", "snapkv=7,rerotate", "expected=7,rerotate", "h2o=7,rerotate")


def _parts(element: str) -> tuple[str, ...]:
    """What can stand beside an element type."""
    parts = WINDOWS + AFTER_PROMPT
    parts += () if ELEMENTS[element].closes_pages else EVERY_STEP
    return parts + (REROTATED if element in ("float32", "fp16", "bf16") else ())


def _fits(element: str, part: str, sizes: Sizes) -> bool:
    if sizes.shares_values and ("expected" in part or "rerotate" in part):
        return False  # the model turns a part of its keys only
    return element != "int4" or (sizes.D % 2 == 0 and sizes.D_v % 2 == 0)


def _cases() -> Iterator[tuple[str, Sizes]]:
    """Give each pair of parts once; sizes of models and pages take turns."""
    sizes_in_turn, pages = cycle(SIZES), cycle((5, 3, 7, 1, 4))
    for element in ELEMENTS:
        for part in _parts(element):
            sizes = next(sizes for sizes in sizes_in_turn if _fits(element, part, sizes))
            pattern = HEADS[sizes] if part.endswith("=") else ""
            yield str(Policy.parse(f"{element},{part}{pattern},page={next(pages)}")), sizes


CASES = list(_cases())
ONE_OF_A_KIND = [case for case in CASES if Policy.parse(case[0]).element in ("float32", "int8", "int4")]
"""An element stored as it is, one with numbers beside it, and one that is encoded page by page."""


def _each(cases: list[tuple[str, Sizes]]) -> pytest.MarkDecorator:
    ids = [f"{policy}-{SIZES[sizes]}" for policy, sizes in cases]
    return pytest.mark.parametrize(("policy", "sizes"), cases, ids=ids)


each_policy, each_kind = _each(CASES), _each(ONE_OF_A_KIND)
each_without_eviction = _each([case for case in CASES if Policy.parse(case[0]).eviction is None])

STEPS = ((13, 9), (2, 4), (1, 1), (1, 1), (0, 1), (1, 0), (1, 1), (5, 1), (1, 1))
"""So many tokens of each of two texts: more than any budget and less, together and alone."""


class Pages:
    """Makes pages whose every byte is the same, NaN unless it is said, and knows which are still there."""

    def __init__(self, byte: int = 255) -> None:
        self.byte, self.made = byte, []

    def __call__(self, nbytes: int) -> np.ndarray:
        page = np.full(nbytes, self.byte, np.uint8)
        self.made.append(weakref.ref(page))
        return page

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for ref in self.made if (page := ref()) is not None)


class Texts:
    """Random queries, keys and values of B texts of S tokens, and caches that read them."""

    def __init__(self, sizes: Sizes, B: int = 2, S: int = 60, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.sizes, self.B = sizes, B
        self.q, self.k, self.v = (
            rng.normal(size=(sizes.L, B, heads, S, D)).astype(np.float32)
            for heads, D in ((sizes.H, sizes.D), (sizes.G, sizes.D), (sizes.G, sizes.D_v))
        )

    def cache(self, policy: str, pool: PagePool | None = None) -> PagedCache:
        """Return an empty cache, its pages full of NaN unless they are from a pool that is given."""
        one = self.sizes
        shape = CacheShape(one.L, one.G, one.D, value_dim=one.D_v, shares_values=one.shares_values)
        pool = PagePool(new_page=Pages()) if pool is None else pool
        return PagedCache(shape, policy, self.B, pool=pool, rotation=Rotation(rotary_of(one)))

    def step(self, cache: PagedCache, counts: Sequence[int], **rules: Any) -> np.ndarray:
        """Run so many next tokens of each row through every layer: (L, B, H, T, D_v), 0 where is none."""
        starts = cache.lengths
        outputs = [self.layer(cache, layer, starts, counts, **rules) for layer in range(self.sizes.L)]
        real = np.arange(max(counts)) < np.array(counts)[:, None]
        return np.where(real[:, None, :, None], outputs, 0)

    def layer(
        self, cache: PagedCache, layer: int, starts: Sequence[int], counts: Sequence[int], **rules: Any
    ) -> np.ndarray:
        """Run tokens through one layer."""
        self.append(cache, layer, starts, counts)
        return cache.attend(layer, self._part(self.q, layer, starts, counts), _lengths(counts), **rules)

    def append(self, cache: PagedCache, layer: int, starts: Sequence[int], counts: Sequence[int]) -> None:
        """Only put the tokens of one layer in."""
        k, v = (self._part(x, layer, starts, counts) for x in (self.k, self.v))
        cache.append(layer, k, None if self.sizes.shares_values else v, _lengths(counts))

    def _part(self, x: np.ndarray, layer: int, starts: Sequence[int], counts: Sequence[int]) -> np.ndarray:
        part = np.full((self.B, x.shape[2], max(counts), x.shape[4]), np.nan, np.float32)
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            part[row, :, :count] = x[layer, row, :, start : start + count]
        return part


def _lengths(counts: Sequence[int]) -> list[int] | None:
    return None if len(set(counts)) == 1 else list(counts)


def rotary_of(sizes: Sizes) -> Rotary:
    """How keys are turned: by all their pairs."""
    return rotary_frequencies(sizes.D // 2 * 2, theta=100.0)


def state_of(cache: PagedCache) -> tuple:
    """Everything that a step may change, as a value: counts, page numbers, and what tokens' slots hold."""
    seen = []
    for one, drops in zip(cache.sequences, cache.drops, strict=True):
        tables = [(table.ids.tolist(), table.addresses.tolist()) for table in one.tables]
        pages = [cache.pool.page(i).tobytes() for table in one.tables for i in table.ids[table.present]]
        seen.append((one.held.tolist(), one.tokens.tolist(), one.evicted_at, tables, pages, len(drops)))
    return cache.pool.nbytes, cache.nbytes, seen


def positions(cache: PagedCache, row: int, layer: int) -> list[list[int]]:
    """Where in the text the tokens held stand; with a window, those that have fallen behind it count."""
    one = cache.sequences[row]
    if cache.policy.eviction is None:
        return [list(range(count)) for count in one.held[layer].tolist()]
    return positions_of(one, layer).tolist()
