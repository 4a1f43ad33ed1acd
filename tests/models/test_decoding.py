"""The short way through a Llama: taken where it can be, with the bits of the long one, and without traces."""

import pickle
import threading

import numpy as np
import pytest

from qkv.cache import ContiguousCache, PagedCache, PagePool
from qkv.errors import CacheFull, ShapeError
from qkv.kernels.decode_step import DecodeStep
from qkv.kernels.host import set_num_threads
from qkv.models import load, new_cache
from qkv.models.decoding import MOST_TEXTS, Decoding
from qkv.ops.backend import is_compiled, use_backend
from tiny_models import write_model

pytestmark = pytest.mark.skipif(not is_compiled(), reason="there is one way only")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
POLICIES = ("", "page=3", "window=9,sinks=2,page=4", "heads=10,window=7,page=4")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return load(write_model(tmp_path_factory.mktemp("model"), request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load(write_model(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture
def runs(monkeypatch):
    """How many tokens each run of a program had."""
    seen, run = [], DecodeStep.run

    def counted(self, ids, *rest, **how):
        seen.append(len(ids))
        return run(self, ids, *rest, **how)

    monkeypatch.setattr(DecodeStep, "run", counted)
    return seen


def read(model, cache, B=1, steps=7):
    """The logits of a prompt and of a few tokens behind it, for B texts of different lengths."""
    ids = np.random.default_rng(B).integers(0, 101, (B, 31))
    mask = np.arange(23) < 23 - np.arange(B)[:, None] % 5
    rows = [model.logits(ids[:, :23], cache, mask=mask)[:, -1]]
    rows += [model.next_logits(ids[:, 23 + step : 24 + step], cache) for step in range(steps)]
    return np.stack(rows)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("B", [1, 3, 11])
def test_the_short_way_has_the_bits_of_the_long_one(model, policy, B, runs, monkeypatch):
    short = new_cache(model, policy, batch_size=B)
    got = read(model, short, B)
    assert runs == [B] * 7
    short.check_integrity()
    monkeypatch.setattr(Decoding, "run", lambda *_, **how: None)
    long = new_cache(model, policy, batch_size=B)
    assert read(model, long, B).tobytes() == got.tobytes()
    assert (short.lengths, short.nbytes) == (long.lengths, long.nbytes)


def test_vectors_and_logits_of_a_step_belong_together_and_stay_when_the_next_one_runs(model, runs):
    caches = [new_cache(model) for _ in range(3)]
    for cache in caches:
        model.next_logits(list(range(19)), cache)
    hidden, logits, last = model.hidden([[7]], caches[0]), model.logits([7], caches[1]), None
    last = model.next_logits([7], caches[2])
    kept = hidden.copy(), logits.copy()
    for cache in caches:
        model.next_logits([11], cache)
    assert runs == [1] * 6
    assert (hidden.shape, logits.shape, last.shape) == ((1, 1, 23), (1, 101), (101,))
    assert np.array_equal(kept[0], hidden) and np.array_equal(kept[1], logits)
    assert model.unembed(hidden)[0].tobytes() == logits.tobytes() == last.tobytes()


@pytest.mark.parametrize("token_id", [-1, 101])
def test_an_id_that_is_no_row_of_the_table_is_refused_and_changes_nothing(llama, token_id):
    cache, untouched = new_cache(llama), new_cache(llama)
    for one in (cache, untouched):
        llama.next_logits([3, 5], one)
    with pytest.raises(ShapeError, match="ids must be from 0 to 100"):
        llama.next_logits([token_id], cache)
    assert llama.next_logits([7], cache).tobytes() == llama.next_logits([7], untouched).tobytes()


def test_threads_may_change_and_texts_come_and_go(llama, runs):
    expected = {B: read(llama, new_cache(llama, batch_size=B), B) for B in (1, 3)}
    try:
        for count in (1, 2, 1):
            set_num_threads(count)
            for B in (3, 1, 3):
                assert read(llama, new_cache(llama, batch_size=B), B).tobytes() == expected[B].tobytes()
    finally:
        set_num_threads(None)
    assert set(runs) == {1, 3}


def test_weights_of_all_forms_take_the_short_way(tmp_path, runs, monkeypatch):
    folder = write_model(tmp_path, "llama")
    models = {form: load(folder, form) for form in ("bf16", "int8")}
    got = {form: read(model, new_cache(model)) for form, model in models.items()}
    assert runs == [1] * 14
    monkeypatch.setattr(Decoding, "run", lambda *_, **how: None)
    for form, model in models.items():
        assert read(model, new_cache(model)).tobytes() == got[form].tobytes()


@pytest.mark.parametrize("policy", ["int8", "fp16", "int8-kivi", "streaming=12", "h2o=12"])
def test_a_policy_that_changes_what_is_kept_takes_the_long_way(llama, policy, runs):
    read(llama, new_cache(llama, policy))
    assert runs == []


def test_other_caches_tokens_and_backends_take_the_long_way(llama, runs):
    read(llama, ContiguousCache(llama.cache_shape))
    cache = new_cache(llama)
    llama.next_logits([3, 5], cache)
    llama.next_logits([7, 11], cache)
    with use_backend("numpy"):
        llama.next_logits([7], cache)
    many = new_cache(llama, batch_size=MOST_TEXTS + 1)
    llama.next_logits([[3]] * (MOST_TEXTS + 1), many)
    assert runs == []
    llama.next_logits([[3]] * MOST_TEXTS, many.rows(range(MOST_TEXTS)))
    assert runs == [MOST_TEXTS]


def test_what_a_cache_of_its_own_does_in_append_is_not_passed_over(llama, runs):
    class Counting(PagedCache):
        appended = 0

        def append(self, *arguments, **options):
            self.appended += 1
            super().append(*arguments, **options)

    cache = Counting(llama.cache_shape)
    read(llama, cache)
    assert (runs, cache.appended) == ([], 3 * 8)


@pytest.mark.parametrize("length", [16, 19])
def test_an_interrupted_step_leaves_nothing_behind(llama, length, monkeypatch):
    """At 16 tokens it had taken new pages, at 19 it had written to a page under way."""
    ids = np.random.default_rng(0).integers(0, 101, length)
    cache, untouched = new_cache(llama), new_cache(llama)
    for one in (cache, untouched):
        llama.next_logits(ids, one)
    run = DecodeStep.run

    def interrupted(self, *arguments, **how):
        run(self, *arguments, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(DecodeStep, "run", interrupted)
        llama.next_logits([7], cache)
    cache.check_integrity()
    assert (cache.length, cache.nbytes) == (length, untouched.nbytes)
    assert llama.next_logits([11], cache).tobytes() == llama.next_logits([11], untouched).tobytes()


def test_a_step_that_does_not_fit_leaves_the_cache_as_it_was(llama):
    page = 3 * 2 * 2 * 14 * 4 * 16
    cache = new_cache(llama, pool=PagePool(page))
    llama.next_logits(list(range(16)), cache)
    with pytest.raises(CacheFull):
        llama.next_logits([7], cache)
    cache.check_integrity()
    assert (cache.length, cache.nbytes) == (16, page)
    cache.trim(11)
    llama.next_logits([7], cache)
    assert cache.length == 12


def test_a_page_that_another_text_holds_too_is_not_written_to(llama):
    cache, alone = new_cache(llama), new_cache(llama)
    for one in (cache, alone):
        llama.next_logits(list(range(19)), one)
    fork = cache.fork()
    llama.next_logits([23], cache)
    cache.check_integrity()
    for one in (fork, alone):
        llama.next_logits([7], one)
    assert llama.next_logits([29], fork).tobytes() == llama.next_logits([29], alone).tobytes()


def test_whoever_goes_back_to_a_page_that_another_holds_too_does_not_write_to_it(llama):
    """A text of 35 tokens, the last 3 on a page of their own, is shared; one goes back to the page before."""
    cache, alone = new_cache(llama), new_cache(llama)
    for one in (cache, alone):
        llama.next_logits(list(range(35)), one)
    fork = cache.fork()
    llama.next_logits([37], cache)
    cache.trim(19)
    llama.next_logits([23], cache)
    for one in (cache, fork):
        one.check_integrity()
    assert llama.next_logits([29], fork).tobytes() == llama.next_logits([29], alone).tobytes()


def test_a_model_that_has_decoded_can_be_copied(llama):
    expected = read(llama, new_cache(llama))
    copy = pickle.loads(pickle.dumps(llama))
    assert read(copy, new_cache(copy)).tobytes() == expected.tobytes()


def test_several_threads_may_use_a_model_at_once(llama):
    expected, found = read(llama, new_cache(llama)).tobytes(), []

    def run():
        found.extend(read(llama, new_cache(llama)).tobytes() == expected for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 15
