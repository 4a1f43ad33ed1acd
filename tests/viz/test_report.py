"""A report that stands alone: no address, no script, everything said in the language asked for."""

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from lab_boards import board_of, failing_board, minding_board
from qkv.lab import EXPERIMENTS, Verdict
from qkv.viz.report import PHRASES, report_html

LOADS = ("src", "srcset", "poster", "data", "action", "background")
"""Attributes that make a browser fetch something."""
EMPTY_TAGS = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects what a browser would fetch, which places there are, and which tags were left open."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.ids, self.targets, self.open, self.words = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.fetched += [value for name, value in given.items() if name in LOADS]
        href = given.get("href") or given.get("xlink:href") or ""
        if href.startswith("#"):
            self.targets.append(href[1:])
        elif not href.startswith("data:") and href:
            self.fetched.append(href)
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY_TAGS:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module", params=["en", "zh"])
def page(request):
    text = report_html(board_of(*EXPERIMENTS), request.param, pictures=False)
    return request.param, text, Page(text)


def test_nothing_is_fetched_and_nothing_runs(page):
    _, text, parsed = page
    assert parsed.fetched == []
    assert "<script" not in text and "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_every_link_has_its_place_and_every_tag_its_end(page):
    _, _, parsed = page
    assert parsed.open == []
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert set(parsed.targets) <= set(parsed.ids)
    assert {one.name for one in EXPERIMENTS} <= set(parsed.targets)


def test_every_claim_part_number_and_setting_is_there(page):
    language, _, parsed = page
    words = " ".join(" ".join(parsed.words).split())
    for one in EXPERIMENTS:
        for said in (one.claim, one.title, *(part.says for part in one.parts)):
            assert " ".join(said.say(language).split()) in words
        for part in one.parts:
            assert part.decides.metric in words and str(part.decides) in words
        assert f"qkv lab quick {one.id} --seed 0" in words


def test_the_language_is_said_and_kept(page):
    language, text, _ = page
    assert f'<html lang="{"zh-CN" if language == "zh" else "en"}">' in text
    shown = unescape(text)
    for name in ("heading", "board", "all_numbers", "settings", "no_pictures"):
        assert PHRASES[name].say(language) in shown
        assert f">{PHRASES[name].say('en' if language == 'zh' else 'zh')}<" not in shown


def test_verdict_condition_and_what_was_left_open_are_shown():
    experiment, board = failing_board()
    text = report_html(board, pictures=False)
    assert board[experiment.id].ruling.verdict is Verdict.HOLDS_ONLY_IF
    assert "HOLDS ONLY IF" in text and "only if: " in text


def test_each_part_has_a_mark_on_the_board_and_asides_are_minded():
    text = report_html(minding_board(), pictures=False)
    board = text[text.index('id="board"') : text.index("<section")]
    assert board.count(">✓</span>") == 6 and board.count(">✗</span>") == 1
    assert "mind: the article&#39;s class with a cache does not mask prompts" in board


def test_what_comes_from_a_machine_is_text_and_no_markup():
    _, board = failing_board(cpu='<b>fast</b> & "cheap"')
    text = report_html(board, pictures=False)
    assert "<b>fast" not in text and "&lt;b&gt;fast" in text


def test_it_reads_on_a_phone(page):
    _, text, _ = page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media (max-width: 40rem)" in text
