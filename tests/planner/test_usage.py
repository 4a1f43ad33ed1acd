"""What prompts are made of, and what of them is said again."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv import PromptError
from qkv.planner.prompts import read_prompts
from qkv.planner.usage import Request, measure_usage, repeated_tokens, shared_tokens

TOKENS = st.lists(st.integers(0, 2), max_size=30).map(lambda ids: np.array(ids, np.int64))


def letters(text):
    return [ord(letter) for letter in text]


def bracketed(messages):
    return "".join(f"<{message['role']}>{message['content']}" for message in messages)


@given(st.lists(TOKENS, max_size=6), st.integers(1, 5))
def test_shared_pages_are_those_that_an_earlier_request_began_with(ids, page_size):
    found, seen = 0, []
    for each in ids:
        pages = range(page_size, len(each) + 1, page_size)
        found += sum(
            page_size
            for end in pages
            if any(np.array_equal(each[:end], s[:end]) for s in seen if len(s) >= end)
        )
        seen.append(each)
    assert shared_tokens(ids, page_size) == found


@given(TOKENS, st.integers(1, 5))
def test_repeats_are_spans_that_stand_earlier(ids, span):
    inside = [False] * len(ids)
    for start in range(len(ids) - span + 1):
        for before in range(start - span + 1):
            if ids[before : before + span].tolist() == ids[start : start + span].tolist():
                inside[start : start + span] = [True] * span
    assert repeated_tokens(ids, span) == sum(inside)


def test_a_page_counts_only_where_everything_before_it_is_shared():
    one, other = np.array([1, 2, 3, 4, 5, 6]), np.array([9, 2, 3, 4, 5, 6])
    assert shared_tokens([one, other], page_size=2) == 0
    assert shared_tokens([one, one], page_size=4) == 4


def test_what_the_template_adds_is_a_part_of_its_own(tmp_path):
    path = tmp_path / "chat.jsonl"
    turns = [
        {"role": "system", "content": "abcde"},
        {"role": "user", "content": [{"type": "text", "text": "xyz"}]},
    ]
    path.write_text(json.dumps({"messages": turns}) + "\n\n" + json.dumps(turns) + "\n")
    usage = measure_usage(read_prompts(path, bracketed), letters, page_size=4)
    assert usage.num_requests == 2
    assert usage.by_part == {"system": 10, "user": 6, "template": 2 * len("<system><user>")}
    assert usage.tokens == sum(usage.by_part.values())
    assert usage.shared_tokens == 20


def test_a_prompt_that_says_a_thing_twice_is_found():
    passage = "the same forty letters in the same order"
    usage = measure_usage([Request((), passage + "!" + passage), Request((), "short")], letters)
    assert (usage.repeated_tokens, usage.repeating_requests) == (40, 1)


def test_plain_text_is_one_request(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("two\nlines")
    (request,) = read_prompts(path, bracketed)
    assert request.text == "two\nlines"


@pytest.mark.parametrize("line", ['"words"', '{"prompt": "words"}', '{"text": "words", "id": 7}'])
def test_a_line_may_be_plain_words(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    (request,) = read_prompts(path, bracketed)
    assert request == Request((("text", "words"),), "words")


@pytest.mark.parametrize(
    "line", ["{", "7", '{"answer": 1}', '[{"content": "no role"}]', '[{"role": "user", "content": 7}]']
)
def test_a_line_that_is_no_prompt_is_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"fine"\n' + line)
    with pytest.raises(PromptError, match=r"prompts\.jsonl, line 2"):
        read_prompts(path, bracketed)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(PromptError, match="cannot be read as text"):
        read_prompts(path, bracketed)
