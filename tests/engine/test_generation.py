"""Generating: the text ends where it should, says why, and is the same with and without a cache."""

import math
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
import small_tokenizers
from qkv.cache import Cache, ContiguousCache, Policy, StepCache
from qkv.cache.contiguous import CacheShape
from qkv.engine import Generation, generate
from qkv.errors import OptionError, PromptError
from qkv.models import load, new_cache
from qkv.models.model import Model
from qkv.ops.sampling import Sampling
from qkv.tokens import Tokenizer
from tiny_models import FAMILIES, VOCAB_SIZE_WITH_TOKENIZER, write_model, write_tokenizer

GREEDY = Sampling()
PROMPT = "Grüße, 世界"
VOCAB_SIZE = 1000


class ScriptedModel:
    """A model that gives one id after the other, whatever it reads, and notes what it was given."""

    def __init__(
        self,
        script: Sequence[int],
        tokenizer: Tokenizer | None,
        end_ids: Sequence[int] = (),
        context_length: int = 1000,
    ) -> None:
        self.script, self.tokenizer = list(script), tokenizer
        self.end_ids, self.context_length = frozenset(end_ids), context_length
        self.cache_shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=1)
        self.rotation, self.fingerprint, self.vocab_size = None, "scripted", VOCAB_SIZE
        self.given: list[list[int]] = []

    def next_logits(self, ids: Any, cache: Cache | None = None, mask: Any = None) -> np.ndarray:
        self.given.append([int(token_id) for token_id in ids])
        if cache is not None:
            k = v = np.zeros((1, 1, len(ids), 1), np.float32)
            cache.append(0, k, v)
            cache.attend(0, k)
        logits = np.zeros(VOCAB_SIZE, np.float32)
        logits[self.script[len(self.given) - 1]] = 9.0
        return logits

    def logits(self, ids: Any, cache: StepCache | None = None, mask: Any = None) -> np.ndarray:
        raise AssertionError("generating needs the last logits only")

    def hidden(self, ids: Any, cache: StepCache | None = None) -> np.ndarray:
        raise AssertionError("generating needs the last logits only")

    def unembed(self, x: Any) -> np.ndarray:
        raise AssertionError("generating needs the last logits only")


def spelled(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    ids = [tokenizer.id_of(token) for token in tokens]
    assert None not in ids
    return ids  # type: ignore[return-value]


def letters(text: str) -> list[int]:
    """Ids of a byte-level tokenizer, one per letter."""
    return [token_id for letter in text for token_id in spelled(BYTE_LEVEL, small_tokenizers.letters(letter))]


BYTE_LEVEL = small_tokenizers.byte_level()


def scripted(text: str, **options: Any) -> ScriptedModel:
    return ScriptedModel(letters(text), BYTE_LEVEL, **options)


def generation(model: Model, prompt: str | Sequence[int] = "x", **options: Any) -> Generation:
    return Generation(model, prompt, options.pop("sampling", GREEDY), **{"max_tokens": 20, **options})


def outcome(text: Generation) -> tuple[str, int, str | None]:
    pieces = list(text)
    assert all(pieces)
    return "".join(pieces), len(text.new_ids), text.finish_reason


# Why a text ends


def test_a_text_ends_by_length_at_max_tokens():
    assert outcome(generation(scripted("abcdef"), max_tokens=3)) == ("abc", 3, "length")


def test_a_text_ends_by_itself_at_an_end_id_which_is_no_part_of_it():
    end = letters("d")
    assert outcome(generation(scripted("abcdef", end_ids=end))) == ("abc", 3, "stop")


@pytest.mark.parametrize("end", ["b", "c", "d"])
def test_every_one_of_several_end_ids_ends_a_text(end: str):
    model = scripted(f"a{end}aaaaaaaaaaaaaaaaaaaa", end_ids=letters("bcd"))
    assert outcome(generation(model)) == ("a", 1, "stop")


def test_a_text_may_be_empty():
    text = generation(scripted("d", end_ids=letters("d")))
    assert outcome(text) == ("", 0, "stop")
    assert text.decode_tokens_per_second == 0


def test_the_last_token_allowed_ends_by_length_even_if_an_end_id_would_come():
    assert outcome(generation(scripted("abcd", end_ids=letters("d")), max_tokens=3)) == ("abc", 3, "length")


@pytest.mark.parametrize(
    ("script", "stop", "shown"),
    [
        ("a cat sat", ["cat"], "a "),
        ("a cat sat", ["sat", "cat"], "a "),
        ("a cat sat", ["t s"], "a ca"),
        ("aab", ["ab"], "a"),
        ("cat", ["cat"], ""),
    ],
)
def test_a_stop_string_ends_a_text_and_is_no_part_of_it(script: str, stop: list[str], shown: str):
    model = scripted(script + "!" * 20)
    text, num_tokens, reason = outcome(generation(model, stop=stop))
    first_end = min(script.find(one) + len(one) for one in stop if one in script)
    assert (text, num_tokens, reason) == (shown, first_end, "stop")


def test_what_only_began_like_a_stop_string_comes_out_at_the_end():
    assert outcome(generation(scripted("a cat"), max_tokens=5, stop=["cats"])) == ("a cat", 5, "length")
    ended = generation(scripted("a cat."), stop=["cats"])
    ended_by_id = generation(scripted("a cat.", end_ids=letters(".")), stop=["cats"])
    assert outcome(ended_by_id) == ("a cat", 5, "stop")
    assert ended.finish_reason is None


def test_a_stop_string_that_the_end_completes_counts_as_a_stop():
    """A stop string that waited for an earlier, longer one is found when no more is to come."""
    text = generation(scripted("xabc"), max_tokens=4, stop=["abcd", "bc"])
    assert outcome(text) == ("xa", 4, "stop")


def test_a_stop_string_is_looked_for_in_the_new_text_only():
    assert outcome(generation(scripted("at sea"), "a c", max_tokens=6, stop=["cat"])) == (
        "at sea",
        6,
        "length",
    )


def test_the_end_of_the_context_ends_a_text_by_length():
    for room in (1, 4):
        model = scripted("abcdefgh", context_length=3 + room)
        assert outcome(generation(model, "xyz")) == ("abcdefgh"[:room], room, "length")
        assert sum(map(len, model.given[-1:])) == 3 + room - 1


def test_there_is_no_reason_before_the_end():
    text = generation(scripted("abcdef"), max_tokens=3)
    pieces = iter(text)
    for _ in range(3):
        assert text.finish_reason is None
        next(pieces)
    assert list(pieces) == []
    assert text.finish_reason == "length"


# Prompts


def test_a_prompt_that_gives_no_token_is_refused():
    with pytest.raises(PromptError, match="the prompt gives no token"):
        generation(scripted("abc"), "")
    with pytest.raises(PromptError, match="the prompt gives no token"):
        generation(scripted("abc"), [])


def test_an_empty_text_to_which_the_tokenizer_adds_a_token_is_a_prompt():
    tokenizer = small_tokenizers.llama()
    model = ScriptedModel(spelled(tokenizer, "▁the"), tokenizer)
    text = generation(model, "", max_tokens=1)
    assert text.prompt_ids == [tokenizer.bos_id]
    assert outcome(text) == ("the", 1, "length")


def test_a_prompt_as_long_as_the_context_is_refused_with_both_numbers():
    with pytest.raises(
        PromptError, match=r"has 7 tokens, but the model's context is 7; shorten it to at most 6"
    ):
        generation(scripted("a", context_length=7), "seven..")


def test_a_prompt_behind_a_full_cache_is_refused_with_all_numbers():
    model = scripted("abc", context_length=11)
    cache = new_cache(model)
    assert outcome(generation(model, "12345", max_tokens=3, cache=cache)) == ("abc", 3, "length")
    assert cache.length == 7
    with pytest.raises(
        PromptError, match=r"has 4 tokens behind the 7 in the cache.*context is 11.*at most 3"
    ):
        generation(model, "1234", cache=cache)


def test_a_full_cache_leaves_no_room_for_a_prompt():
    model = scripted("abc", context_length=7)
    cache = new_cache(model)
    model.next_logits([1] * 7, cache)
    with pytest.raises(PromptError, match="7 in the cache") as caught:
        generation(model, "x", cache=cache)
    assert str(caught.value).endswith("begin with a new cache, or trim it")


def test_a_prompt_of_ids_is_taken_as_it_is():
    prompts: list[Any] = [[5, 6], (5, 6), np.array([5, 6])]
    for prompt in prompts:
        model = scripted("ab")
        text = generation(model, prompt, max_tokens=2)
        assert text.prompt_ids == [5, 6]
        assert outcome(text)[0] == "ab"
        assert model.given[0] == [5, 6]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([1, 99999999], "from 0 to 999, not 99999999"), ([-1], "from 0 to 999, not -1"), ([0.5], "token ids")],
)
def test_a_prompt_of_ids_that_the_model_does_not_have_is_refused_at_once(prompt: Any, message: str):
    with pytest.raises(PromptError, match=message):
        generation(scripted("ab"), prompt)


def test_a_model_without_a_tokenizer_cannot_generate_text():
    with pytest.raises(PromptError, match=r"tokenizer\.json"):
        generation(ScriptedModel([1], None), [1])


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_less_than_one_new_token_is_refused(max_tokens: int):
    with pytest.raises(OptionError, match=f"max_tokens must be at least 1, not {max_tokens}"):
        generation(scripted("a"), max_tokens=max_tokens)


@pytest.mark.parametrize("max_tokens", [None, 2.5, True, "3"])
def test_a_number_of_tokens_is_a_whole_number(max_tokens: Any):
    with pytest.raises(OptionError, match=f"max_tokens must be a whole .* not {max_tokens!r}"):
        generation(scripted("a"), max_tokens=max_tokens)


@pytest.mark.parametrize("prompt", [None, 5, b"Hi", [1.5], [True]], ids=str)
def test_a_prompt_of_another_kind_is_refused(prompt: Any):
    with pytest.raises(PromptError, match="a prompt is text or a sequence of token ids, not"):
        generation(scripted("a"), prompt)


@pytest.mark.parametrize("stop_ids", [5, "5", [True], [1.0], None], ids=str)
def test_stop_ids_of_another_kind_are_refused(stop_ids: Any):
    with pytest.raises(OptionError, match=r"stop_ids are token ids, such as \[0\], not"):
        generation(scripted("a"), stop_ids=stop_ids)


@pytest.mark.parametrize("stop", ["cat", [""], ["cat", ""], 5, [5], None], ids=str)
def test_stop_strings_without_a_meaning_are_refused(stop: Any):
    with pytest.raises(OptionError):
        generation(scripted("a"), stop=stop)


# What the model is given


def test_with_a_cache_each_token_is_run_once_and_without_one_the_whole_text_each_time():
    cached, uncached = scripted("abc"), scripted("abc")
    cache = new_cache(cached)
    outcome(generation(cached, [7, 8], max_tokens=3, cache=cache))
    outcome(generation(uncached, [7, 8], max_tokens=3))
    a, b, _ = letters("abc")
    assert cached.given == [[7, 8], [a], [b]]
    assert uncached.given == [[7, 8], [7, 8, a], [7, 8, a, b]]
    assert cache.length == 4


def test_a_cache_is_continued_where_it_ends():
    model = scripted("ab")
    cache = new_cache(model)
    for prompt in ([1, 2, 3], [4, 5]):
        model.given.clear()
        outcome(generation(model, prompt, max_tokens=2, cache=cache))
        assert model.given[0] == prompt
    assert cache.length == 3 + 1 + 2 + 1


# Text


def test_pieces_are_whole_characters():
    first, second = (
        BYTE_LEVEL.id_of(small_tokenizers.letters("😀")[:2]),
        BYTE_LEVEL.id_of(small_tokenizers.letters("😀")[2:]),
    )
    assert first is not None and second is not None
    text = generation(ScriptedModel([first, second, *letters("a")], BYTE_LEVEL), max_tokens=3)
    assert list(text) == ["😀", "a"]


def test_a_character_that_length_cuts_off_is_one_replacement_character():
    first = BYTE_LEVEL.id_of(small_tokenizers.letters("😀")[:2])
    assert first is not None
    assert outcome(generation(ScriptedModel([first], BYTE_LEVEL), max_tokens=1)) == ("\ufffd", 1, "length")


def test_the_first_new_word_keeps_the_space_before_it():
    tokenizer = small_tokenizers.llama()
    model = ScriptedModel(spelled(tokenizer, "▁the", "th", "▁t"), tokenizer)
    assert outcome(generation(model, "the", max_tokens=3)) == (" theth t", 3, "length")


def test_special_tokens_are_no_part_of_the_text():
    model = ScriptedModel([*letters("a"), *spelled(BYTE_LEVEL, "<s>"), *letters("b")], BYTE_LEVEL)
    assert outcome(generation(model, max_tokens=3)) == ("ab", 3, "length")


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("name", ["byte_level", "llama", "gemma", "metaspace", "wordpiece"])
def test_the_pieces_are_the_text_of_all_ids_behind_the_text_of_the_prompt(name: str, data: st.DataObject):
    tokenizer = small_tokenizers.BUILDERS[name]()
    ids = st.integers(0, tokenizer.vocab_size - 1)
    prompt = data.draw(st.lists(ids, min_size=1, max_size=8).filter(lambda ids: _ends_whole(tokenizer, ids)))
    script = data.draw(st.lists(ids, min_size=1, max_size=12))
    text = generation(ScriptedModel(script, tokenizer), prompt, max_tokens=len(script))
    assert tokenizer.decode(prompt) + "".join(text) == tokenizer.decode(prompt + script)
    assert text.new_ids == script


def _ends_whole(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether no later token can change the text of these."""
    tokens = [token for token_id in ids if (token := tokenizer.token_of(token_id)) is not None]
    return tokenizer.joiner.settled(tokens) == tokenizer.joiner.join(tokens)


# Cached and uncached


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp(request.param)
    write_model(folder, request.param, vocab_size=VOCAB_SIZE_WITH_TOKENIZER)
    return load(write_tokenizer(folder))


@pytest.mark.parametrize(
    "make_cache", [lambda model: ContiguousCache(model.cache_shape), new_cache], ids=["contiguous", "paged"]
)
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(repetition_penalty=1.3),
        Sampling(temperature=0.9, top_p=0.95, seed=3),
        Sampling(temperature=1.5, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=4),
    ],
    ids=["greedy", "penalised", "top-p", "all"],
)
def test_a_cache_changes_no_id_and_no_piece(
    model: Model, sampling: Sampling, make_cache: Callable[[Model], Cache]
):
    cached = Generation(model, PROMPT, sampling, max_tokens=40, cache=make_cache(model))
    uncached = Generation(model, PROMPT, sampling, max_tokens=40)
    assert list(cached) == list(uncached)
    assert cached.new_ids == uncached.new_ids
    assert cached.finish_reason == uncached.finish_reason


def test_greedy_text_takes_the_most_likely_id_each_time(model: Model):
    text = generate(model, PROMPT, max_tokens=11)
    "".join(text)
    ids = list(text.prompt_ids)
    for token_id in text.new_ids:
        assert token_id == int(np.argmax(model.logits(np.array(ids))[-1]))
        ids.append(token_id)


def test_a_text_runs_to_the_end_of_the_context_without_an_error(model: Model):
    for cache in (None, new_cache(model)):
        text = generation(model, [5] * (model.context_length - 4), max_tokens=1000, cache=cache)
        _, num_tokens, reason = outcome(text)
        assert num_tokens == 4 or reason == "stop"
        assert reason in ("length", "stop")


class Liking(ScriptedModel):
    """A model that always likes ids 1, 2 and 3, in this order."""

    def next_logits(self, ids: Any, cache: Cache | None = None, mask: Any = None) -> np.ndarray:
        return np.array([0.0, 3.0, 2.0, 1.0], np.float32)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(repetition_penalty=10.0), [2, 3, 1, 1]),
        (Sampling(presence_penalty=2.5), [1, 2, 3, 1]),
        (Sampling(frequency_penalty=0.6), [1, 1, 2, 1]),
        (Sampling(bad_words=[[1, 1], [2]]), [3, 1, 3, 1]),
        (Sampling(logit_bias={3: 4.0}), [3, 3, 3, 3]),
    ],
    ids=str,
)
def test_penalties_count_what_they_should_of_prompt_and_new_tokens(sampling: Sampling, expected: list[int]):
    """The prompt is id 1: a repetition and a word's beginning, but neither present nor frequent."""
    text = generation(Liking([], BYTE_LEVEL), [1], max_tokens=4, sampling=sampling)
    list(text)
    assert text.new_ids == expected


def test_an_end_is_put_off_until_there_are_enough_tokens():
    model = Liking([], BYTE_LEVEL, end_ids=[1, 3])
    text = generation(model, [0], max_tokens=9, sampling=Sampling(min_tokens=3))
    list(text)
    assert (text.new_ids, text.finish_reason) == ([2, 2, 2], "stop")


def test_each_new_token_has_its_logprob_where_they_are_asked_for():
    text = generation(
        Liking([], BYTE_LEVEL), [0], max_tokens=2, sampling=Sampling(bad_words=[[1]], logprobs=1)
    )
    list(text)
    sum_of_all = math.log(sum(math.exp(logit) for logit in (0, 3, 2, 1)))
    assert [one.token_id for one in text.logprobs] == text.new_ids == [2, 2]
    for one in text.logprobs:
        assert one.logprob == pytest.approx(2 - sum_of_all)
        assert one.top == ((1, pytest.approx(3 - sum_of_all)),)
    silent = generation(Liking([], BYTE_LEVEL), [0], max_tokens=2)
    list(silent)
    assert silent.logprobs == []


# Options beside


def test_further_ids_end_a_text_and_the_models_own_may_be_ignored():
    script = letters("ab") + spelled(BYTE_LEVEL, "</s>") + letters("cd")
    (end,) = spelled(BYTE_LEVEL, "</s>")
    (c,) = letters("c")

    def run(**options: Any) -> tuple[int, str | None]:
        text = generation(ScriptedModel(script, BYTE_LEVEL, [end]), max_tokens=5, **options)
        list(text)
        return len(text.new_ids), text.finish_reason

    assert run() == (2, "stop")
    assert run(ignore_eos=True) == (5, "length")
    assert run(ignore_eos=True, stop_ids=[c]) == (3, "stop")
    assert run(stop_ids=letters("b")) == (1, "stop")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stop_ids": [VOCAB_SIZE]}, "stop_ids are from 0 to 999, not 1000"),
        ({"stop_ids": [-1]}, "stop_ids"),
        ({"sampling": Sampling(logit_bias={VOCAB_SIZE: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(bad_words=[[3, VOCAB_SIZE]])}, "bad_words"),
    ],
    ids=str,
)
def test_ids_that_the_model_lacks_are_refused_before_anything_runs(options: dict[str, Any], named: str):
    with pytest.raises(OptionError, match=named):
        generation(scripted("a"), **options)


def test_the_options_of_generate_are_those_of_sampling(model: Model):
    given = {
        "temperature": 0.7, "seed": 3, "presence_penalty": 0.5, "frequency_penalty": 0.25,
        "logit_bias": {5: 3.0, 7: -2.0}, "min_tokens": 4, "logprobs": 2,
    }  # fmt: skip
    text = generate(model, PROMPT, max_tokens=17, bad_words=[[5, 7]], **given)
    sampling = Sampling(**given, bad_words=[[5, 7]])
    same = Generation(model, PROMPT, sampling, max_tokens=17, cache=new_cache(model))
    assert _ids(text) == _ids(same) and text.logprobs == same.logprobs
    assert len(text.logprobs) == len(text.new_ids) and len(text.logprobs[0].top) == 2


# Seeds


def test_a_seed_gives_the_same_text_again_whatever_runs_beside_it(model: Model):
    options = {"max_tokens": 17, "temperature": 1.0}
    alone = "".join(generate(model, PROMPT, seed=42, **options))
    assert "".join(generate(model, PROMPT, seed=42, **options)) == alone
    for seed in (None, 42, 7):
        beside = iter(generate(model, PROMPT, seed=seed, **options))
        together = []
        for piece in generate(model, PROMPT, seed=42, **options):
            together.append(piece)
            next(beside, None)
        assert "".join(together) == alone


def test_texts_without_a_seed_differ(model: Model):
    texts = {tuple(_ids(generate(model, PROMPT, max_tokens=17, temperature=1.5))) for _ in range(3)}
    assert len(texts) == 3


def _ids(text: Generation) -> list[int]:
    list(text)
    return text.new_ids


def test_every_sampling_option_reaches_the_sampler(model: Model):
    given = {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 3}
    text = generate(model, PROMPT, max_tokens=23, **given)
    same = Generation(model, PROMPT, Sampling(**given), max_tokens=23, cache=new_cache(model))
    assert _ids(text) == _ids(same)
    for name, value in {"top_k": 1, "top_p": 0.0, "min_p": 1.0, "temperature": 0.0}.items():
        greedy = _ids(
            generate(model, PROMPT, max_tokens=5, **{**given, "repetition_penalty": 1.0, name: value})
        )
        assert greedy == _ids(generate(model, PROMPT, max_tokens=5)), name


def test_an_option_without_a_meaning_is_refused_at_once(model: Model):
    with pytest.raises(OptionError, match="top_p"):
        generate(model, PROMPT, top_p=1.5)


def test_generate_is_public_and_greedy_with_a_cache_of_its_own(model: Model):
    assert qkv.generate is generate
    first, second = generate(model, PROMPT, max_tokens=9), generate(model, PROMPT, max_tokens=9)
    assert _ids(first) == _ids(second) == _ids(Generation(model, PROMPT, GREEDY, max_tokens=9))


@pytest.mark.parametrize("policy", ["int8", Policy.parse("int8")], ids=["text", "policy"])
def test_a_policy_in_the_place_of_a_cache_makes_one_of_it(model: Model, policy: Policy | str):
    expected = _ids(generate(model, PROMPT, max_tokens=5, cache=new_cache(model, "int8")))
    assert _ids(generate(model, PROMPT, max_tokens=5, cache=policy)) == expected


def test_a_model_or_a_cache_of_another_kind_is_refused(model: Model):
    with pytest.raises(OptionError, match=r"cache takes what qkv.new_cache\(model, 'int8'\) returns, not 5"):
        generate(model, PROMPT, cache=5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"what qkv.load returns, not 'verse'; try qkv.load\('verse'\)"):
        generate("verse", PROMPT)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"bad_words are several words, .* not 5"):
        generate(model, PROMPT, bad_words=5)  # type: ignore[arg-type]


# Iterating


def test_breaking_off_and_going_on_gives_the_text_as_in_one_go():
    model = scripted("abcdef")
    text = generation(model, [7, 8], max_tokens=6, cache=new_cache(model))
    pieces = list(islice(text, 2))
    assert text.new_ids == letters("ab")
    pieces += islice(text, 1)
    assert "".join([*pieces, *text]) == "abcdef"
    assert text.finish_reason == "length"
    assert model.given == [[7, 8], *([token_id] for token_id in letters("abcde"))]


def test_a_text_is_given_once():
    for cache in (None, ContiguousCache(CacheShape(1, 1, 1))):
        model = scripted("abcd", end_ids=letters("c"))
        text = generation(model, cache=cache)
        assert "".join(text) == "ab"
        assert list(text) == []
        assert (text.finish_reason, text.new_ids, len(model.given)) == ("stop", letters("ab"), 3)


def test_an_interruption_leaves_the_ids_so_far_and_no_reason():
    class Interrupted(ScriptedModel):
        def next_logits(self, ids: Any, cache: Cache | None = None, mask: Any = None) -> np.ndarray:
            if len(self.given) == 3:
                raise KeyboardInterrupt
            return super().next_logits(ids, cache, mask)

    model = Interrupted(letters("abcdef"), BYTE_LEVEL)
    text, pieces = generation(model, max_tokens=6), []
    with pytest.raises(KeyboardInterrupt):
        pieces.extend(text)
    assert text.new_ids == letters("abc")
    assert text.finish_reason is None and list(text) == []  # no more comes of it
    assert text.decode_tokens_per_second >= 0


def test_an_interrupted_text_may_be_continued_from_its_ids(model: Model):
    whole = _ids(generate(model, PROMPT, max_tokens=9))
    if len(whole) < 9:
        pytest.skip("this model ends its text by itself")
    cache = new_cache(model)
    first = generate(model, PROMPT, max_tokens=9, cache=cache)
    list(islice(first, 2))
    # The newest id has been chosen but not run: it is what the cache has not seen.
    rest = generate(model, first.new_ids[-1:], max_tokens=9 - len(first.new_ids), cache=cache)
    assert first.new_ids + _ids(rest) == whole


# Speed, by a clock that is a parameter


class Clock:
    """Tells the given times, in seconds, one after the other."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = iter(seconds)

    def __call__(self) -> float:
        return next(self.seconds)


def test_speeds_are_tokens_over_the_time_spent_in_the_model():
    """Prefill from 10 to 12, then two steps of 0.25 s; what lies between is the caller's time."""
    clock = Clock(10.0, 12.0, 50.0, 50.25, 90.0, 90.25)
    text = generation(scripted("abc"), "12345678", max_tokens=3, clock=clock)
    list(text)
    assert (text.prefill_seconds, text.decode_seconds) == (2.0, 0.5)
    assert text.prefill_tokens_per_second == 8 / 2.0
    assert text.decode_tokens_per_second == 2 / 0.5


def test_the_step_that_gives_an_end_id_counts_as_a_step():
    clock = Clock(0.0, 2.0, 2.0, 2.5, 2.5, 3.0)
    text = generation(scripted("abd", end_ids=letters("d")), "1234", clock=clock)
    list(text)
    assert text.new_ids == letters("ab")
    assert text.decode_seconds == 1.0
    assert text.decode_tokens_per_second == 2 / 1.0


def test_one_new_token_has_no_decode_speed():
    text = generation(scripted("a"), "1234", max_tokens=1, clock=Clock(0.0, 0.5))
    list(text)
    assert (text.prefill_tokens_per_second, text.decode_tokens_per_second) == (8.0, 0.0)


def test_a_clock_that_stands_still_gives_no_speed_rather_than_an_error():
    text = generation(scripted("abc"), max_tokens=3, clock=lambda: 1.0)
    list(text)
    assert not math.isinf(text.prefill_tokens_per_second)
    assert (text.prefill_tokens_per_second, text.decode_tokens_per_second) == (0.0, 0.0)


# A real model


@pytest.fixture(scope="module")
def stories(stories260k: Path) -> Model:
    return load(stories260k)


@pytest.fixture(scope="module")
def golden(stories260k: Path) -> str:
    """The text of 200 greedy tokens behind the token that begins a text, and a newline."""
    return (stories260k / "golden_greedy_200.txt").read_text(encoding="utf-8").removesuffix("\n")


def test_a_real_model_tells_the_story_it_is_known_to_tell(stories: Model, golden: str):
    text = generate(stories, "", max_tokens=200)
    assert text.prompt_ids == [1]
    assert outcome(text) == (golden, 200, "length")


@pytest.mark.parametrize(("cached", "num_tokens"), [(True, 199), (False, 70)])
def test_fewer_tokens_tell_the_beginning_of_the_same_story(
    stories: Model, golden: str, cached: bool, num_tokens: int
):
    cache = new_cache(stories) if cached else None
    story, count, reason = outcome(Generation(stories, "", GREEDY, max_tokens=num_tokens, cache=cache))
    assert golden.startswith(story)
    assert len(golden) > len(story) > 2 * num_tokens
    assert (count, reason) == (num_tokens, "length")


@pytest.mark.parametrize(("cached", "num_tokens"), [(True, 196), (False, 40)])
def test_a_prompt_from_the_story_is_continued_as_the_story_goes(
    stories: Model, golden: str, cached: bool, num_tokens: int
):
    prompt = "Once upon a time"
    cache = new_cache(stories) if cached else None
    story = "".join(Generation(stories, prompt, GREEDY, max_tokens=num_tokens, cache=cache))
    assert story.startswith(", there was a little girl")
    whole = prompt + story
    assert len(whole) > 2 * num_tokens
    assert golden.startswith(whole) or whole.startswith(golden)


def test_a_stop_string_ends_the_real_story(stories: Model):
    text = generate(stories, "", max_tokens=200, stop=["ball.", "One day,"])
    story = "".join(text)
    assert story.endswith("outside in the park. ")
    assert text.finish_reason == "stop"


def test_a_continued_cache_gets_no_second_beginning(tmp_path):
    folder = write_tokenizer(write_model(tmp_path, "llama", vocab_size=VOCAB_SIZE_WITH_TOKENIZER))
    model = load(folder)
    assert model.tokenizer is not None
    whole = generate(model, "abcd", max_tokens=5)
    assert "".join(whole)
    cache = new_cache(model)
    model.logits(model.tokenizer.encode("ab"), cache)
    continued = generate(model, "cd", cache=cache, max_tokens=5)
    assert "".join(continued)
    assert continued.new_ids == whole.new_ids
