"""Saved caches: what is loaded goes on with the same bits, and what is not whole is not loaded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qkv import load, load_cache, new_cache
from qkv.cache import CacheShape, PagedCache, PagePool, Policy, PrefixIndex, Rotation, saving
from qkv.cache.cache_file import CacheFile
from qkv.cache.elements import ELEMENTS
from qkv.errors import CacheFileError, CacheFull, OptionError, TrimError
from qkv.ops.rotary import rotary_frequencies
from tiny_models import write_model

L, G, H, D, P = 3, 2, 4, 6, 3
SHAPE = CacheShape(num_layers=L, num_kv_heads=G, head_dim=D)
ROTATION = Rotation(rotary_frequencies(D, 100.0))
POLICIES = [
    *ELEMENTS,
    "window=5,sinks=2",
    "heads=10,window=5,int8",
    "streaming=7",
    "streaming=7,rerotate",
    "h2o=7",
    "h2o=7:age,bf16",
    "tova=7,int8",
    "knorm=7",
    "snapkv=7",
    "snapkv=7,int4",
    "pyramidkv=7,int8-kivi",
    "expected=7",
]


def new(policy: str = "", batch_size: int = 1, **options) -> PagedCache:
    text = ",".join(filter(None, [policy, f"page={P}"]))
    return PagedCache(SHAPE, text, batch_size, **{"rotation": ROTATION, "fingerprint": "f", **options})


def loaded(path: Path, policy: Policy | str | None = None, **options) -> PagedCache:
    return PagedCache.load(path, SHAPE, policy, **{"rotation": ROTATION, "fingerprint": "f", **options})


def step(
    cache: PagedCache, T: int, seed: int, lengths: list[int] | None = None, layers: int = L
) -> np.ndarray:
    """Put T random tokens into each row, and attend."""
    rng = np.random.default_rng(seed)
    B, outputs = cache.batch_size, []
    for layer in range(layers):
        k, v = rng.normal(size=(2, B, G, T, D)).astype(np.float32)
        cache.append(layer, k, v, lengths)
        outputs.append(cache.attend(layer, rng.normal(size=(B, H, T, D)).astype(np.float32), lengths))
    return np.array(outputs)


def run(policy: str, batch_size: int = 2, **options) -> PagedCache:
    """A cache that has read a prompt and been decoded, and stands within a page."""
    cache = new(policy, batch_size, **options)
    step(cache, 19, seed=1, lengths=[19, 13, 17][:batch_size])
    for seed in range(2, 9):
        step(cache, 1, seed)
    return cache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.safetensors"


def same_state(one: PagedCache, other: PagedCache) -> None:
    assert (one.lengths, one.nbytes) == (other.lengths, other.nbytes)
    np.testing.assert_array_equal(one.positions(1), other.positions(1))
    for mine, others in zip(one.drops, other.drops, strict=True):
        for drop, same in zip(mine, others, strict=True):
            assert (drop.at, drop.layer, drop.by) == (same.at, same.layer, same.by)
            np.testing.assert_array_equal(drop.positions, same.positions)
    other.check_integrity()


# The same bits


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loaded_cache_goes_on_with_the_same_bits(policy: str, path: Path):
    cache = run(policy)
    cache.save(path)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0  # so that numbers are aligned behind it
    other = loaded(path)
    assert other.policy == cache.policy
    same_state(cache, other)
    for seed, T in enumerate([1, 1, 4, 1, 9, 1, 1], start=10):
        lengths = [T, max(0, T - 2)]
        expected, got = (step(one, T, seed, lengths) for one in (cache, other))
        for row, count in enumerate(lengths):
            np.testing.assert_array_equal(got[:, row, :, :count], expected[:, row, :, :count])
        same_state(cache, other)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_saved_cache_is_as_it_was(policy: str, path: Path):
    cache, untouched = run(policy), run(policy)
    cache.save(path)
    np.testing.assert_array_equal(step(cache, 2, 9), step(untouched, 2, 9))


@pytest.mark.parametrize("policy", ["", "int8", "int4", "window=5,sinks=2"])
@pytest.mark.parametrize("layers", range(L))
def test_a_step_that_was_under_way_leaves_nothing_behind(policy: str, layers: int, path: Path):
    """It has passed through some layers, and is stored in one more."""
    cache = run(policy)
    step(cache, 5, seed=20, layers=layers)
    k, v = np.ones((2, 2, G, 5, D), np.float32)
    cache.append(layers, k, v)
    cache.save(path)
    other, untouched = loaded(path), run(policy)
    assert other.lengths == untouched.lengths
    np.testing.assert_array_equal(step(other, 4, 21), step(untouched, 4, 21))


def test_a_file_without_a_count_of_finished_steps_is_of_finished_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    def without_lengths(*args: Any) -> Any:
        return {name: array for name, array in arrays(*args).items() if not name.startswith("length.")}

    arrays = saving._sequence_arrays
    monkeypatch.setattr(saving, "_sequence_arrays", without_lengths)
    run("int8").save(path)
    assert loaded(path).lengths == run("int8").lengths


def test_a_models_own_window_is_known_after_loading(path: Path):
    """It decides how far a text may go back, before any query has come to the loaded cache."""
    cache = new()
    rng = np.random.default_rng(0)
    for layer in range(L):
        cache.append(layer, *rng.normal(size=(2, 1, G, 20, D)).astype(np.float32))
        cache.attend(layer, rng.normal(size=(1, H, 20, D)).astype(np.float32), window=4)
    cache.save(path)
    for one in (cache, loaded(path)):
        with pytest.raises(TrimError, match="window of 4"):
            one.trim(10)
        one.trim(19)
        assert one.length == 19


def test_a_loaded_cache_goes_back_as_far_as_the_saved_one(path: Path):
    """Row 0 of 26 tokens evicted at 25, row 1 of 20 tokens at 19."""
    cache = run("streaming=7")
    cache.save(path)
    for one in (cache, loaded(path)):
        with pytest.raises(TrimError, match="evicted at length 25"):
            one.trim(24)
        one.trim(25)
        assert one.lengths == (25, 20)


@pytest.mark.parametrize("policy", ["", "fp8-e4m3", "latent"])
def test_values_that_are_part_of_their_keys_are_loaded(policy: str, path: Path):
    shape = CacheShape(1, 1, 5, value_dim=3, shares_values=True)
    cache = PagedCache(shape, policy)
    k, q = np.random.default_rng(0).normal(size=(2, 1, 1, 20, 5)).astype(np.float32)
    cache.append(0, k, None)
    cache.attend(0, q)
    cache.save(path)
    other = PagedCache.load(path, shape)
    np.testing.assert_array_equal(other.attend(0, q), cache.attend(0, q))


def test_an_empty_cache_is_loaded_empty(path: Path):
    new("int8", batch_size=3).save(path)
    other = loaded(path)
    assert (other.lengths, other.nbytes) == ((0, 0, 0), 0)
    np.testing.assert_array_equal(step(other, 5, 1), step(new("int8", 3), 5, 1))


def test_another_process_goes_on(tmp_path: Path, path: Path):
    folder = write_model(tmp_path / "model", "llama")
    model = load(folder)
    cache = new_cache(model, "int8")
    model.logits(np.arange(20), cache)
    cache.save(path)
    code = (
        "import sys, numpy, qkv; model = qkv.load(sys.argv[1]); cache = qkv.load_cache(model, sys.argv[2]); "
        "print(model.next_logits(numpy.array([7]), cache).tobytes().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == model.next_logits(np.array([7]), cache).tobytes().hex()


# What is in the file


def test_any_reader_of_safetensors_finds_the_pages_as_they_are(path: Path):
    """Nine tokens fill three pages of three tokens in each of three layers and two heads."""
    cache = new("int8")
    step(cache, 9, seed=1)
    cache.save(path)
    tensors, (one,) = load_file(path), cache.sequences
    assert tensors["pages"].shape == (3 * L * G, cache.layout.nbytes)
    assert tensors["pages.0"].shape == (L, G, 3)
    for place in np.ndindex(L, G, 3):
        np.testing.assert_array_equal(
            tensors["pages"][tensors["pages.0"][place]], cache.pool.page(one.pages.ids[place])
        )
    assert tensors["tokens.0"].tolist() == [9] * L


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_written_of_what_memory_held_before(policy: str, path: Path):
    """Pages filled with other bytes before anything was stored give the same file."""
    files = []
    for byte in (0x00, 0x55, 0xFF):
        pool = PagePool(new_page=lambda nbytes, byte=byte: np.full(nbytes, byte, np.uint8))
        run(policy, pool=pool).save(path)
        files.append(path.read_bytes())
    assert files[0] == files[1] == files[2]


def test_nothing_is_written_of_what_was_trimmed(path: Path):
    cache, shorter = new(), new()
    for one in (cache, shorter):
        step(one, 7, seed=1)
    step(cache, 1, seed=2)
    cache.trim(7)
    pages = []
    for one in (cache, shorter):
        one.save(path)
        pages.append(load_file(path)["pages"])
    np.testing.assert_array_equal(*pages)


def test_a_page_of_several_sequences_is_written_and_loaded_once(path: Path):
    pool = PagePool()
    index = PrefixIndex(pool, P)
    donor = new(pool=pool)
    step(donor, 13, seed=1)
    donor.remember_prefix(index, range(13))
    cache = new(batch_size=2, pool=pool)
    assert [cache.adopt_prefix(index, range(length), row) for row, length in ((0, 13), (1, 11))] == [12, 10]
    cache.save(path)
    assert load_file(path)["pages"].shape[0] == (3 + 1 + 1) * L * G
    other = loaded(path)
    assert other.nbytes == cache.nbytes == 5 * L * G * cache.layout.nbytes
    step(cache, 2, seed=3)
    step(other, 2, seed=3)
    same_state(cache, other)
    other.free()
    assert other.pool.nbytes == 0


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["longer first", "shorter first"])
def test_a_shared_page_is_written_as_far_as_any_sequence_goes(order: list[int], path: Path):
    pool = PagePool()
    index = PrefixIndex(pool, P)
    donor = new(pool=pool)
    step(donor, 13, seed=1)
    donor.remember_prefix(index, range(13))
    rows = new(batch_size=2, pool=pool)
    assert [rows.adopt_prefix(index, range(13), row) for row in range(2)] == [12, 12]
    rows.rows([1]).trim(10)
    cache = rows.rows(order)
    cache.save(path)
    other = loaded(path)
    np.testing.assert_array_equal(step(other, 2, seed=3), step(cache, 2, seed=3))


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fingerprint": "g"}, "was of another model or other weights; load it"),
        ({"policy": "int8"}, r"the policy 'int8,page=3'.*for 'int8'"),
        ({"policy": "int4,page=3"}, "the policy 'int8,page=3'.*for 'int4,page=3'"),
        ({"shape": CacheShape(L, G, D + 1)}, "keys of 6 numbers.*keys of 7 numbers"),
        ({"shape": CacheShape(L, G + 1, D)}, "2 key heads.*3 key heads"),
        ({"shape": CacheShape(L, G, D, value_dim=5, shares_values=True)}, "values of 5 numbers in them"),
    ],
    ids=["model", "page size", "element", "head size", "heads", "latent"],
)
def test_what_was_saved_for_something_else_is_refused(options: dict, message: str, path: Path):
    run("int8").save(path)
    pool = PagePool()
    given = {"shape": SHAPE, "policy": None, "fingerprint": "f", **options}
    with pytest.raises(CacheFileError, match=message):
        PagedCache.load(path, **given, pool=pool)
    assert (pool.nbytes, pool.peak_nbytes) == (0, 0)


def test_a_policy_may_be_asked_for(path: Path):
    cache = run("window=5,int8")
    cache.save(path)
    assert loaded(path, "page=3, int8, window=5").policy == cache.policy
    assert loaded(path, cache.policy).lengths == cache.lengths


def test_a_cache_of_another_model_is_refused(tmp_path: Path, path: Path):
    models = [load(write_model(tmp_path / str(seed), "llama", seed=seed)) for seed in range(2)]
    other_config = load(write_model(tmp_path / "config", "llama", rope_theta=999.0))
    cache = new_cache(models[0], "heads=10,window=7")
    cache.save(path)
    assert load_cache(models[0], path).policy == cache.policy
    for model in (models[1], other_config):
        with pytest.raises(CacheFileError, match="of another model or other weights; load it") as refused:
            load_cache(model, path)
        assert not {models[0].fingerprint, model.fingerprint} & set(str(refused.value).split("'"))


@pytest.fixture
def small(path: Path) -> bytes:
    """The bytes of a file that holds one sequence of five tokens, and some that it has dropped."""
    shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=2)
    cache = PagedCache(shape, "streaming=2,sinks=1,page=2,fp16")
    k = np.ones((1, 1, 5, 2), np.float32)
    cache.append(0, k, k)
    cache.attend(0, k)
    cache.save(path)
    return path.read_bytes()


def load_small(path: Path, **options) -> PagedCache:
    return PagedCache.load(path, CacheShape(num_layers=1, num_kv_heads=1, head_dim=2), **options)


def test_a_file_of_which_any_byte_is_changed_is_refused(small: bytes, path: Path):
    pool = PagePool()
    for place in range(len(small)):
        damaged = bytearray(small)
        damaged[place] ^= 0x81
        path.write_bytes(damaged)
        with pytest.raises(CacheFileError):
            load_small(path, pool=pool)
    assert pool.peak_nbytes == 0


def test_a_file_that_is_cut_short_or_goes_on_is_refused(small: bytes, path: Path):
    for end in range(len(small)):
        path.write_bytes(small[:end])
        with pytest.raises(CacheFileError):
            load_small(path)
    path.write_bytes(small + b"\0")
    with pytest.raises(CacheFileError, match="damaged"):
        load_small(path)
    path.write_bytes(small)
    assert load_small(path).length == 5


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff" * 4096, (1 << 62).to_bytes(8, "little") + b"[" * 100_000], ids=len
)
def test_what_is_no_saved_cache_is_refused(content: bytes, path: Path):
    path.write_bytes(content)
    with pytest.raises(CacheFileError, match="no saved cache"):
        load_small(path)


@pytest.mark.parametrize("texts", [None, {"kind": "a model", "version": "1"}])
def test_other_tensors_are_no_saved_cache(texts: dict[str, str] | None, path: Path):
    save_file({"pages": np.ones(3)}, path, texts)
    with pytest.raises(CacheFileError, match="no saved cache"):
        load_small(path)


def test_a_file_of_a_later_version_is_refused(small: bytes, path: Path):
    path.write_bytes(small.replace(b'"version": "1"', b'"version": "2"'))
    with pytest.raises(CacheFileError, match="version '2'"):
        load_small(path)


def test_a_path_that_cannot_be_read_or_written_is_named(path: Path, tmp_path: Path):
    for wrong in (path, tmp_path):
        with pytest.raises(CacheFileError, match=f"{wrong} cannot be read"):
            load_small(wrong)
    for wrong in (tmp_path / "none" / "cache", tmp_path):
        with pytest.raises(CacheFileError, match=f"{wrong} cannot be written"):
            new().save(wrong)
    assert list(tmp_path.iterdir()) == []


# All or nothing


def test_an_interruption_leaves_the_file_that_was_there(path: Path, monkeypatch):
    run("int8").save(path)
    before, cache, read = path.read_bytes(), run("int4"), []

    def page(page_id: int) -> np.ndarray:
        read.append(page_id)
        if len(read) > 1.5 * cache.pool.num_pages:  # read once for the checksum, then to be written
            raise KeyboardInterrupt
        return PagePool.page(cache.pool, page_id)

    monkeypatch.setattr(cache.pool, "page", page)
    with pytest.raises(KeyboardInterrupt):
        cache.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_file_that_was_there(path: Path, monkeypatch):
    run("int8").save(path)
    before = path.read_bytes()

    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(CacheFileError, match="cannot be written: No space left"):
        run("int4").save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_cache_that_does_not_fit_changes_nothing(path: Path):
    """Idle pages make room for it, but none is given back where that would not be enough."""
    cache = run("int4")
    cache.save(path)
    open_pages = sum(one.filling.nbytes for one in cache.sequences)  # taken last
    for short, fits in ((1, False), (0, True)):
        pool = PagePool(budget_bytes=cache.nbytes - short)
        index = PrefixIndex(pool, 4)
        index.insert(range(4), ids := pool.take(open_pages, 1))
        pool.free(ids)
        if fits:
            assert loaded(path, pool=pool).nbytes == pool.nbytes == cache.nbytes
            assert index.num_cached_tokens == 0
        else:
            with pytest.raises(CacheFull):
                loaded(path, pool=pool)
            assert (pool.nbytes, index.num_cached_tokens) == (open_pages, 4)
        pool.check_integrity()


def test_a_file_that_can_no_longer_be_read_changes_nothing(path: Path, monkeypatch):
    run("int4").save(path)
    read, pool = CacheFile.read_rows, PagePool()

    def read_or_fail(self: CacheFile, name: str, rows) -> None:
        read(self, name, rows)
        if name == "filling":
            raise OSError("the disk is gone")

    monkeypatch.setattr(CacheFile, "read_rows", read_or_fail)
    with pytest.raises(CacheFileError, match="the disk is gone"):
        loaded(path, pool=pool)
    assert pool.peak_nbytes > 0
    assert pool.nbytes == 0


def test_what_a_policy_needs_is_needed_for_loading_too(path: Path):
    run("expected=7").save(path)
    with pytest.raises(OptionError, match="expected must know"):
        loaded(path, rotation=None)
