"""One forward pass: whole or in chunks, with or without a cache, alone or in a batch, it is the same."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_deepseek
from qkv.cache import Cache, ContiguousCache, PagedCache, PagePool
from qkv.cache.contiguous import CacheShape
from qkv.cache.pool import NO_PAGE
from qkv.errors import PromptError, ShapeError, TrimError
from qkv.models import GPT2, DeepSeek, Llama, load, new_cache
from qkv.models.step import Step
from tiny_models import FAMILIES, write_model

PROMPT = np.array([11, 3, 97, 42, 3, 58, 7])
CLOSE = {"rtol": 0, "atol": 1e-5}
AnyModel = Llama | GPT2 | DeepSeek
MakeCache = Callable[..., Cache]


@pytest.fixture(scope="module", params=[*FAMILIES, *tiny_deepseek.KINDS])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AnyModel:
    write = tiny_deepseek.write_model if request.param in tiny_deepseek.KINDS else write_model
    return load(write(tmp_path_factory.mktemp(request.param), request.param))


def new_contiguous_cache(model: AnyModel, batch_size: int = 1) -> ContiguousCache:
    return ContiguousCache(model.cache_shape, batch_size)


@pytest.fixture(params=[new_contiguous_cache, new_cache], ids=["contiguous", "paged"])
def make_cache(request: pytest.FixtureRequest) -> MakeCache:
    return request.param


def cache_filled_with_nan(make_cache: MakeCache, model: AnyModel, batch_size: int = 1) -> Cache:
    """A cache whose slots hold NaN until a token is written to them: room for 64 tokens, or all pages."""
    if make_cache is new_cache:
        return new_cache(model, batch_size=batch_size, pool=PagePool(new_page=page_of_nan))
    cache = new_contiguous_cache(model, batch_size)
    for layer in cache._layers:
        layer._reserve(64)
    fill_unused_slots(cache, np.nan)
    return cache


def page_of_nan(nbytes: int) -> np.ndarray:
    return np.full(nbytes, 0xFF, np.uint8)


def fill_unused_slots(cache: Cache, value: float) -> None:
    assert isinstance(cache, ContiguousCache | PagedCache)
    unused = unused_of_layers(cache) if isinstance(cache, ContiguousCache) else unused_of_pages(cache)
    for slots in unused:
        slots[...] = value


def unused_of_layers(cache: ContiguousCache) -> Iterator[np.ndarray]:
    for layer in cache._layers:
        for row, length in enumerate(layer.lengths):
            yield layer.k[row, :, length:]
            yield layer.v[row, :, length:]


def unused_of_pages(cache: PagedCache) -> Iterator[np.ndarray]:
    """The rest of each head's last page; pages behind it went back."""
    for one in cache.sequences:
        for layer, head in np.ndindex(one.held.shape):
            page, used = divmod(int(one.held[layer, head]), one.layout.P)
            ids = one.pages.ids[layer, head, page:]
            assert (ids[1:] == NO_PAGE).all()
            for page_id in ids[ids != NO_PAGE]:
                yield from (part[used:] for part in one.layout.open(cache.pool.page(page_id)).values())


def greedy_ids(model: AnyModel, cache: Cache | None, ids: np.ndarray, num_tokens: int) -> list[int]:
    """Greedy continuation: with a cache only new tokens run, without one the whole text each time."""
    text, unseen = list(ids), list(ids)
    for _ in range(num_tokens):
        logits = model.next_logits(np.array(text if cache is None else unseen), cache)
        unseen = [int(np.argmax(logits))]
        text += unseen
    return text[len(ids) :]


def padded(rows: list[np.ndarray], side: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths as one array, with the mask of their real tokens."""
    T = max(map(len, rows))
    ids, mask = np.full((len(rows), T), 99), np.zeros((len(rows), T), bool)
    for row, tokens in enumerate(rows):
        place = slice(T - len(tokens), T) if side == "left" else slice(0, len(tokens))
        ids[row, place], mask[row, place] = tokens, True
    return ids, mask


# Chunks


@pytest.mark.parametrize("chunks", [[7], [3, 3, 1], [1] * 7, [1, 6], [6, 1], [2, 5]], ids=str)
def test_chunks_into_a_cache_give_the_logits_of_the_whole_text(
    model: AnyModel, make_cache: MakeCache, chunks: list[int]
):
    cache, pieces = make_cache(model), []
    for chunk in np.split(PROMPT, np.cumsum(chunks)[:-1]):
        pieces.append(model.logits(chunk, cache))
        assert cache.length == sum(map(len, pieces))
    np.testing.assert_allclose(np.concatenate(pieces), model.logits(PROMPT), **CLOSE)


def test_greedy_text_is_the_same_with_and_without_a_cache(model: AnyModel, make_cache: MakeCache):
    assert greedy_ids(model, make_cache(model), PROMPT, 23) == greedy_ids(model, None, PROMPT, 23)


def test_the_next_logits_are_the_last_of_all_logits(model: AnyModel, make_cache: MakeCache):
    assert model.next_logits(PROMPT).shape == (model.config.V,)
    for cache in (None, make_cache(model)):
        np.testing.assert_allclose(model.next_logits(PROMPT, cache), model.logits(PROMPT)[-1], **CLOSE)


def test_later_tokens_change_no_earlier_logits(model: AnyModel):
    other = np.where(np.arange(7) < 4, PROMPT, 5)
    np.testing.assert_allclose(model.logits(other)[:4], model.logits(PROMPT)[:4], **CLOSE)
    assert np.abs(model.logits(other)[4] - model.logits(PROMPT)[4]).max() > 0.1


def test_one_sequence_may_come_with_or_without_a_batch_axis(model: AnyModel):
    alone, batch = model.logits(PROMPT), model.logits(PROMPT[None])
    assert (alone.dtype, alone.shape) == (np.float32, (7, model.config.V))
    assert (batch.dtype, batch.shape) == (np.float32, (1, 7, model.config.V))
    np.testing.assert_array_equal(alone, batch[0])
    assert model.next_logits(PROMPT[None]).shape == (1, model.config.V)


def test_ids_may_be_a_list_and_are_never_written(model: AnyModel):
    frozen = PROMPT.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(model.logits(list(PROMPT)), model.logits(frozen))


# Batches


ROWS = [PROMPT[:5], PROMPT, PROMPT[6:], PROMPT[2:5]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_row_of_a_padded_batch_gives_what_it_gives_alone(
    model: AnyModel, make_cache: MakeCache, side: str
):
    ids, mask = padded(ROWS, side)
    for cache in (None, cache_filled_with_nan(make_cache, model, len(ROWS))):
        logits = model.logits(ids, cache, mask)
        for row, tokens in enumerate(ROWS):
            np.testing.assert_allclose(logits[row][mask[row]], model.logits(tokens), **CLOSE)
            np.testing.assert_array_equal(logits[row][~mask[row]], 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_row_of_a_padded_batch_decodes_as_it_does_alone(
    model: AnyModel, make_cache: MakeCache, side: str
):
    ids, mask = padded(ROWS, side)
    cache, texts = make_cache(model, batch_size=len(ROWS)), [list(tokens) for tokens in ROWS]
    logits = model.next_logits(ids, cache, mask)
    for _ in range(6):
        for row, text in enumerate(texts):
            np.testing.assert_allclose(logits[row], model.next_logits(np.array(text)), **CLOSE)
            text.append(int(np.argmax(logits[row])))
        logits = model.next_logits(np.array([text[-1:] for text in texts]), cache)
    assert cache.lengths == (5 + 6, 7 + 6, 1 + 6, 3 + 6)
    for text, tokens in zip(texts, ROWS, strict=True):
        assert text[len(tokens) :] == greedy_ids(model, None, tokens, 6)


def test_a_padded_batch_may_come_in_chunks(model: AnyModel, make_cache: MakeCache):
    rows = [PROMPT[:5], PROMPT]
    cache = make_cache(model, batch_size=2)
    first = model.logits(*_with_cache(padded([PROMPT[:3], PROMPT[:2]], "left"), cache))
    second = model.logits(*_with_cache(padded([PROMPT[3:5], PROMPT[2:]], "right"), cache))
    assert cache.lengths == (5, 7)
    np.testing.assert_allclose(np.concatenate([first[0], second[0, :2]]), model.logits(rows[0]), **CLOSE)
    np.testing.assert_allclose(np.concatenate([first[1, 1:], second[1]]), model.logits(rows[1]), **CLOSE)


def _with_cache(batch: tuple[np.ndarray, np.ndarray], cache: Cache) -> tuple[Any, ...]:
    ids, mask = batch
    return ids, cache, mask


def test_a_row_that_has_finished_takes_no_slot_and_leaves_the_other_as_it_is_alone(
    model: AnyModel, make_cache: MakeCache
):
    rows = [np.arange(20, 28), np.arange(50, 55)]
    ids, mask = padded(rows, "left")
    cache, text = make_cache(model, batch_size=2), rows[1].tolist()
    logits = model.next_logits(ids, cache, mask)
    assert cache.lengths == (8, 5)
    for _ in range(3):
        text.append(int(np.argmax(logits[1])))
        new = np.array([[0], text[-1:]])
        logits = model.next_logits(new, cache, np.array([[False], [True]]))
        np.testing.assert_allclose(logits[1], model.next_logits(np.array(text)), **CLOSE)
    assert cache.lengths == (8, 5 + 3)
    assert text[5:] == greedy_ids(model, None, rows[1], 3)


def test_a_mask_of_nothing_but_true_changes_no_bit(model: AnyModel):
    ids = np.stack([PROMPT, PROMPT[::-1]])
    np.testing.assert_array_equal(model.logits(ids, None, np.ones((2, 7), bool)), model.logits(ids))


# What a cache must not show


def test_slots_that_hold_no_token_change_no_bit(model: AnyModel, make_cache: MakeCache):
    ids, mask = padded(ROWS, "left")
    clean = make_cache(model, batch_size=len(ROWS))
    dirty = cache_filled_with_nan(make_cache, model, len(ROWS))
    for cache in (clean, dirty):
        model.logits(ids, cache, mask)
    fill_unused_slots(clean, 0.0)
    fill_unused_slots(dirty, np.nan)
    for _ in range(3):
        token = np.full((len(ROWS), 1), 13)
        np.testing.assert_array_equal(model.logits(token, dirty), model.logits(token, clean))


class InterruptionError(Exception):
    """Stands for whatever may end a step in the middle."""


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("held", [0, 4])
def test_a_step_interrupted_between_layers_leaves_the_cache_as_before(
    model: AnyModel, make_cache: MakeCache, held: int, layer: int, monkeypatch: pytest.MonkeyPatch
):
    cache, untouched = make_cache(model), make_cache(model)
    _run_if_any(model, PROMPT[:held], cache)
    _run_if_any(model, PROMPT[:held], untouched)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "attend", _interrupting(cache.attend, layer))
        with pytest.raises(InterruptionError):
            model.logits(np.full(20, 99), cache)
    assert cache.lengths == (held,)
    np.testing.assert_array_equal(model.logits(PROMPT[held:], cache), model.logits(PROMPT[held:], untouched))
    assert cache.lengths == (7,)


def _run_if_any(model: AnyModel, ids: np.ndarray, cache: Cache) -> None:
    if len(ids):
        model.logits(ids, cache)


def _interrupting(attend: Any, layer: int) -> Any:
    def attend_or_stop(index: int, *args: Any, **options: Any) -> Any:
        if index == layer:
            raise InterruptionError
        return attend(index, *args, **options)

    return attend_or_stop


@pytest.mark.parametrize("kept", [0, 1, 3, 7])
def test_a_trimmed_cache_goes_on_as_if_the_rest_had_never_been(
    model: AnyModel, make_cache: MakeCache, kept: int
):
    trimmed, fresh = make_cache(model), make_cache(model)
    num_lost = 8 if kept and make_cache is new_cache and has_windows(model) else 27
    model.logits(np.concatenate([PROMPT[:kept], np.arange(60, 60 + num_lost)]), trimmed)
    trimmed.trim(kept)
    fill_unused_slots(trimmed, np.nan)
    if kept:
        model.logits(PROMPT[:kept], fresh)
    again = np.array([1, 2, 3])
    np.testing.assert_allclose(model.logits(again, trimmed), model.logits(again, fresh), **CLOSE)
    text = np.concatenate([PROMPT[:kept], again])
    np.testing.assert_allclose(model.logits(again[:1], trimmed)[0], model.logits([*text, 1])[-1], **CLOSE)


def has_windows(model: AnyModel) -> bool:
    """Whether layers see through a window, behind which a paged cache gives its pages back."""
    return isinstance(model, Llama) and any(model.config.windows)


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
@pytest.mark.parametrize("kept", [1, 3, 7])
def test_a_trim_to_where_a_window_gave_pages_back_is_refused_and_changes_nothing(
    tmp_path: Path, kind: str, kept: int
):
    model = load(write_model(tmp_path, kind))
    cache, untouched = new_cache(model), new_cache(model)
    for one in (cache, untouched):
        model.logits(np.arange(60, 94), one)
    with pytest.raises(TrimError, match=f"from 34 to {kept} tokens"):
        cache.trim(kept)
    assert cache.lengths == (34,)
    np.testing.assert_array_equal(model.logits(PROMPT, cache), model.logits(PROMPT, untouched))


# Positions


EmptyCache = Callable[[int], Cache]


@pytest.fixture(params=[ContiguousCache, PagedCache])
def empty_cache(request: pytest.FixtureRequest) -> EmptyCache:
    shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=2)
    return lambda batch_size: request.param(shape, batch_size=batch_size)


def appended(cache: Cache, lengths: list[int]) -> Cache:
    k = np.zeros((cache.batch_size, 1, max(lengths), 2), np.float32)
    cache.append(0, k, k, lengths)
    cache.attend(0, k, lengths)
    return cache


def test_positions_count_real_tokens_whatever_the_padding():
    ids = np.array([[0, 0, 31, 37, 41], [2, 3, 5, 7, 11]])
    step = Step.of(ids, None, np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool))
    assert step.lengths == [3, 5]
    assert step.ids.tolist() == [[31, 37, 41, 0, 0], [2, 3, 5, 7, 11]]
    assert step.positions.tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]
    assert step.longest == 5


def test_decode_positions_go_on_from_each_row_s_own_length(empty_cache: EmptyCache):
    cache = appended(empty_cache(2), [3, 5])
    step = Step.of(np.array([[1], [1]]), cache, None)
    assert step.positions.tolist() == [[3], [5]]
    step = Step.of(np.array([[1], [1]]), appended(cache, [1, 1]), None)
    assert step.positions.tolist() == [[4], [6]]
    assert step.longest == 7


def test_positions_of_chunks_go_on_where_the_last_chunk_ended(empty_cache: EmptyCache):
    cache = empty_cache(1)
    positions = []
    for num_tokens in (3, 3, 1):
        positions.append(Step.of(np.zeros(num_tokens, int), cache, None).positions.tolist())
        appended(cache, [num_tokens])
    assert positions == [[[0, 1, 2]], [[3, 4, 5]], [[6]]]


def test_a_chunk_sees_the_tokens_before_it_and_its_own_past(empty_cache: EmptyCache):
    """Scores are all 0 and the values 1 to 7, so each output is the mean of what is visible."""
    cache, outputs = empty_cache(1), []
    for chunk in ([1, 2, 3], [4, 5, 6], [7]):
        step = Step.of(np.array(chunk), cache, None)
        k = np.zeros((1, 1, len(chunk), 2), np.float32)
        v = np.repeat(np.array(chunk, np.float32)[None, None, :, None], 2, axis=-1)
        outputs.extend(step.attend(0, k, k, v)[0, 0, :, 0])
    np.testing.assert_allclose(outputs, [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0], rtol=1e-6)


def test_the_last_vector_is_that_of_the_last_real_token():
    mask = np.array([[0, 1, 1], [1, 1, 1], [1, 0, 0]], bool)
    step = Step.of(np.array([[0, 5, 6], [7, 8, 9], [4, 0, 0]]), None, mask)
    x = step.ids[..., None] * 10
    assert step.last(x)[:, 0, 0].tolist() == [60, 90, 40]
    assert step.unpack(x)[..., 0].tolist() == [[0, 50, 60], [70, 80, 90], [40, 0, 0]]


# What is refused


def test_no_token_is_refused(model: AnyModel):
    for ids in ([], np.zeros((2, 0), int)):
        with pytest.raises(PromptError, match="no token"):
            model.logits(ids)


@pytest.mark.parametrize("ids", [[1.0, 2.0], [[[1]]], [True], ["a"], 3], ids=str)
def test_ids_that_are_no_rows_of_integers_are_refused(model: AnyModel, ids: Any):
    with pytest.raises(ShapeError, match="integers"):
        model.logits(ids)


@pytest.mark.parametrize("outside", [-1, 101])
def test_an_id_outside_the_vocabulary_is_refused(model: AnyModel, outside: int):
    with pytest.raises(ShapeError, match=rf"from 0 to 100.*{outside}"):
        model.logits([3, outside])


def test_a_cache_of_another_batch_size_is_refused(model: AnyModel, make_cache: MakeCache):
    with pytest.raises(ShapeError, match=r"B = 3 sequences.*have 2"):
        model.logits(np.ones((2, 5), int), make_cache(model, batch_size=3))


@pytest.mark.parametrize(
    "mask", [np.ones((2, 4), bool), np.ones(5, bool), np.ones((2, 5), int)], ids=["T", "axes", "int"]
)
def test_a_mask_that_does_not_fit_the_ids_is_refused(model: AnyModel, mask: np.ndarray):
    with pytest.raises(ShapeError, match=r"bool of the ids' shape \(2, 5\)"):
        model.logits(np.ones((2, 5), int), None, mask)


def test_a_row_without_a_token_is_refused(model: AnyModel):
    with pytest.raises(PromptError, match="at least one real token"):
        model.logits(np.ones((2, 3), int), None, np.array([[True] * 3, [False] * 3]))


def test_a_refused_step_leaves_the_cache_as_before(model: AnyModel, make_cache: MakeCache):
    cache = make_cache(model)
    model.logits(PROMPT[:3], cache)
    with pytest.raises(ShapeError):
        model.logits(np.array([5, 101]), cache)
    assert cache.lengths == (3,)
    np.testing.assert_allclose(model.logits(PROMPT[3:], cache), model.logits(PROMPT)[3:], **CLOSE)


def test_a_cache_takes_exactly_the_bytes_its_shape_predicts(model: AnyModel, make_cache: MakeCache):
    cache = make_cache(model, batch_size=2)
    for _ in range(5):
        model.logits(np.stack([PROMPT, PROMPT]), cache)
        assert cache.nbytes == cache.predict_nbytes(cache.length) == array_bytes(cache)


def array_bytes(cache: Cache) -> int:
    """Bytes of every array that owns its memory."""
    if isinstance(cache, ContiguousCache):
        arrays = [array for layer in cache._layers for array in (layer.k, layer.v) if array.base is None]
    else:
        assert isinstance(cache, PagedCache)
        arrays = [page for page in cache.pool._pages if page is not None]
    return sum(array.nbytes for array in arrays)


def test_the_model_folder_may_go_away_once_loaded(tmp_path: Path):
    folder = write_model(tmp_path, "llama")
    model = load(folder)
    before = model.logits(PROMPT)
    for file in folder.iterdir():
        file.unlink()
    np.testing.assert_array_equal(model.logits(PROMPT), before)
