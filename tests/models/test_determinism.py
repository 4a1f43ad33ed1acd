"""The same token after the same context gives the same bits, whatever is computed beside it.

On the compiled backend only: NumPy's matrix product changes bits with the number of rows.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import ContiguousCache, load, new_cache
from qkv.kernels.host import set_num_threads
from qkv.ops.backend import is_compiled
from tiny_deepseek import KINDS as DEEPSEEKS
from tiny_deepseek import write_model as write_deepseek
from tiny_models import FAMILIES, write_model

pytestmark = pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")

LENGTH = 61
IDS = np.random.default_rng(0).integers(0, 101, LENGTH)
CACHES = {
    "contiguous": lambda model, batch_size: ContiguousCache(model.cache_shape, batch_size),
    "paged": lambda model, batch_size: new_cache(model, batch_size=batch_size),
}


@pytest.fixture(scope="module", params=[*FAMILIES, *DEEPSEEKS, "stories260k"])
def model(request, tmp_path_factory):
    if request.param == "stories260k":
        return load(request.getfixturevalue("stories260k"))
    write = write_deepseek if request.param in DEEPSEEKS else write_model
    return load(write(tmp_path_factory.mktemp("model"), request.param))


@pytest.fixture(params=[1, 2])
def num_threads(request):
    set_num_threads(request.param)
    yield request.param
    set_num_threads(None)


def in_chunks(model, cache_name, ids, sizes, neighbours=0):
    """The logits of every id, run in chunks of the given sizes through a cache, beside other rows."""
    rows = [ids, *([np.roll(ids, n + 1) for n in range(neighbours)])]
    lengths = [len(ids), *([max(1, len(ids) - 5 * (n + 1)) for n in range(neighbours)])]
    cache, logits, start = CACHES[cache_name](model, len(rows)), [], 0
    for size in sizes:
        chunk = np.stack([row[start : start + size] for row in rows])
        mask = start + np.arange(chunk.shape[1]) < np.array(lengths)[:, None]
        logits.append(model.logits(chunk, cache, mask=mask)[0])
        start += size
    assert start == len(ids)
    return np.concatenate(logits)


def sizes_of(chunk):
    return [chunk] * (LENGTH // chunk) + ([LENGTH % chunk] if LENGTH % chunk else [])


@pytest.fixture(scope="module")
def alone(model):
    """The logits of one text by itself, whole, without a cache."""
    return model.logits(IDS)


def same_bits(one, other):
    return (one.view(np.uint32) == other.view(np.uint32)).all()


@pytest.mark.parametrize("cache_name", CACHES)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_bits_do_not_depend_on_cache_neighbours_chunks_or_threads(
    model, alone, num_threads, cache_name, batch_size, chunk
):
    got = in_chunks(model, cache_name, IDS, sizes_of(min(chunk, LENGTH)), neighbours=batch_size - 1)
    assert same_bits(got, alone)


@pytest.mark.parametrize("neighbours", [0, 2, 7])
def test_bits_without_a_cache_are_those_with_one(model, alone, num_threads, neighbours):
    ids = np.stack([IDS, *(np.roll(IDS, n + 1) for n in range(neighbours))])
    assert same_bits(model.logits(ids)[0], alone)
    assert same_bits(model.next_logits(ids)[0], alone[-1])


@settings(max_examples=20)
@given(data=st.data())
def test_any_schedule_gives_the_same_bits(model, alone, data):
    sizes, left = [], LENGTH
    while left:
        sizes.append(data.draw(st.integers(1, left)))
        left -= sizes[-1]
    neighbours, cache_name = data.draw(st.integers(0, 3)), data.draw(st.sampled_from(sorted(CACHES)))
    assert same_bits(in_chunks(model, cache_name, IDS, sizes, neighbours), alone)
