"""Windows: which tokens are read, which are asked for, and that each held-out token is asked for once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bigram_model import BEGIN, LINE_END, windows
from qkv.errors import OptionError
from qkv.tokens.bpe import train_bpe
from qkv.training.batches import HELD_OUT_B, Windows
from qkv.training.cross_entropy import IGNORED
from qkv.training.text import Document, hold_out

POEM = "".join(f"line {n} of the poem\nand {n} again\n\n" for n in range(83))


def of(text: list[int], T: int, **changes: int) -> Windows:
    chosen = {"B": 5, "seed": 1, "begin_id": 0, "line_end_id": 9} | changes
    return Windows(np.array(text), np.array(text), held_out_bytes=99, T=T, **chosen)


def test_a_window_reads_what_begins_a_text_then_all_it_is_asked_for_but_the_last():
    data = windows()
    text = data.train.tolist()
    ids, targets = data.batch(3)
    assert ids.shape == targets.shape == (data.B, data.T)
    for row, asked in zip(ids.tolist(), targets.tolist(), strict=True):
        assert row[0] == BEGIN and row[1:] == asked[:-1]
        assert any(text[n : n + data.T] == asked for n in range(len(text)))


def test_windows_come_from_seed_and_step_alone():
    first = [windows().batch(step) for step in range(4)]
    again = [windows().batch(step) for step in reversed(range(4))][::-1]
    for one, other in zip(first, again, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert not np.array_equal(first[0][1], first[1][1])
    assert not np.array_equal(first[0][1], windows(seed=6).batch(0)[1])


def test_every_token_can_be_drawn_to_the_very_last():
    text = [*range(1, 9), 12, 13]  # no line ends: windows begin anywhere
    seen = {token for step in range(50) for token in of(text, T=4).batch(step)[1].ravel().tolist()}
    assert seen == set(text)


def test_a_window_begins_where_its_line_does_if_that_is_near():
    #       0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17
    text = [1, 2, 9, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 9, 9, 5, 0, 6]
    data = of(text, T=12)  # near: 3 tokens
    starts = [data._line_start(data.train, start) for start in range(18)]
    assert starts == [0, 0, 0, 3, 3, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 15, 17]


def test_the_first_line_begins_where_the_text_does():
    data = of([*range(1, 9), *range(1, 9)], T=16 - 1)
    assert [data._line_start(data.train, start) for start in (1, 3, 4, 5)] == [0, 0, 4, 5]


@pytest.mark.parametrize("T", [2, 5, 7, 16, 23, 52, 53, 54, 97])
def test_each_held_out_token_is_asked_for_once_and_in_order(T: int):
    data = replace(windows(), T=T)
    asked = [target for _, targets in data.held_out() for target in targets.ravel().tolist()]
    assert [target for target in asked if target != IGNORED] == data.held_out_tokens.tolist()


def test_held_out_windows_read_again_from_the_beginning_of_the_line():
    data = of([1, 2, 3, 9, 4, 5, 6, 7, 8], T=8)
    [(ids, targets)] = data.held_out()
    assert ids.tolist() == [[0, 1, 2, 3, 9, 4, 5, 6], [0, 8, 0, 0, 0, 0, 0, 0]]
    assert targets.tolist() == [[1, 2, 3, 9, 4, 5, 6, 7], [8, *[IGNORED] * 7]]
    data = of([1, 2, 3, 5, 4, 5, 9, 7, 8], T=8)  # the line that 8 stands in begins at 7
    [(ids, targets)] = data.held_out()
    assert targets[1].tolist() == [IGNORED, 8, *[IGNORED] * 6] and ids[1, :3].tolist() == [0, 7, 8]


def test_held_out_windows_come_some_at_a_time():
    data = of([1] * 2 * HELD_OUT_B * 4, T=4)
    assert [len(ids) for ids, _ in data.held_out()] == [HELD_OUT_B, HELD_OUT_B]


def test_a_text_becomes_two_files_and_what_is_held_out_is_in_one_alone(tmp_path: Path):
    split = hold_out([Document("poem", POEM)], 0.2)
    tokenizer = train_bpe([document.text for document in split.train], 290)
    data = Windows.of(split, tokenizer, tmp_path, B=3, T=31, seed=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["held_out.tokens", "train.tokens"]
    assert tokenizer.decode(data.train.tolist()) == split.train[0].text
    assert tokenizer.decode(data.held_out_tokens.tolist()) == split.held_out[0].text
    assert data.held_out_bytes == len(split.held_out[0].text.encode())
    for step in range(20):
        for row in data.batch(step)[1].tolist():
            assert tokenizer.decode(row) in POEM[: -data.held_out_bytes]
            assert tokenizer.decode(row).startswith(("line", "and", "\n"))  # where lines begin


def test_the_fingerprint_tells_texts_apart():
    data, other = windows(), np.array([*windows().train[:-1], 3])
    assert windows().fingerprint == data.fingerprint
    moved = replace(data, train=data.train[:-1], held_out_tokens=data.held_out_tokens)
    assert len({data.fingerprint, replace(data, train=other).fingerprint, moved.fingerprint}) == 3
    longer, shorter = data.train, data.held_out_tokens  # the same tokens, cut elsewhere
    joined = np.concatenate([longer, shorter])
    cut = replace(data, train=joined[:200], held_out_tokens=joined[200:])
    assert cut.fingerprint != data.fingerprint


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(OptionError, match="more than 7 tokens, a window, got 7"):
        replace(windows(), train=np.arange(7))
    with pytest.raises(OptionError, match="held-out text to be examined on"):
        replace(windows(), held_out_tokens=np.arange(1))
    assert LINE_END in windows().train
