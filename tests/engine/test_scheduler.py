"""Who runs, who waits and who gives way: each text is what it is alone, and every page comes back."""

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qkv.engine import Engine, Stream
from qkv.engine.prefixes import SharedPrefixes
from qkv.engine.requests import Choice
from qkv.errors import CacheFull
from qkv.models import new_cache
from qkv.ops.backend import is_compiled
from qkv.ops.sampling import Sampling
from toy_model import BYTES_PER_TOKEN, ToyModel

pytestmark = pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")

END = 3
PAGE = 4 * BYTES_PER_TOKEN
POLICIES = (
    "page=4",
    "int8,page=4",
    "int8-kivi,page=4",
    "window=5,sinks=1,page=4",
    "streaming=8,page=4",
    "h2o=8,page=4",
    "snapkv=6,page=4",
)
BEGINNING = tuple(np.random.default_rng(1).integers(4, 31, 24).tolist())


class Asked(NamedTuple):
    """A request; equal ones have equal answers."""

    prompt: tuple[int, ...]
    seed: int | None = None
    policy: str = "page=4"
    max_tokens: int = 8
    n: int = 1
    ignore_eos: bool = False

    def submit(self, engine: Engine) -> Stream:
        hot = Sampling(logprobs=1) if self.seed is None else Sampling(1.0, seed=self.seed, logprobs=1)
        options = {"policy": self.policy, "max_tokens": self.max_tokens, "n": self.n}
        return engine.submit(self.prompt, sampling=hot, ignore_eos=self.ignore_eos, **options)


class Answer(NamedTuple):
    new_ids: tuple[int, ...]
    logprobs: tuple
    finish_reason: str | None


def answers(stream: Stream) -> list[Answer]:
    return [Answer(one.new_ids, one.logprobs, one.finish_reason) for one in stream.choices]


def toy() -> ToyModel:
    return ToyModel(end_ids=(END,))


@cache
def alone(asked: Asked) -> list[Answer]:
    engine = Engine(toy(), prefix_sharing=False)
    stream = asked.submit(engine)
    engine.run()
    return answers(stream)


def failed(stream: Stream) -> bool:
    return any(one.finish_reason == "error" for one in stream.choices)


def events(engine: Engine, kind: str) -> list[Any]:
    return [event for event in engine.log if event.kind == kind]


def at_rest(engine: Engine) -> bool:
    """Nothing runs, nothing waits, and what pages there are can be had by anyone."""
    return (
        engine.num_running == engine.num_waiting == 0
        and engine.pool.nbytes == engine.pool.idle_bytes
        and engine.step() is None
    )


# Anything in any order

PROMPTS = st.builds(
    lambda known, new: BEGINNING[:known] + tuple(new),
    st.integers(0, 24),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
)
ASKED = st.builds(
    Asked,
    PROMPTS,
    seed=st.none() | st.integers(0, 5),
    policy=st.sampled_from(POLICIES),
    max_tokens=st.integers(1, 12),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    ignore_eos=st.booleans(),
)


class EveryText(RuleBasedStateMachine):
    """Submits, aborts and takes steps at random; at the end all is compared with each request alone."""

    @initialize(
        max_batch=st.integers(3, 6),
        chunk_tokens=st.sampled_from([1, 3, 8, 64]),
        pages=st.none() | st.integers(6, 30),
        sharing=st.booleans(),
    )
    def begin(self, max_batch: int, chunk_tokens: int, pages: int | None, sharing: bool) -> None:
        self.options: dict[str, Any] = {
            "max_batch": max_batch,
            "chunk_tokens": chunk_tokens,
            "pool_bytes": None if pages is None else pages * PAGE,
            "prefix_sharing": sharing,
        }
        self.engine = Engine(toy(), **self.options)
        self.asked: list[tuple[Asked, Stream]] = []
        self.last_steps: list[int] = []

    @rule(asked=ASKED)
    def submit(self, asked: Asked) -> None:
        stream = asked.submit(self.engine)
        assert stream.number == len(self.asked)
        self.asked.append((asked, stream))
        self.last_steps.append(self.engine._scheduler.step + self.most_steps_left())

    @rule()
    def step(self) -> None:
        self.engine.step()
        for (_, stream), last_step in zip(self.asked, self.last_steps, strict=True):
            assert not self.is_live(stream) or self.engine._scheduler.step < last_step, "waits too long"

    @precondition(lambda self: any(self.is_live(stream) for _, stream in self.asked))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = [one for _, stream in self.asked for one in stream.choices if one.finish_reason is None]
        stream = data.draw(st.sampled_from(live))
        self.engine.abort(stream)
        assert stream.finish_reason == "abort"

    @precondition(lambda self: self.engine.num_running > 0)
    @rule()
    def interrupt(self) -> None:
        """As an exception does that comes out of a step; what was read is then lost for all."""
        self.engine._scheduler.preempt_all()
        self.last_steps = [last_step + self.most_steps_left() for last_step in self.last_steps]

    @rule()
    def forget(self) -> None:
        self.engine.forget_prefixes()

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.num_running + self.engine.num_waiting:
            self.step()
            self.engine.check_integrity()
        assert at_rest(self.engine)
        for asked, stream in self.asked:
            if failed(stream):
                self.could_not_be_helped(asked)
                continue
            for given, expected in zip(answers(stream), alone(asked), strict=True):
                length = len(given.new_ids)
                aborted = given.finish_reason == "abort"
                assert given.finish_reason in ("abort", expected.finish_reason)
                assert given.new_ids == (expected.new_ids[:length] if aborted else expected.new_ids)
                assert given.logprobs == (expected.logprobs[:length] if aborted else expected.logprobs)
        self.engine.forget_prefixes()
        assert self.engine.pool.num_pages == 0

    def could_not_be_helped(self, asked: Asked) -> None:
        """What failed beside others fails alone too, in the same pool."""
        engine = Engine(toy(), **self.options)
        stream = asked.submit(engine)
        engine.run()
        assert failed(stream)

    def most_steps_left(self) -> int:
        """In how many steps all that are here now are through at the latest."""
        live = [(asked, stream.choice.request) for asked, stream in self.asked if self.is_live(stream)]
        return sum(request.most_steps(self.chunk_tokens_of(asked)) for asked, request in live)

    def chunk_tokens_of(self, asked: Asked) -> int:
        """In a pool that is too small for a chunk it is read in smaller ones."""
        may_shrink = self.options["pool_bytes"] is not None and asked.policy not in ("page=4", "int8,page=4")
        return 1 if may_shrink else self.options["chunk_tokens"]

    @staticmethod
    def is_live(stream: Stream) -> bool:
        return any(one.finish_reason is None for one in stream.choices)


EveryText.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestEveryText = EveryText.TestCase


# A thousand requests


def test_of_a_thousand_requests_none_leaves_a_page_behind():
    """A quarter each ends at an end id, by length, by being aborted, and after having given way."""
    rng = np.random.default_rng(7)
    engine = Engine(toy(), pool_bytes=60 * PAGE, max_batch=8, chunk_tokens=16)
    fates = rng.permutation(np.repeat(["stop", "length", "abort", "give way"], 250)).tolist()
    streams: list[Stream] = []
    live: list[int] = []
    while len(streams) < len(fates) or live:
        if len(streams) < len(fates) and len(live) < 14:
            live.append(len(streams))
            streams.append(_with_fate(engine, fates[len(streams)], rng))
        if rng.random() < 0.8:
            engine.step()
        _let_some_give_way(engine, streams, fates, rng)
        doomed = [number for number in live if fates[number] == "abort" and rng.random() < 0.2]
        for number in doomed:
            engine.abort(streams[number])
        live = [number for number in live if streams[number].finish_reason is None]
        if rng.random() < 0.1:
            engine.check_integrity()
    assert at_rest(engine)
    engine.check_integrity()
    ends = Counter(
        (fate, stream.finish_reason if stream.statistics.preemptions == 0 else "gave way")
        for fate, stream in zip(fates, streams, strict=True)
    )
    assert sum(stream.finish_reason == "error" for stream in streams) == 0
    assert sum(ends[fate, "gave way"] for fate in set(fates)) >= 250
    assert ends["give way", "gave way"] == 250
    by_reason = Counter(stream.finish_reason for stream in streams)
    assert by_reason["abort"] == 250
    assert by_reason["stop"] >= 250 and by_reason["length"] >= 250
    engine.forget_prefixes()
    assert engine.pool.num_pages == 0


def _with_fate(engine: Engine, fate: str, rng: np.random.Generator) -> Stream:
    prompt = [*BEGINNING[: rng.integers(0, 20)], *rng.integers(4, 31, rng.integers(1, 6)).tolist()]
    end_bias = {"stop": 100.0}.get(fate, -100.0)
    sampling = Sampling(
        1.0,
        seed=int(rng.integers(100)),
        logit_bias={END: end_bias},
        min_tokens=int(rng.integers(0, 6)),
    )
    max_tokens = 30 if fate == "abort" else int(rng.integers(6, 12))
    policy = str(rng.choice(POLICIES))
    return engine.submit(prompt, sampling=sampling, policy=policy, max_tokens=max_tokens)


def _let_some_give_way(
    engine: Engine, streams: list[Stream], fates: list[str], rng: np.random.Generator
) -> None:
    """Have those that run and are to give way do so, and with each all that came after it."""
    scheduler = engine._scheduler
    due = [
        choice
        for choice in scheduler.running
        if fates[choice.request.number] == "give way"
        and choice.preemptions == 0
        and (rng.random() < 0.2 or choice.num_new == choice.request.max_tokens - 1)
    ]
    for choice in reversed(scheduler.running[:]):
        if due and choice.order >= due[0].order:
            scheduler.preempt(choice)


# Giving way


@pytest.mark.parametrize("sharing", [False, True])
def test_two_requests_in_a_pool_for_one_and_a_half_give_way_and_say_the_same(sharing: bool):
    """Pages of 4, a pool of 6; 8 tokens of prompt and 8 new ones are 4 pages each."""
    asked = [Asked(BEGINNING[:8], ignore_eos=True), Asked(BEGINNING[8:16], ignore_eos=True)]
    model = toy()
    engine = Engine(model, pool_bytes=6 * PAGE, prefix_sharing=sharing)
    streams = [one.submit(engine) for one in asked]
    while engine.step() is not None:
        engine.check_integrity()
    assert engine.statistics.preemptions >= 1
    assert [answers(stream) for stream in streams] == [alone(one) for one in asked]
    unpressured = Engine(toy())
    for one in asked:
        one.submit(unpressured)
    unpressured.run()
    assert engine.statistics.steps <= 4 * unpressured.statistics.steps
    (preempted, *_) = events(engine, "preempt")
    (again,) = [one for one in events(engine, "admit") if one.step > preempted.step]
    run_later = [e for e in events(engine, "run") if e.step >= again.step and e.request == again.request]
    text = len(asked[again.request].prompt) + streams[again.request].choice.request.max_tokens
    # All of prompt and new tokens but the last is run again, or found.
    assert again.tokens + sum(event.tokens for event in run_later) == text - 1
    assert (again.tokens > 0) == sharing


def test_the_newest_gives_way_and_the_oldest_never_does():
    engine = Engine(toy(), pool_bytes=9 * PAGE, max_batch=4)
    asked = [Asked(BEGINNING[n : n + 5], max_tokens=12, ignore_eos=True) for n in range(4)]
    streams = [one.submit(engine) for one in asked]
    engine.run()
    preempted = [event.request for event in events(engine, "preempt")]
    assert preempted and 0 not in preempted
    assert [answers(stream) for stream in streams] == [alone(one) for one in asked]
    ends = [event.request for event in events(engine, "length")]
    assert ends == [0, 1, 2, 3]
    for event in events(engine, "preempt"):
        running = _running_at(engine, event)
        assert event.request == max(running)


def _running_at(engine: Engine, until: Any) -> set[int]:
    """Who ran when an event was noted."""
    running: set[int] = set()
    for event in engine.log:
        if event is until:
            break
        if event.kind == "admit":
            running.add(event.request)
        if event.kind in ("preempt", "length", "stop"):
            running.discard(event.request)
    return running


def test_a_long_prompt_does_not_hold_up_those_that_decode():
    """Three tokens a step: the long prompt takes five steps, in each of which the first makes a token."""
    engine = Engine(toy(), chunk_tokens=3)
    first = Asked((5,), max_tokens=12, ignore_eos=True).submit(engine)
    engine.step()
    Asked(BEGINNING[:15]).submit(engine)
    for number in range(5):
        engine.step()
        assert len(first.new_ids) == 2 + number
    reads = [event.tokens for event in events(engine, "run") if event.request == 1]
    assert reads == [3] * 5


def test_prompts_under_an_eviction_are_read_in_one_step_each_and_not_two_in_one():
    engine = Engine(toy(), chunk_tokens=3, policy="h2o=8,page=4")
    asked = [Asked(BEGINNING[start : start + 15], policy="h2o=8,page=4") for start in (0, 4)]
    streams = [one.submit(engine) for one in asked]
    engine.run()
    reads = [(event.step, event.tokens) for event in events(engine, "run") if event.tokens > 1]
    assert reads == [(1, 15), (2, 15)]
    assert [answers(stream) for stream in streams] == [alone(one) for one in asked]


def test_no_more_run_than_may():
    engine = Engine(toy(), max_batch=3)
    for n in (1, 1, 3, 1):
        Asked(BEGINNING[:4], n=n, seed=1, max_tokens=4, ignore_eos=True).submit(engine)
    most = 0
    while engine.step() is not None:
        most = max(most, len({(e.request, e.choice) for e in engine.log if e.step == engine._scheduler.step}))
        engine.check_integrity()
    begun = [event.request for event in events(engine, "admit")]
    assert begun == [0, 1, 2, 3]


def test_two_runs_make_the_same_decisions():
    def log() -> list[Any]:
        engine = Engine(toy(), pool_bytes=9 * PAGE, max_batch=4, chunk_tokens=5)
        asked = [
            Asked(BEGINNING[: 3 + n], n, POLICIES[n % 7], max_tokens=9, ignore_eos=True) for n in range(12)
        ]
        streams = [one.submit(engine) for one in asked]
        for _ in range(9):
            engine.step()
        engine.abort(streams[3])
        engine.run()
        return list(engine.log)

    first = log()
    assert first == log()
    assert {"submit", "admit", "run", "preempt", "abort"} <= {event.kind for event in first}


def test_who_begins_leaves_the_others_a_page_to_grow():
    """Three pages: the first has one and takes another with its next token; the second would take two."""
    engine = Engine(toy(), pool_bytes=3 * PAGE)
    asked = Asked(BEGINNING[:4], max_tokens=5, ignore_eos=True), Asked(BEGINNING[:8], max_tokens=3)
    streams = [one.submit(engine) for one in asked]
    engine.run()
    assert engine.statistics.preemptions == 0
    assert [answers(stream) for stream in streams] == [alone(one) for one in asked]


def test_when_the_oldest_fails_after_others_gave_way_these_go_on(monkeypatch: pytest.MonkeyPatch):
    """Before it comes down to 8 tokens it holds 3 pages of 4; there is room for two, and for small ones.

    It is let in all the same, as if that had been reckoned wrongly.
    """
    monkeypatch.setattr("qkv.engine.engine.longest_text", lambda cache, prompt_tokens, most: most)
    policy, small = "streaming=8,sinks=1,page=4", "int8,window=1,page=1"
    page, small_page = (new_cache(toy(), one).layout.nbytes for one in (policy, small))
    budget = 2 * page + 5 * small_page
    assert budget < 3 * page
    engine = Engine(toy(), pool_bytes=budget)
    first = Asked(BEGINNING[:4], policy=policy, max_tokens=9, ignore_eos=True)
    second = Asked(BEGINNING[:1], policy=small, max_tokens=12, ignore_eos=True)
    streams = [one.submit(engine) for one in (first, second)]
    engine.run()
    assert (streams[0].finish_reason, len(streams[0].new_ids)) == ("error", 5)
    assert [event.request for event in events(engine, "preempt")] == [1]
    assert answers(streams[1]) == alone(second)


# Beginnings that are known


@pytest.mark.parametrize(("length", "known"), [(8, 7), (9, 8), (12, 11)])
def test_a_prompt_that_is_known_in_full_has_its_last_token_computed(length: int, known: int):
    model = toy()
    engine = Engine(model)
    asked = Asked(BEGINNING[:length], max_tokens=5, ignore_eos=True)
    first = asked.submit(engine)
    engine.run()
    model.tokens_run.clear()
    second = asked.submit(engine)
    engine.run()
    assert model.tokens_run[0] == length - known == 1
    assert second.statistics.cached_tokens == known
    assert answers(first) == answers(second) == alone(asked)


def test_a_live_text_shares_what_it_has_read_and_made():
    model = toy()
    engine = Engine(model)
    asked = Asked(BEGINNING[:6], max_tokens=14, ignore_eos=True)
    first = asked.submit(engine)
    while len(first.new_ids) < 8:
        engine.step()
    follower = Asked((*BEGINNING[:6], *first.new_ids[:6], 7, 7), max_tokens=3, ignore_eos=True)
    second = follower.submit(engine)
    engine.run()
    assert second.statistics.cached_tokens == 12
    assert answers(second) == alone(follower)
    assert answers(first) == alone(asked)


def test_requests_of_another_salt_or_policy_share_nothing():
    engine = Engine(toy())
    prompt = BEGINNING[:9]
    for salt, policy in (("a", "page=4"), ("b", "page=4"), ("a", "int8,page=4")):
        stream = engine.submit(prompt, salt=salt, policy=policy, max_tokens=2)
        engine.run()
        assert stream.statistics.cached_tokens == 0
    again = engine.submit(prompt, salt="a", policy="page=4", max_tokens=2)
    engine.run()
    assert again.statistics.cached_tokens == 8


def test_pages_kept_for_later_make_room_when_somebody_needs_it():
    engine = Engine(toy(), pool_bytes=5 * PAGE)
    for start in (0, 4, 8):
        asked = Asked(BEGINNING[start : start + 12], max_tokens=8, ignore_eos=True)
        stream = asked.submit(engine)
        engine.run()
        engine.check_integrity()
        assert answers(stream) == alone(asked)
    assert engine.statistics.preemptions == 0


# Nobody sees another's tokens


def test_what_is_freed_or_was_never_written_is_never_read():
    """Every page begins as NaN; B shares 4 tokens with A, which is over."""
    engine = Engine(toy(), pool_bytes=8 * PAGE)
    engine.pool._new_page = lambda nbytes: np.full(nbytes, 0xFF, np.uint8)
    first, second = Asked(tuple(range(4, 16))), Asked((4, 5, 6, 7, 20, 21))
    for asked in (first, second):
        stream = asked.submit(engine)
        engine.run()
        assert answers(stream) == alone(asked)
    assert stream.statistics.cached_tokens == 4


def test_sixteen_prompts_at_once_each_get_their_own_answer():
    asked = [Asked(BEGINNING[n : n + 2 + n % 5], seed=n, max_tokens=9) for n in range(16)]
    engine = Engine(toy(), max_batch=16)
    streams = [one.submit(engine) for one in asked]
    engine.run()
    assert [answers(stream) for stream in streams] == [alone(one) for one in asked]


def test_the_longest_may_leave_and_the_others_go_on():
    longest, short = Asked(BEGINNING[:8], max_tokens=1), Asked(BEGINNING[8:13], max_tokens=4, ignore_eos=True)
    engine = Engine(toy())
    streams = [one.submit(engine) for one in (longest, short)]
    engine.step()
    assert streams[0].finish_reason is not None
    engine.run()
    assert answers(streams[1]) == alone(short)


@pytest.mark.parametrize("num_steps", range(7))
def test_a_text_may_be_aborted_at_any_time_and_leaves_nothing(num_steps: int):
    engine = Engine(toy(), chunk_tokens=4, prefix_sharing=False)
    doomed = Asked(BEGINNING[:11]).submit(engine)
    other = Asked(BEGINNING[:5], max_tokens=6).submit(engine)
    for _ in range(num_steps):
        engine.step()
    engine.abort(doomed)
    engine.check_integrity()
    engine.run()
    assert answers(other) == alone(Asked(BEGINNING[:5], max_tokens=6))
    assert engine.pool.num_pages == 0


@pytest.mark.parametrize("running", [0, 1])
def test_who_is_interrupted_as_it_begins_keeps_no_pages(running: int, monkeypatch: pytest.MonkeyPatch):
    """The interruption comes when the pages that are known have just been taken."""
    asked, engine = Asked(BEGINNING[:9], max_tokens=3), Engine(toy(), pool_bytes=20 * PAGE)
    asked.submit(engine)
    engine.run()
    others = [Asked(BEGINNING[9:14], max_tokens=6, ignore_eos=True).submit(engine) for _ in range(running)]
    engine.step()
    adopt = SharedPrefixes.adopt

    def interrupted(prefixes: SharedPrefixes, choice: Choice) -> int:
        assert adopt(prefixes, choice) == 8
        raise KeyboardInterrupt

    stream = asked.submit(engine)
    with monkeypatch.context() as patch:
        patch.setattr(SharedPrefixes, "adopt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.check_integrity()
    assert engine.pool.nbytes == engine.pool.idle_bytes
    engine.run()
    assert answers(stream) == alone(asked)
    assert all(len(other.new_ids) == 6 for other in others)
    engine.forget_prefixes()
    assert engine.pool.num_pages == 0


def test_who_has_no_room_to_begin_is_not_tried_again_until_there_is_some(monkeypatch: pytest.MonkeyPatch):
    """Both come to 10 pages in a pool of 10; it is tried at once, and when two of its pages are known."""
    tried: list[int] = []
    adopt = SharedPrefixes.adopt

    def counted(prefixes: SharedPrefixes, choice: Choice) -> int:
        tried.append(choice.request.number)
        return adopt(prefixes, choice)

    monkeypatch.setattr(SharedPrefixes, "adopt", counted)
    engine = Engine(toy(), pool_bytes=10 * PAGE)
    asked = [
        Asked(BEGINNING[:10], max_tokens=30, ignore_eos=True),
        Asked((*BEGINNING[:8], *BEGINNING[4:24], *BEGINNING[:10]), max_tokens=1),
    ]
    streams = [one.submit(engine) for one in asked]
    engine.step()
    first = len(streams[0].new_ids)
    while streams[0].finish_reason is None:
        engine.step()
        engine.check_integrity()
    assert len(streams[0].new_ids) - first > 20
    engine.run()
    assert tried.count(1) == 3 and streams[1].statistics.cached_tokens == 8
    assert [answers(stream) for stream in streams] == [alone(one) for one in asked]
    (admitted,) = [event for event in events(engine, "admit") if event.request == 1]
    (ended,) = [event for event in events(engine, "length") if event.request == 0]
    assert admitted.step == ended.step + 1


def test_who_was_held_up_begins_as_soon_as_more_of_its_text_is_known():
    """Its 8 pages are too many beside 3 in a pool of 10, until those 3 are known to be the same."""
    model = toy()
    first = Asked(BEGINNING[:12], max_tokens=20, ignore_eos=True)
    (said,) = alone(first)
    second = Asked((*first.prompt, *said.new_ids[:18], 7, 7), max_tokens=1)
    engine = Engine(model, pool_bytes=10 * PAGE)
    streams = [one.submit(engine) for one in (first, second)]
    engine.run()
    (admitted,) = [event for event in events(engine, "admit") if event.request == 1]
    assert (admitted.step, admitted.tokens) == (2, 12)
    assert [answers(stream) for stream in streams] == [alone(one) for one in (first, second)]


@pytest.mark.parametrize("sharing", [False, True])
def test_page_sizes_that_callers_name_leave_nothing_behind(sharing: bool):
    """Each size has an index of its own, which the pool tells of every page that is shared or freed."""
    engine = Engine(toy(), prefix_sharing=sharing)
    for size in range(1, 40):
        engine.submit(BEGINNING[:9], policy=f"page={size}", max_tokens=1)
        engine.run()
        engine.forget_prefixes()
        engine.check_integrity()
        assert len(engine.pool.keepers) == 0
    assert not any(isinstance(held, dict) for held in vars(engine).values())


def test_an_index_that_remembers_something_stays_when_others_go():
    engine = Engine(toy())
    for size in (50, 4, 60, 70):  # a prompt of 9 fills pages of 4 alone
        engine.submit(BEGINNING[:9], policy=f"page={size}", max_tokens=1)
        engine.run()
    assert len(engine.pool.keepers) == 2
    again = engine.submit(BEGINNING[:9], policy="page=4", max_tokens=1)
    engine.run()
    engine.check_integrity()
    assert again.statistics.cached_tokens == 8
    engine.forget_prefixes()
    assert engine.pool.num_pages == 0


def test_a_request_that_never_fits_does_not_hold_up_the_line():
    engine = Engine(toy(), pool_bytes=3 * PAGE)
    asked = Asked(BEGINNING[:4], max_tokens=5)
    first, never, second = (one.submit(engine) for one in (asked, Asked(BEGINNING[:12], max_tokens=2), asked))
    assert isinstance(never.error, CacheFull)
    engine.run()
    assert answers(first) == answers(second) == alone(asked)
