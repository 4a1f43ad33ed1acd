from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.tokens import StopMatcher

short_texts = st.text("ab", max_size=24)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def emitted(stops: list[str], pieces: list[str]) -> list[str]:
    """What comes out for each piece, and at the end."""
    matcher = StopMatcher(stops)
    return [*map(matcher.push, pieces), matcher.finish()]


def split(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize(
    ("stops", "pieces", "chunks"),
    [
        (["DEFGHIJ"], ["DEF", "G", "HI", "J"], ["", "", "", "", ""]),
        (["DEFGHIJ"], ["DEF", "G", "HI", "K"], ["", "", "", "DEFGHIK", ""]),
        (["DEFGHIJ"], ["DEF"], ["", "DEF"]),
        (["own fox"], ["The quick br", "own", " fox", " jumps"], ["The quick br", "", "", "", ""]),
        (["ab", "abc"], ["xab", "c"], ["x", "", ""]),
        (["abc", "ab"], ["xa", "bc"], ["x", "", ""]),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", "", ""]),
        (["abcd", "bc"], ["abc", "d"], ["", "", ""]),
        (["abcd", "bc"], ["abc", "x"], ["", "a", ""]),
        (["abcd", "bc"], ["abc"], ["", "a"]),
        ([], ["any", "thing"], ["any", "thing", ""]),
    ],
)
def test_text_comes_out_up_to_the_stop(stops: list[str], pieces: list[str], chunks: list[str]):
    assert emitted(stops, pieces) == chunks


@given(stops=stop_lists, text=short_texts, cuts=st.lists(st.integers(0, 24), max_size=9))
def test_the_text_ends_at_the_earliest_stop_however_it_is_cut(stops: list[str], text: str, cuts: list[int]):
    earliest = min((text.find(stop) for stop in stops if stop in text), default=len(text))
    assert "".join(emitted(stops, split(text, cuts))) == text[:earliest]


@given(stops=stop_lists, text=short_texts, cuts=st.lists(st.integers(0, 24), max_size=9))
def test_the_stop_that_matched_does_not_depend_on_the_cuts(stops: list[str], text: str, cuts: list[int]):
    whole, cut = StopMatcher(stops), StopMatcher(stops)
    for matcher, pieces in [(whole, [text]), (cut, split(text, cuts))]:
        for piece in pieces:
            matcher.push(piece)
        matcher.finish()
    assert cut.matched == whole.matched
    assert cut.stopped == any(stop in text for stop in stops)


@given(stops=stop_lists, text=short_texts)
def test_only_the_beginning_of_a_stop_is_withheld(stops: list[str], text: str):
    matcher, shown = StopMatcher(stops), ""
    for count, character in enumerate(text, 1):
        shown += matcher.push(character)
        if matcher.stopped:
            break
        withheld = text[len(shown) : count]
        assert withheld == "" or any(stop.startswith(withheld) and stop != withheld for stop in stops)


def test_the_matched_stop_is_named():
    matcher = StopMatcher(["zebra", "fox"])
    assert (matcher.stopped, matcher.matched) == (False, None)
    matcher.push("a quick fo")
    assert (matcher.stopped, matcher.matched) == (False, None)
    matcher.push("x")
    assert (matcher.stopped, matcher.matched) == (True, "fox")


def test_a_complete_stop_does_not_wait_for_a_longer_one_that_begins_with_it():
    matcher = StopMatcher(["abc", "ab"])
    assert (matcher.push("xab"), matcher.matched) == ("x", "ab")
    whole = StopMatcher(["abc", "ab"])
    assert (whole.push("xabc"), whole.matched) == ("x", "ab")


def test_nothing_comes_out_after_a_stop():
    matcher = StopMatcher(["."])
    assert matcher.push("One. Two") == "One"
    assert (matcher.push("Three."), matcher.finish()) == ("", "")


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_an_empty_stop_is_refused(stops: list[str]):
    with pytest.raises(OptionError, match="of one character or more"):
        StopMatcher(stops)


def test_one_string_is_not_taken_for_a_list_of_characters():
    with pytest.raises(OptionError, match=r"try \['end'\]"):
        StopMatcher("end")
