"""Comparing caches: the figures are those of the definitions, and all policies read the same text."""

import math
import tracemalloc
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

import tiny_deepseek
from qkv.cache import Cache, CacheShape, PagedCache, Policy, StepCache
from qkv.engine import Generation, comparison
from qkv.engine.compared import Compared, Comparison, Divergence, NotCompared
from qkv.engine.comparison import compare, default_policies, kl_divergence, log_probabilities
from qkv.errors import NumericError, OptionError, PromptError
from qkv.models import Model, load, new_cache
from qkv.ops.backend import is_compiled
from qkv.ops.sampling import Sampling
from tiny_models import FAMILIES, VOCAB_SIZE_WITH_TOKENIZER, write_model, write_tokenizer

PROMPT = [3, 17, 5, 59, 11, 2, 31]


class ScriptedModel:
    """A model whose logits are written down: a list of rows for each policy, whatever it reads."""

    def __init__(self, script: Mapping[str, Sequence[Sequence[float]]], **options: Any) -> None:
        self.script = script
        self.tokenizer = None
        self.end_ids = frozenset(options.get("end_ids", ()))
        self.context_length = options.get("context_length", 1000)
        self.cache_shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=1)
        self.rotation, self.fingerprint = None, ""
        self.vocab_size = options.get("vocab_size", 1000)
        self.given: dict[str, list[list[int]]] = {name: [] for name in script}

    def next_logits(self, ids: Any, cache: Cache | None = None, mask: Any = None) -> np.ndarray:
        assert isinstance(cache, PagedCache)
        given = self.given[str(cache.policy)]
        given.append([int(token_id) for token_id in ids])
        k = v = np.zeros((1, 1, len(ids), 1), np.float32)
        cache.append(0, k, v)
        cache.attend(0, k)
        return np.asarray(self.script[str(cache.policy)][len(given) - 1], np.float32)

    def logits(self, ids: Any, cache: StepCache | None = None, mask: Any = None) -> np.ndarray:
        raise AssertionError("comparing needs the last logits only")

    def hidden(self, ids: Any, cache: StepCache | None = None) -> np.ndarray:
        raise AssertionError("comparing needs the last logits only")

    def unembed(self, x: Any) -> np.ndarray:
        raise AssertionError("comparing needs the last logits only")


SAME = 1e-9 if is_compiled() else 1e-5
"""Whole texts and single steps have the same bits with the kernels only."""


def odds(*shares: float) -> list[float]:
    """Logits of tokens that are as likely as given, together 1, moved by a number that changes nothing."""
    assert sum(shares) == 1
    return [math.log(share) + 7 for share in shares]


def alike(names: Sequence[str], value: Any) -> dict[str, Any]:
    return dict.fromkeys(names, value)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(write_model(tmp_path_factory.mktemp("llama"), "llama"))


def only(found: Comparison) -> Compared:
    (row,) = found.compared
    return row


# Other weights


def test_another_model_is_measured_by_the_same_definitions():
    """Half of ``p`` is where ``q`` has a quarter: 1/2 log 2 - 1/4 log 2, and then they agree."""
    p, q = odds(0.5, 0.25, 0.25), odds(0.25, 0.5, 0.25)
    model, other = ScriptedModel({"": [p, p]}), ScriptedModel({"": [q, p]})
    found = compare(model, PROMPT, [], max_tokens=2, others={"small": other})
    row = only(found)
    assert (row.weights, row.policy, found.full.weights) == ("small", Policy(), "")
    assert row.kl == (pytest.approx(0.25 * math.log(2)), pytest.approx(0))
    assert row.agrees == (False, True)
    assert row.perplexity == pytest.approx(8**0.5) and found.full.perplexity == pytest.approx(2)
    assert row.divergence == Divergence(0, 0, 1)
    assert other.given[""] == model.given[""] == [PROMPT, [0]]


def test_weights_of_the_same_values_cost_nothing(tmp_path):
    folder = write_model(tmp_path, "llama")
    row = only(compare(load(folder), PROMPT, [], max_tokens=7, others={"float32": load(folder, "float32")}))
    assert row.mean_kl == 0 and row.agreement == 1


def test_a_model_that_fails_is_out_and_the_others_go_on(llama):
    spoilt = ScriptedModel({"": [[math.nan] * 61]}, vocab_size=llama.vocab_size)
    found = compare(llama, PROMPT, ["int8"], max_tokens=3, others={"spoilt": spoilt})
    (lost,) = found.not_compared
    assert lost.weights == "spoilt" and "behind 0 tokens" in lost.reason
    assert [row.policy for row in found.compared] == [Policy("int8")]


@pytest.mark.parametrize("options", [{"vocab_size": 7}, {"context_length": 5}], ids=str)
def test_another_model_must_be_of_the_same_vocabulary_and_context(options):
    model, other = ScriptedModel({"": [[0.0]]}), ScriptedModel({"": [[0.0]]}, **options)
    with pytest.raises(OptionError, match="'small' must be the same model"):
        compare(model, PROMPT, [], others={"small": other})


# The figures


def test_the_figures_are_those_worked_out_by_hand():
    """Two tokens: at the first, half of ``p`` is where ``q`` has a quarter and the other way round."""
    model = ScriptedModel(
        {
            "": [odds(0.5, 0.25, 0.25), odds(0.25, 0.25, 0.5)],
            "int8": [odds(0.25, 0.5, 0.25), odds(0.25, 0.25, 0.5)],
        }
    )
    found = compare(model, PROMPT, ["int8"], max_tokens=2)
    row = only(found)
    assert found.text_ids == (0, 2)
    assert row.kl == pytest.approx((0.25 * math.log(2), 0), abs=1e-6)
    assert row.agrees == (False, True)
    assert row.mean_kl == pytest.approx(0.125 * math.log(2), abs=1e-6)
    assert row.max_kl == row.kl[0]
    assert row.agreement == 0.5
    assert row.divergence == Divergence(position=0, expected_id=0, chosen_id=1)
    assert np.exp(row.log_probs) == pytest.approx((0.25, 0.5), abs=1e-6)
    # exp of the mean of log 4 and log 2, and of log 2 twice
    assert row.perplexity == pytest.approx(math.sqrt(8), abs=1e-5)
    assert found.full.perplexity == pytest.approx(2, abs=1e-5)


def test_a_divergence_is_from_the_full_cache_and_not_towards_it():
    """``KL(p || q)`` and ``KL(q || p)`` of (3/4, 1/4) and (1/4, 3/4) are alike; of these they are not."""
    p, q = np.log([0.75, 0.25]), np.log([0.5, 0.5])
    assert kl_divergence(p, q) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert kl_divergence(q, p) == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2))


def test_a_token_that_is_never_chosen_adds_nothing():
    p, q = log_probabilities(np.array([0.0, -1e4, 1.0])), log_probabilities(np.array([0.0, -2e4, 1.0]))
    assert kl_divergence(p, q) == 0


def test_probabilities_of_any_logits_sum_to_one():
    for row in ([1e38, -1e38], [88.0, 89.0, 90.0], [-5000.0, -5001.0]):
        assert np.exp(log_probabilities(np.array(row, np.float32))).sum() == pytest.approx(1)


@pytest.mark.parametrize("policy", ["int8,window=7", "int4,page=5", "h2o=7,page=3", "fp8-e5m2"])
def test_the_figures_are_those_of_plain_loops_over_the_logits(llama: Model, policy: str):
    found = compare(llama, PROMPT, [policy], max_tokens=23)
    row = only(found)
    whole = PROMPT + list(found.text_ids)
    full = llama.logits(np.array(whole))[len(PROMPT) - 1 : -1]  # without any cache
    cache = new_cache(llama, policy)
    steps = [PROMPT, *([token_id] for token_id in found.text_ids[:-1])]
    other = [llama.next_logits(np.array(ids), cache) for ids in steps]
    assert len(row.kl) == 23
    assert [int(expected.argmax()) for expected in full] == list(found.text_ids)
    for position, (expected, given) in enumerate(zip(full, other, strict=True)):
        p, q = plain_softmax(expected), plain_softmax(given)
        kl = sum(one * math.log(one / another) for one, another in zip(p, q, strict=True))
        assert row.kl[position] == pytest.approx(kl, rel=SAME, abs=SAME)
        assert row.agrees[position] == (expected.argmax() == given.argmax())
        assert row.log_probs[position] == pytest.approx(math.log(q[found.text_ids[position]]))
    assert row.max_kl > 1e-6
    assert (row.nbytes, row.peak_nbytes) == (cache.nbytes, cache.pool.peak_nbytes)
    assert row.nbytes == cache.predict_nbytes(len(whole) - 1, len(PROMPT))


def plain_softmax(logits: np.ndarray) -> list[float]:
    exponentials = [math.exp(float(logit)) for logit in logits]
    return [one / sum(exponentials) for one in exponentials]


@pytest.mark.parametrize("kind", [*FAMILIES, "deepseek_v3"])
def test_the_full_cache_against_itself_is_exactly_nothing(tmp_path, kind: str):
    write = tiny_deepseek.write_model if kind.startswith("deepseek") else write_model
    found = compare(load(write(tmp_path, kind)), PROMPT, ["", "page=3"], max_tokens=19)
    for row in found.compared:
        assert row.kl == (0.0,) * len(found.text_ids)
        assert (row.agreement, row.divergence) == (1.0, None)
        assert row.log_probs == found.full.log_probs
    assert found.compared[0].nbytes == found.full.nbytes > 0


def test_a_first_other_choice_is_where_a_text_of_its_own_parts(tmp_path):
    folder = write_tokenizer(write_model(tmp_path, "llama", vocab_size=VOCAB_SIZE_WITH_TOKENIZER))
    model = load(folder)
    for policy in ("window=5", "streaming=7,page=3", "fp8-e5m2"):
        row = only(compare(model, PROMPT, [policy], max_tokens=41))
        expected, own = greedy_ids(model, ""), greedy_ids(model, policy)
        assert row.divergence is not None, policy
        at = row.divergence.position
        assert own[:at] == expected[:at]
        assert (expected[at], own[at]) == (row.divergence.expected_id, row.divergence.chosen_id)


def greedy_ids(model: Model, policy: str) -> list[int]:
    text = Generation(model, PROMPT, Sampling(), max_tokens=41, cache=new_cache(model, policy))
    list(text)
    return text.new_ids


def test_the_first_of_several_other_choices_is_named():
    sure, other = odds(0.75, 0.125, 0.125), odds(0.125, 0.125, 0.75)
    model = ScriptedModel({"": [sure] * 5, "int8": [sure, sure, other, odds(0.125, 0.75, 0.125), sure]})
    row = only(compare(model, PROMPT, ["int8"], max_tokens=5))
    assert row.agrees == (True, True, False, False, True)
    assert row.divergence == Divergence(position=2, expected_id=0, chosen_id=2)


class Forgetful(PagedCache):
    """A broken cache: from its 13th token on, all that layer 1 remembers is gone."""

    def attend(self, layer: int, q: Any, lengths: Any = None, **rules: Any) -> Any:
        output = super().attend(layer, q, lengths, **rules)
        return output * (layer != 1 or self.length < 12)

    def at_once(self, num_tokens: int, windows: Any) -> None:
        """Say that each layer has to ask `attend`, as what is broken here is that."""


def test_a_broken_cache_differs_from_where_it_breaks_and_not_before(llama: Model, monkeypatch):
    def new_broken_cache(model: Model, policy: Policy) -> PagedCache:
        kind = Forgetful if policy == Policy(page=5) else PagedCache
        return kind(model.cache_shape, policy)

    monkeypatch.setattr(comparison, "new_cache", new_broken_cache)
    found = compare(llama, PROMPT, ["page=5", "page=3"], max_tokens=29)
    broken, whole = found.compared
    # The prompt has 7 tokens: the 13th read is the text's 6th, behind which its 7th is chosen.
    assert broken.kl[:6] == (0.0,) * 6
    assert min(broken.kl[6:]) > 1e-4
    assert broken.divergence is not None and broken.divergence.position >= 6
    assert all(broken.agrees[: broken.divergence.position])
    assert broken.perplexity > found.full.perplexity
    assert whole.kl == (0.0,) * 29 and whole.divergence is None


# What is fed, and until when


def test_every_policy_is_fed_the_full_caches_tokens_whatever_it_would_choose():
    full, other = [odds(0.25, 0.75), odds(0.75, 0.25), odds(0.25, 0.75)], [odds(0.75, 0.25)] * 3
    model = ScriptedModel({"": full, "int8": other, "fp16": other})
    assert compare(model, PROMPT, ["int8", "fp16"], max_tokens=3).text_ids == (1, 0, 1)
    assert model.given == alike(["", "int8", "fp16"], [PROMPT, [1], [0]])


def test_a_given_text_is_fed_and_scored_in_place_of_choices():
    rows = [odds(0.5, 0.25, 0.125, 0.125)] * 3
    model = ScriptedModel({"": rows, "int8": rows}, end_ids=[3])
    found = compare(model, PROMPT, ["int8"], text=[1, 3, 2])
    assert (found.prompt_ids, found.text_ids) == (tuple(PROMPT), (1, 3, 2))
    assert model.given == alike(["", "int8"], [PROMPT, [1], [3]])
    assert only(found).perplexity == pytest.approx((4 * 8 * 8) ** (1 / 3), rel=1e-5)
    assert only(found).agreement == 1


def test_a_token_that_ends_the_text_counts_and_is_not_fed():
    rows = [odds(0.75, 0.25), odds(0.25, 0.75), odds(0.75, 0.25)]
    model = ScriptedModel({"": rows, "int8": rows}, end_ids=[1])
    found = compare(model, PROMPT, ["int8"], max_tokens=3)
    assert found.text_ids == (0, 1)
    assert model.given["int8"] == [PROMPT, [0]]
    assert len(only(found).kl) == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 128),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 500}, 93),
        ({"text": [0] * 11}, 11),
        ({"text": [0] * 11, "max_tokens": 5}, 5),
        ({"text": [0] * 11, "max_tokens": 17}, 11),
        ({"text": [0] * 200}, 93),
    ],
)
def test_a_text_is_as_long_as_asked_and_as_the_context_holds(options: dict[str, Any], expected: int):
    rows = [odds(0.75, 0.25)] * 200
    context_length = 1000 if expected == 128 else 100
    model = ScriptedModel({"": rows, "int8": rows}, context_length=context_length)
    assert len(only(compare(model, PROMPT, ["int8"], **options)).kl) == expected


def test_a_prompt_and_a_text_may_be_words(tmp_path):
    folder = write_tokenizer(write_model(tmp_path, "llama", vocab_size=VOCAB_SIZE_WITH_TOKENIZER))
    model = load(folder)
    assert model.tokenizer is not None
    found = compare(model, "ab", ["int8"], text="cd")
    begin, *letters = model.tokenizer.encode("abcd")
    assert found.prompt_ids == (begin, *letters[:2])
    assert found.text_ids == tuple(letters[2:])


# Rows


def test_a_policy_that_does_not_fit_says_why_and_the_others_run():
    model = ScriptedModel(alike(["", "int8", "fp16"], [odds(0.75, 0.25)] * 3))
    found = compare(model, PROMPT, ["int8", "heads=101,window=5", "fp16"], max_tokens=3)
    kinds = [(type(row), str(row.policy)) for row in found.rows]
    assert kinds == [(Compared, "int8"), (NotCompared, "window=5,heads=101"), (Compared, "fp16")]
    assert "1 digit, one per key head" in found.not_compared[0].reason
    assert [len(row.kl) for row in found.compared] == [3, 3]


def test_a_policy_that_fails_on_the_way_says_where_and_the_others_go_on():
    good = [odds(0.75, 0.25)] * 4
    model = ScriptedModel({"": good, "int8": [*good[:2], [math.nan, 0.0]], "fp16": good})
    found = compare(model, PROMPT, ["int8", "fp16"], max_tokens=4)
    assert isinstance(found.rows[0], NotCompared)
    assert found.rows[0].reason.startswith("failed behind 2 tokens of the text: a logit is NaN")
    assert len(only(found).kl) == 4


def test_logits_of_the_full_cache_that_are_not_finite_are_refused():
    model = ScriptedModel({"": [[math.inf, 0.0]], "int8": [odds(0.75, 0.25)]})
    with pytest.raises(NumericError, match="infinite"):
        compare(model, PROMPT, ["int8"])


def test_a_policy_is_run_once_in_the_order_asked_for():
    model = ScriptedModel(alike(["", "int8,window=5", "fp16"], [odds(0.75, 0.25)] * 3))
    asked = ["window=5,int8", Policy("fp16"), "int8,window=5"]
    found = compare(model, PROMPT, asked, max_tokens=3)
    assert [str(row.policy) for row in found.rows] == ["int8,window=5", "fp16"]


def test_no_policy_at_all_means_one_of_each_kind(llama: Model):
    found = compare(llama, PROMPT, max_tokens=41)
    assert [str(row.policy) for row in found.rows] == list(default_policies(len(PROMPT), len(PROMPT) + 41))
    assert len(found.compared) == len(found.rows) >= 10


@pytest.mark.parametrize("sizes", [(1, 2), (5, 133), (400, 512), (100_000, 131_072)])
def test_the_policies_of_each_kind_never_contradict_themselves(sizes: tuple[int, int]):
    policies = [Policy.parse(text) for text in default_policies(*sizes)]
    assert len(set(policies)) == len(policies) >= 10


def test_bytes_are_those_at_the_end_and_at_most():
    """37 tokens of a prompt in pages of 4 tokens, 10 pages; then 3 pages for 9 tokens, and 2 more tokens."""
    rows = [odds(0.75, 0.25)] * 3
    model = ScriptedModel({"": rows, "snapkv=9,page=4": rows})
    row = only(compare(model, [0] * 37, ["snapkv=9,page=4"], max_tokens=3))
    page = 4 * (4 + 4 + 4 + 4)  # a key, a value, a position and a score for each token
    assert (row.peak_nbytes, row.nbytes) == (10 * page, 3 * page)
    assert row.dropped_tokens == 37 - 9


def test_what_a_policy_still_holds_is_told_of_every_token_that_was_fed():
    """7 tokens of a prompt and 2 of 3 of the text; the first stays, and of the rest the last two."""
    rows = [odds(0.75, 0.25)] * 3
    model = ScriptedModel({"": rows, "sinks=1,streaming=3,page=1": rows})
    found = compare(model, PROMPT, ["sinks=1,streaming=3,page=1"], max_tokens=3)
    assert found.full.held.tolist() == [[[True] * 9]]
    assert only(found).held.astype(int).tolist() == [[[1, 0, 0, 0, 0, 0, 0, 1, 1]]]
    with pytest.raises(ValueError, match="read-only"):
        only(found).held[0, 0, 0] = False


def test_speed_is_tokens_over_the_time_spent_in_the_model():
    """The clock strikes each time it is looked at, so every step takes a second."""
    strikes = count()
    rows = [odds(0.75, 0.25)] * 5
    model = ScriptedModel({"": rows, "int8": rows})
    found = compare(model, PROMPT, ["int8"], max_tokens=5, clock=lambda: next(strikes))
    for row in (found.full, only(found)):
        assert (row.prefill_seconds, row.decode_seconds, row.decode_tokens_per_second) == (1, 4, 1)


def test_one_token_has_no_decode_speed():
    model = ScriptedModel(alike(["", "int8"], [odds(0.75, 0.25)]))
    assert only(compare(model, PROMPT, ["int8"], max_tokens=1)).decode_tokens_per_second == 0


def test_each_token_is_told_of():
    model = ScriptedModel(alike(["", "int8"], [odds(0.75, 0.25)] * 3))
    told: list[tuple[int, int]] = []
    compare(model, PROMPT, ["int8"], max_tokens=3, on_step=lambda *step: told.append(step))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_no_more_than_a_few_rows_of_logits_are_held_at_once():
    V, T = 20_011, 31
    row = np.random.default_rng(0).normal(size=V).astype(np.float32)
    names = ["", "int8", "fp16", "bf16"]
    model = ScriptedModel({name: [row] * T for name in names})  # type: ignore[dict-item]
    tracemalloc.start()
    compare(model, PROMPT, names[1:], max_tokens=T)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 8 * V < T * 8 * V


# What is refused


def test_a_policy_that_contradicts_itself_is_refused_before_anything_runs():
    model = ScriptedModel({"": []})
    with pytest.raises(OptionError, match="did you mean 'window'"):
        compare(model, PROMPT, ["int8", "windw=5"])
    assert model.given[""] == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prompt": []}, PromptError, "no token"),
        ({"prompt": [0] * 10}, PromptError, "context is 10"),
        ({"text": []}, PromptError, "no token to score"),
        ({"max_tokens": 0}, OptionError, "at least 1"),
        ({"max_tokens": 1.5}, OptionError, "whole number, at least 1, not 1.5"),
        ({"prompt": None}, PromptError, "token ids, not None"),
        ({"prompt": b"Hi"}, PromptError, "token ids, not b'Hi'"),
        ({"policies": "int8"}, OptionError, r"policies is a list, such as \['int8'\], not 'int8'"),
        ({"policies": Policy.parse("int4")}, OptionError, r"policies is a list, such as \['int4'\]"),
        ({"policies": 5}, OptionError, r"policies is a list, such as \['int8'\], not 5"),
        ({"policies": [None]}, OptionError, "a policy is text .* not None"),
        ({"model": "verse"}, OptionError, "what qkv.load returns, not 'verse'"),
        ({"prompt": "words"}, PromptError, "tokenizer.json"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, Any], error: type[Exception], message: str):
    model = ScriptedModel({"": [], "int8": []}, context_length=10)
    with pytest.raises(error, match=message):
        compare(**{"model": model, "prompt": PROMPT, "policies": ["int8"], **options})


# A real model


def test_of_a_real_story_the_finer_form_is_the_nearer_one(stories260k):
    found = compare(load(stories260k), "Once upon a time", ["fp16", "int8", "fp8-e4m3", "fp8-e5m2"])
    assert len(found.text_ids) == 128
    losses = [row.mean_kl for row in found.compared]
    assert losses == sorted(losses)
    assert losses[0] < 1e-5 and found.compared[0].divergence is None
    assert [row.nbytes / found.full.nbytes for row in found.compared] == [1 / 2, 3 / 8, 1 / 4, 1 / 4]
