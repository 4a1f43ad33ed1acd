"""Whatever a cache stores and drops, the same token after the same context gives the same bits.

On the compiled backend only: NumPy's matrix product changes bits with the number of rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from qkv import load, new_cache
from qkv.cache import PagedCache
from qkv.cache.elements import ELEMENTS
from qkv.kernels.host import set_num_threads
from qkv.ops.backend import is_compiled
from tiny_deepseek import write_model as write_deepseek
from tiny_models import write_model

pytestmark = pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")

LENGTH, TRIMMED = 61, 54
IDS, OTHER_IDS = np.random.default_rng(0).integers(0, 101, (2, LENGTH))

STORED = [f"{element},page=6" for element in ELEMENTS]
WINDOWED = [f"{element},window=9,sinks=2,page=4" for element in ELEMENTS]
EXACT = [*STORED, *WINDOWED, "window=5,heads=01,sinks=3,page=3", "int8"]
EVICTING = [
    "streaming=11,page=4", "int8,h2o=12,page=4", "h2o=12:age,page=3", "fp8-e4m3,tova=11,page=4",
    "bf16,knorm=11,page=1", "int4,snapkv=12,page=6", "pyramidkv=12,page=4", "expected=12,page=5",
    "streaming=11,rerotate,page=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Heads of 32 numbers, so that codes go straight from pages into the products."""
    return load(write_model(tmp_path_factory.mktemp("llama"), "llama", head_dim=32))


@pytest.fixture(scope="module", params=["mistral", "deepseek_v3", "stories260k"])
def other_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "stories260k":
        return load(request.getfixturevalue("stories260k"))
    folder = tmp_path_factory.mktemp("model")
    if request.param == "deepseek_v3":
        return load(write_deepseek(folder, request.param, kv_lora_rank=12))  # with 4 turned numbers, even
    return load(write_model(folder, request.param))


@pytest.fixture
def threads() -> Iterator[Any]:
    yield set_num_threads
    set_num_threads(None)


def bits(logits: np.ndarray) -> list:
    return logits.view(np.uint32).tolist()


def read(model: Any, cache: PagedCache, ids: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The first row's logits of ids in chunks of these sizes; the others run beside it and end sooner."""
    B, logits, start = cache.batch_size, [], 0
    texts = np.stack([np.roll(ids, row) for row in range(B)])
    lengths = np.array([len(ids) - 7 * row for row in range(B)])
    for size in sizes:
        mask = start + np.arange(size) < lengths[:, None]
        chunk = texts[:, start : start + size]
        logits.append(model.logits(chunk, cache, mask=None if mask.all() else mask)[0])
        start += size
    assert start == len(ids)
    return np.concatenate(logits)


def chunks_of(size: int) -> list[int]:
    return [size] * (LENGTH // size) + [LENGTH % size] * (LENGTH % size > 0)


def check_chunks_neighbours_and_threads(model: Any, policy: str, threads: Any) -> None:
    threads(1)
    expected = bits(read(model, new_cache(model, policy), IDS, [LENGTH]))
    runs = (1, 1, chunks_of(1)), (2, 1, chunks_of(7)), (2, 3, [LENGTH]), (1, 3, [*chunks_of(7)[:6], 1, 18])
    for num_threads, B, sizes in runs:
        threads(num_threads)
        cache = new_cache(model, policy, batch_size=B)
        assert bits(read(model, cache, IDS, sizes)) == expected, (num_threads, B, sizes)
        cache.check_integrity()


def check_forked_and_trimmed(model: Any, policy: str) -> None:
    expected = read(model, new_cache(model, policy), IDS, [LENGTH])
    cache = new_cache(model, policy)
    read(model, cache, IDS[:TRIMMED], [TRIMMED])
    fork = cache.fork()
    assert bits(read(model, fork, OTHER_IDS[TRIMMED:], [LENGTH - TRIMMED])) != bits(expected[TRIMMED:])
    assert bits(read(model, cache, IDS[TRIMMED:], [LENGTH - TRIMMED])) == bits(expected[TRIMMED:])
    cache = new_cache(model, policy)
    end = LENGTH - 1 if has_window(model, policy) else TRIMMED
    read(model, cache, np.concatenate([IDS[:end], OTHER_IDS[end:]]), [LENGTH])
    cache.trim(end)
    assert bits(read(model, cache, IDS[end:], [LENGTH - end])) == bits(expected[end:])


def has_window(model: Any, policy: str) -> bool:
    """Whether a text can go back by one token only."""
    return "window" in policy or any(getattr(model.config, "windows", ()))


# What is stored of every token in sight


@pytest.mark.parametrize("policy", EXACT)
def test_bits_do_not_depend_on_chunks_neighbours_or_threads(llama: Any, policy: str, threads: Any):
    check_chunks_neighbours_and_threads(llama, policy, threads)


@pytest.mark.parametrize("policy", EXACT)
def test_forked_is_not_forked_and_regrown_is_never_trimmed(llama: Any, policy: str):
    check_forked_and_trimmed(llama, policy)


@pytest.mark.parametrize("policy", ["page=6", "int8,page=6", "int4,page=6", "fp8-e5m2,window=9,page=4"])
def test_other_models_give_the_same_bits_too(other_model: Any, policy: str, threads: Any):
    check_chunks_neighbours_and_threads(other_model, policy, threads)
    check_forked_and_trimmed(other_model, policy)


# What is dropped goes by the steps in which a text came, and by nothing else


@pytest.mark.parametrize("policy", EVICTING)
def test_an_evicted_text_has_the_same_bits_alone_and_in_a_batch(llama: Any, policy: str, threads: Any):
    sizes = [30, *[1] * 20, 11]
    threads(1)
    alone = new_cache(llama, policy)
    expected, dropped = bits(read(llama, alone, IDS, sizes)), dropped_positions(alone)
    assert dropped
    for num_threads, B in ((2, 1), (1, 3), (2, 2)):
        threads(num_threads)
        cache = new_cache(llama, policy, batch_size=B)
        assert bits(read(llama, cache, IDS, sizes)) == expected
        assert dropped_positions(cache) == dropped


def dropped_positions(cache: PagedCache) -> list:
    return [drop.positions.tolist() for drop in cache.drops[0]]


@pytest.mark.parametrize("policy", EVICTING)
def test_an_evicted_text_has_the_same_bits_forked_and_not(llama: Any, policy: str):
    cache, whole = new_cache(llama, policy), new_cache(llama, policy)
    expected = read(llama, whole, IDS, [30, *[1] * 20, 11])
    read(llama, cache, IDS[:40], [30, *[1] * 10])
    fork = cache.fork()
    read(llama, fork, OTHER_IDS[40:], [1] * 10 + [11])
    assert bits(read(llama, cache, IDS[40:], [1] * 10 + [11])) == bits(expected[40:])
