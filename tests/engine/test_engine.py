"""One request of an engine: its text, its end, its draws, its figures, and what is refused."""

import json
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest

import small_tokenizers
from clocks import Clock
from qkv.engine import Engine, Stream
from qkv.errors import CacheFull, NumericError, OptionError, PromptError
from qkv.models import new_cache
from qkv.ops.backend import is_compiled
from qkv.ops.sampling import Sampling
from toy_model import BYTES_PER_TOKEN, ScriptedModel, ToyModel

BYTE_LEVEL = small_tokenizers.byte_level()
PAGE = 16 * BYTES_PER_TOKEN


def spelled(*tokens: str) -> list[int]:
    ids = [BYTE_LEVEL.id_of(token) for token in tokens]
    assert None not in ids
    return ids  # type: ignore[return-value]


def letters(text: str) -> list[int]:
    """Ids of a byte-level tokenizer, one per letter."""
    return [token_id for letter in text for token_id in spelled(small_tokenizers.letters(letter))]


def scripted(text: str, **options: Any) -> ScriptedModel:
    return ScriptedModel(letters(text), BYTE_LEVEL, **options)


def say(model: ToyModel, prompt: Sequence[int] = (0,), **options: Any) -> Stream:
    return Engine(model).submit(prompt, **{"max_tokens": 20, **options})


def outcome(stream: Stream) -> tuple[str, int, str | None]:
    pieces = list(stream)
    assert all(pieces)
    return "".join(pieces), len(stream.new_ids), stream.finish_reason


# Text


class Spelling(ScriptedModel):
    """Says given pieces of text, each a token of its own."""

    def __init__(self, *pieces: str, end_ids: Sequence[int] = ()) -> None:
        core = small_tokenizers.models.WordLevel(
            small_tokenizers.numbered(["<unk>", "</s>", *pieces]), unk_token="<unk>"
        )
        built = small_tokenizers.Core(core)
        built.decoder = small_tokenizers.decoders.Fuse()
        tokenizer = small_tokenizers.Tokenizer(built, {})
        super().__init__([*range(2, 2 + len(pieces)), 1], tokenizer, end_ids=(1, *end_ids))


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "reason"),
    [
        (["DEF", "G", "HI", "J"], ["DEFGHIJ"], "", "stop"),
        (["DEF", "G", "HI", "K"], ["DEFGHIJ"], "DEFGHIK", "stop"),
        (["DEF"], ["DEFGHIJ"], "DEF", "stop"),
        (["The quick br", "own", " fox", " jumps"], ["own fox"], "The quick br", "stop"),
        (["xab", "c"], ["ab", "abc"], "x", "stop"),
    ],
    ids=str,
)
def test_a_stop_string_ends_a_text_across_tokens_and_none_of_it_is_shown(
    pieces: list[str], stop: list[str], shown: str, reason: str
):
    assert outcome(say(Spelling(*pieces), stop=stop))[::2] == (shown, reason)


def test_only_what_may_begin_a_stop_string_is_withheld():
    stream = say(Spelling("ab", "cd", "ef", "g"), stop=["efgh"])
    assert list(stream) == ["ab", "cd", "efg"]


def test_what_length_cuts_off_may_complete_a_stop_string_that_waited():
    stream = say(scripted("xabc"), max_tokens=4, stop=["abcd", "bc"])
    assert outcome(stream) == ("xa", 4, "stop")


@pytest.mark.parametrize(
    ("halves", "text"),
    [
        ([b"\xf0\x9f", b"\x98\x80"], "\U0001f600"),
        ([b"\xc4", b"\x8f"], "\u010f"),
        ([b"\xec\x82", b"\xbc"], "\uc0bc"),
        ([b"A", b" ", b"\xe4\xb8\x96", b"a"], "A 世a"),
    ],
    ids=str,
)
def test_a_character_of_several_tokens_is_shown_once_and_whole(halves: list[bytes], text: str):
    alphabet = {token: byte for byte, token in enumerate(_bytes_to_letters())}
    letters_of = {byte: token for token, byte in alphabet.items()}
    model = ScriptedModel(spelled(*(letters_of[byte] for half in halves for byte in half)), BYTE_LEVEL)
    stream = say(model, max_tokens=sum(map(len, halves)))
    pieces = list(stream)
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def _bytes_to_letters() -> list[str]:
    """The letter of each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def test_half_a_character_at_the_end_is_one_replacement_character():
    first = spelled(small_tokenizers.letters("😀")[:2])
    assert outcome(say(ScriptedModel(first, BYTE_LEVEL), max_tokens=1)) == ("\ufffd", 1, "length")


def test_the_pieces_are_the_text_of_all_ids():
    script = letters("a b") + spelled("the", "th", small_tokenizers.letters("世")) + letters("!")
    stream = say(ScriptedModel(script, BYTE_LEVEL), max_tokens=len(script))
    assert "".join(stream) == BYTE_LEVEL.decode(script)


def test_the_first_new_word_keeps_the_space_before_it():
    tokenizer = small_tokenizers.llama()
    ids = [tokenizer.id_of(token) for token in ("▁the", "th", "▁t")]
    stream = say(ScriptedModel([one for one in ids if one is not None], tokenizer), [5], max_tokens=3)
    assert "".join(stream) == " theth t"


def test_a_prompt_may_be_text():
    model = scripted("abc")
    stream = Engine(model).submit("x", max_tokens=2)
    assert stream.prompt_ids == tuple(BYTE_LEVEL.encode("x"))
    assert outcome(stream) == ("ab", 2, "length")


def test_a_model_without_a_tokenizer_makes_ids_and_no_text():
    stream = say(ToyModel(), max_tokens=5)
    assert outcome(stream) == ("", 5, "length")


# End ids


@pytest.mark.parametrize("script", [[5, 2], [5, 7], [5, 9]], ids=str)
def test_every_end_id_ends_a_text_and_ignoring_them_ignores_all(script: list[int]):
    model = ScriptedModel([*script, *[5] * 20], end_ids=(2, 7, 9))
    assert outcome(say(model))[1:] == (1, "stop")
    assert outcome(say(model, ignore_eos=True, max_tokens=4))[1:] == (4, "length")


def test_stop_ids_end_a_text_though_end_ids_are_ignored():
    model = ScriptedModel([3, 2, 5, 6], end_ids=(2,))
    assert outcome(say(model, stop_ids=[5], ignore_eos=True))[1:] == (2, "stop")
    assert outcome(say(model, stop_ids=[3]))[1:] == (0, "stop")


def test_no_id_ends_a_text_before_its_least_number_of_tokens():
    model = ScriptedModel([2] * 20, end_ids=(2,))
    stream = say(model, sampling=Sampling(min_tokens=3))
    assert outcome(stream)[1:] == (3, "stop")
    assert 2 not in stream.new_ids


def test_a_text_ends_where_the_models_context_does():
    model = ToyModel(context_length=7)
    assert outcome(say(model, [1, 2, 3], max_tokens=20))[1:] == (4, "length")


# Draws

HOT = Sampling(temperature=0.8, seed=42)


def test_a_seeded_text_is_the_same_alone_and_beside_any_neighbour():
    model, ids = ToyModel(), [3, 1, 4]
    alone = say(model, ids, sampling=HOT)
    list(alone)
    for neighbour in (Sampling(temperature=0.8), Sampling(temperature=0.8, seed=7)):
        engine = Engine(model)
        engine.submit(ids, sampling=neighbour)
        beside = engine.submit(ids, sampling=HOT, max_tokens=20)
        engine.run()
        assert beside.new_ids == alone.new_ids


def test_texts_of_one_prompt_differ_and_come_again_with_the_seed():
    model, ids = ToyModel(), [3, 1, 4]
    first, second = (say(model, ids, sampling=HOT, n=3) for _ in range(2))
    for stream in (*first.choices, *second.choices):
        list(stream)
    texts = [stream.new_ids for stream in first.choices]
    assert len(set(texts)) == 3
    assert [stream.new_ids for stream in second.choices] == texts
    assert [stream.index for stream in first.choices] == [0, 1, 2]
    alone = say(model, ids, sampling=HOT)
    list(alone)
    assert texts[0] == alone.new_ids


def test_texts_without_a_seed_differ():
    model = ToyModel()
    streams = [say(model, sampling=Sampling(temperature=2.0), max_tokens=40) for _ in range(3)]
    for stream in streams:
        list(stream)
    assert len({stream.new_ids for stream in streams}) == 3


def test_the_prompt_of_several_texts_is_read_once():
    model = ToyModel()
    stream = say(model, range(1, 14), n=3, max_tokens=2)
    list(stream)
    assert model.tokens_run == [13, 3]


def test_the_first_of_several_texts_may_be_aborted_before_they_begin():
    model = ToyModel()
    engine = Engine(model, chunk_tokens=4)
    stream = engine.submit(range(1, 14), n=3, sampling=HOT, max_tokens=5)
    engine.step()
    engine.abort(stream)
    engine.check_integrity()
    engine.run()
    expected = say(model, range(1, 14), n=3, sampling=HOT, max_tokens=5)
    list(expected)
    assert model.tokens_run[:4] == [4, 4, 4, 1]
    assert [one.finish_reason for one in stream.choices] == ["abort", "length", "length"]
    assert [one.new_ids for one in stream.choices[1:]] == [one.new_ids for one in expected.choices[1:]]


# Log-probabilities


class Fixed(ToyModel):
    """Gives the same logits always."""

    def __init__(self, logits: Sequence[float]) -> None:
        super().__init__(V=len(logits))
        self.row = np.array(logits, np.float32)

    def unembed(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(self.row, (*x.shape[:-1], self.vocab_size))


@pytest.mark.parametrize("temperature", [1, 0.5, 0])
def test_logprobs_are_of_the_raw_logits_and_can_be_written_as_json(temperature: float):
    expected = [-0.407606, -1.407606, -2.407606]
    sampling = Sampling(temperature=temperature, top_k=1, logprobs=3)
    stream = say(Fixed([2, 1, 0]), sampling=sampling, max_tokens=2)
    list(stream)
    assert [one.token_id for one in stream.logprobs] == [0, 0]
    for one in stream.logprobs:
        assert [value for _, value in one.top] == pytest.approx(expected, abs=1e-6)
        json.dumps([one.logprob, one.top], allow_nan=False)


def test_no_alternatives_are_still_the_tokens_own_logprob():
    stream = say(Fixed([2, 1, 0]), sampling=Sampling(logprobs=0), max_tokens=1)
    list(stream)
    assert [(round(one.logprob, 6), one.top) for one in stream.logprobs] == [(-0.407606, ())]


@pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")
@pytest.mark.parametrize("chunk_tokens", [1, 5, 64])
def test_prompt_logprobs_are_those_of_the_whole_prompt(chunk_tokens: int):
    model, ids = ToyModel(), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    stream = Engine(model, chunk_tokens=chunk_tokens).submit(ids, max_tokens=1, prompt_logprobs=2)
    list(stream)
    rows = model.logits(np.array(ids)).astype(np.float64)
    expected = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    assert [one.token_id for one in stream.prompt_logprobs] == ids[1:]
    given = [one.logprob for one in stream.prompt_logprobs]
    assert given == pytest.approx([float(expected[t, ids[t + 1]]) for t in range(len(ids) - 1)])
    assert all(len(one.top) == 2 for one in stream.prompt_logprobs)


def test_prompt_logprobs_are_given_once_though_the_prompt_is_read_twice():
    ids = list(range(1, 14))
    once = say(ToyModel(), ids, max_tokens=2, prompt_logprobs=1)
    list(once)
    engine = Engine(ToyModel(), policy="page=4", chunk_tokens=5)
    twice = engine.submit(ids, max_tokens=2, prompt_logprobs=1)
    for _ in range(2):
        engine.step()
        engine._scheduler.preempt_all()
    engine.run()
    assert twice.prompt_logprobs == once.prompt_logprobs
    assert twice.statistics.preemptions == 2


def test_a_prompt_known_already_is_read_all_the_same_where_its_logprobs_are_wanted():
    engine, ids = Engine(ToyModel(), policy="page=4"), list(range(1, 14))
    streams = [engine.submit(ids, max_tokens=2, prompt_logprobs=0) for _ in range(2)]
    engine.run()
    later = engine.submit(ids, max_tokens=2, prompt_logprobs=0)
    engine.run()
    assert later.prompt_logprobs == streams[0].prompt_logprobs == streams[1].prompt_logprobs
    assert len(later.prompt_logprobs) == 12
    assert later.statistics.cached_tokens == 0


# Streams


def test_iterating_over_one_text_has_the_others_go_on():
    engine = Engine(scripted("abcdef"))
    first, second = (engine.submit([0], max_tokens=6) for _ in range(2))
    assert "".join(islice(first, 3)) == "abc"
    assert second.new_ids == tuple(letters("abc"))
    assert "".join(second) == "abcdef"
    assert "".join(first) == "def"
    assert list(first) == []


def test_running_to_the_end_leaves_the_text_to_be_fetched():
    engine = Engine(scripted("abcdef"))
    streams = [engine.submit([0], max_tokens=number) for number in (2, 5)]
    engine.run()
    assert ["".join(stream) for stream in streams] == ["ab", "abcde"]
    assert engine.step() is None


def test_an_aborted_text_ends_at_once_and_keeps_what_it_had():
    engine = Engine(scripted("abcdef"))
    stream, other = (engine.submit([0], max_tokens=6) for _ in range(2))
    next(stream)
    engine.abort(stream)
    assert stream.finish_reason == "abort"
    assert list(stream) == []
    engine.abort(stream)
    assert "".join(other) == "abcdef"
    assert engine.pool.nbytes == engine.pool.idle_bytes


def test_what_was_withheld_comes_out_when_a_text_is_aborted():
    engine = Engine(scripted("abcdef"))
    stream = engine.submit([0], max_tokens=6, stop=["cde"])
    for _ in range(4):
        engine.step()
    engine.abort(stream)
    assert "".join(stream) == "abcd"


# What goes wrong goes wrong for one


def test_a_text_whose_logits_are_no_numbers_fails_alone():
    class Broken(ToyModel):
        def unembed(self, x: np.ndarray) -> np.ndarray:
            logits = super().unembed(x)
            logits[..., 0, :] = np.nan
            return logits

    engine = Engine(Broken())
    first, second = (engine.submit([token_id], max_tokens=3) for token_id in (1, 2))
    engine.step()
    assert (first.finish_reason, second.finish_reason) == ("error", None)
    with pytest.raises(NumericError, match="NaN"):
        list(first)
    assert isinstance(first.error, NumericError)
    assert len(second.new_ids) == 1
    engine.check_integrity()


def test_a_text_that_may_choose_no_token_fails_alone():
    words = [[token_id] for token_id in range(31)]
    engine = Engine(ToyModel())
    none_left = engine.submit([1], sampling=Sampling(bad_words=words), max_tokens=3)
    other = engine.submit([1], max_tokens=3)
    engine.run()
    assert none_left.finish_reason == "error" and none_left.error is not None
    assert outcome(other)[1:] == (3, "length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"n": 0}, "n must be from 1 to 8"),
        ({"n": 9}, "n must be from 1 to 8"),
        ({"stop": [""]}, "one character or more"),
        ({"stop": "abc"}, "list of stop strings"),
        ({"stop_ids": [31]}, "stop_ids are from 0 to 30, not 31"),
        ({"stop_ids": [-1]}, "stop_ids are from 0 to 30, not -1"),
        ({"sampling": Sampling(logit_bias={31: 1.0})}, "from 0 to 30, not 31"),
        ({"sampling": Sampling(bad_words=[[77]])}, "from 0 to 30, not 77"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be at least 0, not -1"),
        ({"policy": "windw=8"}, "windw"),
        ({"policy": 8}, "a policy is text"),
        ({"max_tokens": None}, "max_tokens must be a whole number, at least 1, not None"),
        ({"n": True}, "n must be from 1 to 8.* not True"),
        ({"n": None}, "n must be from 1 to 8.* not None"),
        ({"stop": 5}, "list of stop strings.* got 5"),
        ({"stop": [5]}, r"list of stop strings.* got \[5\]"),
        ({"stop_ids": 5}, "stop_ids are token ids.* not 5"),
        ({"sampling": 5}, "sampling takes a qkv.Sampling, not 5"),
        ({"prompt_logprobs": "1"}, "prompt_logprobs must be a whole number, at least 0, not '1'"),
        ({"policy": "heads=10,window=4"}, "heads=10"),
    ],
    ids=str,
)
def test_an_option_without_a_meaning_is_refused_and_nobody_notices(options: dict, message: str):
    engine = Engine(ToyModel())
    other = engine.submit([1, 2], max_tokens=4)
    engine.step()
    log = list(engine.log)
    with pytest.raises(OptionError, match=message):
        engine.submit([1, 2], **options)
    assert list(engine.log) == log and engine.num_running == 1
    alone = say(ToyModel(), [1, 2], max_tokens=4)
    assert outcome(other) == outcome(alone)
    assert other.new_ids == alone.new_ids


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no token"),
        ([31], "from 0 to 30, not 31"),
        ([-1], "from 0 to 30, not -1"),
        ([0.5], "token ids"),
        ([True], r"token ids, not \[True\]"),
        (None, "text or a sequence of token ids, not None"),
        (7, "token ids, not 7"),
        (b"\x01", r"token ids, not b'\\x01'"),
        ("text", "tokenizer"),
        ([1] * 50, "has 50 tokens, but the model's context is 50; shorten it to at most 49"),
    ],
    ids=str,
)
def test_a_prompt_that_cannot_be_run_is_refused(prompt: Any, message: str):
    engine = Engine(ToyModel(context_length=50))
    with pytest.raises(PromptError, match=message):
        engine.submit(prompt)
    assert engine.step() is None


def test_stop_strings_without_a_tokenizer_are_refused():
    with pytest.raises(OptionError, match="stop_ids"):
        say(ToyModel(), stop=["a"])


@pytest.mark.parametrize("name", ["max_batch", "chunk_tokens"])
def test_an_engine_for_nothing_is_refused(name: str):
    with pytest.raises(OptionError, match=f"{name} must be at least 1, not 0"):
        partial(Engine, ToyModel(), **{name: 0})()
    with pytest.raises(OptionError, match=f"{name} must be a whole number, at least 1, not '3'"):
        partial(Engine, ToyModel(), **{name: "3"})()


def test_an_engine_is_of_a_model_a_number_of_bytes_and_a_policy():
    for arguments, message in [
        (("verse",), r"a model is what qkv.load returns, not 'verse'; try qkv.load\('verse'\)"),
        ((ToyModel(), "64MiB"), r"bytes or more, such as 64 \* 2\*\*20, .* not '64MiB'"),
        ((ToyModel(), 2.5), "not 2.5"),
        ((ToyModel(), True), "not True"),
        ((ToyModel(), None, None), "a policy is text such as 'int8,window=1024', .* not None"),
    ]:
        with pytest.raises(OptionError, match=message):
            partial(Engine, *arguments)()


@pytest.mark.parametrize("wrong", [99, None])
def test_only_a_stream_can_be_aborted(wrong: Any):
    with pytest.raises(OptionError, match=f"abort takes the stream that submit returned, not {wrong}"):
        Engine(ToyModel()).abort(wrong)


def test_a_request_that_can_never_fit_fails_at_once_and_alone():
    """Two pages of 16 tokens: 32 tokens and the last one, which is chosen but not run."""
    engine = Engine(ToyModel(), pool_bytes=2 * PAGE)
    fits = engine.submit([1] * 20, max_tokens=13)
    never = engine.submit([1] * 20, max_tokens=14)
    assert (fits.finish_reason, never.finish_reason) == (None, "error")
    assert isinstance(never.error, CacheFull)
    assert (never.error.asked_pages, never.error.pages_that_fit) == (3, 2)
    with pytest.raises(CacheFull):
        list(never)
    assert outcome(fits)[1:] == (13, "length")


def test_a_chunk_for_which_there_is_no_room_is_read_in_smaller_ones():
    """A window of 4 holds two pages of 4 at rest, but three while a chunk of 9 tokens is read."""
    model = ToyModel()
    engine = Engine(model, pool_bytes=2 * 4 * BYTES_PER_TOKEN, policy="window=4,page=4", chunk_tokens=9)
    stream = engine.submit([1] * 9, max_tokens=3)
    assert outcome(stream)[1:] == (3, "length")
    # Half of 9, half of the 5 left, of 3 one, of 2 one: then the second page is full, and the first goes.
    assert model.tokens_run[1:] == [4, 2, 1, 1, 1, 1, 1]


def test_a_prompt_that_does_not_fit_in_its_one_step_fails_alone():
    """What stays is 4 tokens, a page, but 9 tokens are read before any is evicted."""
    model, policy = ToyModel(), "streaming=4,sinks=1,page=4"
    page = new_cache(model, policy).layout.nbytes
    engine = Engine(model, pool_bytes=2 * page, policy=policy)
    other, stream = engine.submit([1, 2], max_tokens=5), engine.submit([1] * 9, max_tokens=2, n=2)
    last = engine.submit([1] * 4, max_tokens=2)
    assert [one.finish_reason for one in stream.choices] == ["error", "error"]
    engine.run()
    with pytest.raises(CacheFull, match="3 pages of"):
        list(stream)
    assert other.finish_reason == last.finish_reason == "length"
    assert engine.pool.nbytes == engine.pool.idle_bytes


def test_a_models_own_windows_count_in_what_fits():
    """Without them 100 tokens would take 7 pages of 16; with a window of 5 never more than two."""
    engine = Engine(ToyModel(window=5), pool_bytes=3 * PAGE, chunk_tokens=8)
    assert outcome(engine.submit([1] * 90, max_tokens=11))[1:] == (11, "length")
    with_all = Engine(ToyModel(), pool_bytes=3 * PAGE)
    assert with_all.submit([1] * 90, max_tokens=11).finish_reason == "error"


@pytest.mark.parametrize("policy", ["", "streaming=8,page=4", "int8-kivi,page=4"])
@pytest.mark.parametrize("when", ["reading", "decoding", "choosing"])
@pytest.mark.parametrize("sharing", [False, True])
def test_an_interrupted_step_loses_no_text(policy: str, when: str, sharing: bool):
    class Interrupted(ToyModel):
        steps_left = -1

        def unembed(self, x: np.ndarray) -> np.ndarray:
            self.steps_left -= 1
            if self.steps_left == 0 and when == "choosing":
                raise KeyboardInterrupt
            if self.steps_left == 0:
                self.fails = True
            return super().unembed(x)

        def hidden(self, ids: Any, cache: Any = None) -> np.ndarray:
            if getattr(self, "fails", False):
                self.fails = False
                cache.append(0, *(np.full((1, 1, np.size(ids), 2), np.nan, np.float32) for _ in "kv"))
                raise KeyboardInterrupt
            return super().hidden(ids, cache)

    texts = [[1, 2, 3] * 4, [3, 1] * 7, [5]]
    options = {"policy": policy, "max_tokens": 9, "sampling": HOT}
    alone = [say(ToyModel(), ids, **options) for ids in texts]
    for stream in alone:
        list(stream)
    model = Interrupted()
    engine = Engine(model, chunk_tokens=5, prefix_sharing=sharing)
    streams = [engine.submit(ids, **options) for ids in texts]
    model.steps_left = {"reading": 1, "decoding": 5, "choosing": 4}[when]
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.check_integrity()
    engine.run()
    assert [stream.new_ids for stream in streams] == [stream.new_ids for stream in alone]


# Figures


class Slow(ToyModel):
    """Takes a second a token."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def hidden(self, ids: Any, cache: Any = None) -> np.ndarray:
        self.clock.now += np.size(ids)
        return super().hidden(ids, cache)


def test_times_are_those_of_waiting_reading_and_decoding():
    clock = Clock()
    engine = Engine(Slow(clock), max_batch=1, clock=clock)
    first, second = engine.submit([1] * 10, max_tokens=3), engine.submit([2] * 5, max_tokens=2)
    engine.run()
    figures = first.statistics, second.statistics
    assert [(f.queue_seconds, f.prefill_seconds, f.decode_seconds) for f in figures] == [
        (0, 10, 2),
        (12, 5, 1),
    ]
    assert [f.seconds_to_first_token for f in figures] == [10, 17]
    assert [f.decode_tokens_per_second for f in figures] == [1, 1]
    assert engine.statistics.seconds == 18
    assert engine.statistics.tokens_per_second == 5 / 18


def test_figures_of_each_step_add_up_to_those_of_all():
    steps = []
    engine = Engine(ToyModel(), chunk_tokens=4, clock=Clock(), on_step=steps.append)
    for ids in ([1] * 6, [2] * 3):
        engine.submit(ids, max_tokens=3)
    engine.run()
    counted = [(s.step, s.read_tokens, s.decoded_tokens, s.new_tokens, s.running) for s in steps]
    # 4 of the first prompt; its other 2 and 2 of the second; a token of the first and the last of the second.
    assert counted == [(1, 4, 0, 0, 1), (2, 4, 0, 1, 2), (3, 1, 1, 2, 2), (4, 0, 2, 2, 1), (5, 0, 1, 1, 0)]
    assert engine.statistics.steps == 5
    assert engine.statistics.read_tokens == 9
    assert engine.statistics.new_tokens == 6


def test_bytes_read_are_weights_and_what_texts_hold_over_the_time():
    clock = Clock()
    engine = Engine(Slow(clock), clock=clock)
    engine._weight_nbytes = 1000
    engine.submit([1] * 20, max_tokens=1)
    engine.submit([1], max_tokens=1)
    step = engine.step()
    assert step is not None
    assert (step.memory.pages, step.memory.nbytes, step.memory.held_bytes) == (3, 3 * PAGE, 3 * PAGE)
    assert step.bytes_read == 1000 + 3 * PAGE
    assert step.seconds == 21
    assert step.gigabytes_per_second == pytest.approx((1000 + 3 * PAGE) / 21e9)
    assert engine.statistics.gigabytes_per_second == step.gigabytes_per_second


def test_a_clock_that_stands_still_gives_no_speed():
    engine = Engine(ToyModel(), clock=Clock())
    stream = engine.submit([1], max_tokens=3)
    engine.run()
    assert engine.statistics.gigabytes_per_second == engine.statistics.tokens_per_second == 0
    assert stream.statistics.decode_tokens_per_second == 0


def test_what_texts_hold_is_what_was_predicted_in_every_step():
    steps = []
    engine = Engine(ToyModel(window=9), pool_bytes=40 * PAGE, chunk_tokens=7, on_step=steps.append)
    policies = ["", "int8", "int8-kivi,page=4", "window=5,sinks=1,page=4", "streaming=6,page=2", "snapkv=5"]
    for index, policy in enumerate(policies):
        engine.submit(range(1, 12 + index), policy=policy, max_tokens=20)
    engine.run()
    assert len(steps) > 20
    for step in steps:
        assert step.memory.held_bytes == step.memory.predicted_bytes
        assert step.memory.nbytes <= 40 * PAGE
    assert engine.statistics.peak == max((s.memory for s in steps), key=lambda memory: memory.held_bytes)


def test_evicted_tokens_are_counted():
    """8 tokens and a page of 4 more before it comes down to 8: at 12 and at 16 of 19 tokens, 4 each."""
    stream = Engine(ToyModel(), policy="streaming=8,page=4").submit([1] * 5, max_tokens=15)
    list(stream)
    assert stream.statistics.evicted_tokens == 8
