"""(o) with a clock that moves as told, bytes counted by hand, formulas in loops, and variants that cheat."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import reference
from clocks import Clock
from lab_results import as_result
from qkv.lab import Instruments, NotTestable, Verdict, Words
from qkv.lab.attention_variants import (
    GQA,
    LINEAR,
    MHA,
    MLA,
    MQA,
    TEXTBOOK,
    WINDOW,
    Grouped,
    Linear,
    Sizes,
    Text,
    Textbook,
    apart,
    by_formula,
    by_heads,
    by_pairs,
    own_variants,
    planned_state,
)
from qkv.lab.board import Row
from qkv.lab.random_models import random_llama
from qkv.lab.variants import VARIANTS, SideBySide, measure
from qkv.ops.backend import is_compiled

SETTINGS = SideBySide(
    H=16, D=6, W=16, short=32, S=128, T=53, pairs=3, texts=2, text_length=29, text_window=11
)
SIZES = Sizes(SETTINGS.H, SETTINGS.D, SETTINGS.W)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
IN_TILES = H if is_compiled() else F  # NumPy works a text as short as these through whole
GROUPS, FAST, FLAT, LATENT, FAST_LATENT, TILED, STATE = range(7)


def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=64)


def missing():
    raise NotTestable(Words("missing", "缺"))


class Timed:
    """A layer that moves a clock when it reads: by so much, and so much for each token it looks back on."""

    def __init__(self, start, seconds, clock):
        self.layer, self.seconds, self.clock, self.length = start(), seconds, clock, 0

    @property
    def nbytes(self):
        return self.layer.nbytes

    def remember(self, text):
        self.length += text.length
        self.layer.remember(text)

    def read(self, text):
        fixed, each = self.seconds
        self.clock.now += fixed + each * (self.length + text.length - 1)
        return self.layer.read(text)  # it is not counted as held: so every round is alike


SECONDS = dict.fromkeys(own_variants(SIZES, np.random.default_rng(0)), (0.0, 1.0)) | {
    MQA: (0.0, 0.25),
    WINDOW: (2.0, 0.0),
    LINEAR: (0.5, 0.0),
}
"""Multi-head attention takes a second for each token it looks back on."""


def tried(seconds=None, changed=None, text_model: Any = small, seed=0):
    clock = Clock()
    told = SECONDS | (seconds or {})

    def make_variants(sizes, random):
        variants = own_variants(sizes, random)
        for name, change in (changed or {}).items():
            variants[name] = replace(variants[name], **change)
        return {
            name: replace(one, start=partial(Timed, one.start, told[name], clock))
            for name, one in variants.items()
        }

    instruments = Instruments(seed, stopwatch=clock.stopwatch(pairs=3), text_model=text_model)
    measured = measure(SETTINGS, instruments, make_variants=make_variants)
    return measured, Row.of(VARIANTS, as_result(VARIANTS, SETTINGS, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def test_every_claim_holds_but_those_of_latents(found):
    assert verdicts(found[1]) == [H, H, H, F, F, IN_TILES, H]
    assert found[1].verdict is Verdict.HOLDS_ONLY_IF
    assert found[1].conditions[0].en.startswith("MLA is held against GQA of 3 key heads or more")


def test_bytes_by_hand(found):
    """Keys and values of 6 numbers of 4 bytes; a latent of 24 numbers, and 3 that are rotated."""
    per_token = {"mha": 16 * 48, "textbook": 16 * 48, "gqa": 4 * 48, "gqa8": 2 * 48, "mqa": 48, "mla": 27 * 4}
    for name, nbytes in per_token.items():
        assert found[0].value(f"{name}_bytes") == nbytes, name
    # Of 128 tokens the last 16 are in the window: one page. The state: 6 x 6 and 6 numbers a head.
    assert found[0].value("window_bytes") * 128 == 16 * 16 * 48
    assert found[0].value("linear_state") == 16 * (36 + 6) * 4 == planned_state(16, 6, 128)
    assert found[0].value("planned_off") == 0
    assert found[0].value("mla_of_gqa") == 27 * 4 / (2 * 48) == 1.125
    assert (found[0].value("mha_growth"), found[0].value("linear_growth")) == (4.0, 1.0)


def test_times_are_those_of_the_clock(found):
    assert found[0].value("mqa_decode") == 4.0
    assert found[0].value("mha_decode_growth") == 4.0 and found[0].value("window_decode_growth") == 1.0
    columns = found[0].series
    decode = dict(zip(columns["variant"], columns["decode"], strict=True))
    assert decode == SECONDS | dict.fromkeys(SECONDS, 1.0) | {
        MQA: 0.25,
        WINDOW: 2 / 128,
        LINEAR: 0.5 / 128,
    }


def test_the_table_has_every_variant_and_every_measure(found):
    columns = found[0].series
    assert columns["variant"] == [TEXTBOOK, MHA, GQA, "gqa8", MQA, MLA, WINDOW, LINEAR]
    assert {len(column) for column in columns.values()} == {8}
    known = [name for name, one in zip(columns["variant"], columns["kl"], strict=True) if one is not None]
    assert known == [WINDOW] and found[0].value("window_kl") > 0


def test_the_textbooks_workspace_is_its_scores(found):
    spaces = dict(zip(found[0].series["variant"], found[0].series["workspace"], strict=True))
    scores = 16 * 53 * 53 * 4
    assert 2 * scores <= spaces[TEXTBOOK] <= 5 * scores
    assert found[0].value("tiled_workspace_saved") == spaces[TEXTBOOK] / spaces[MHA]


def test_groups_that_keep_every_head_are_found_out():
    every_head = own_variants(SIZES, np.random.default_rng(0))[MHA].start
    measured, ruling = tried(changed={GQA: {"start": every_head}})
    assert verdicts(ruling)[GROUPS] is F and measured.value("gqa_saving") == 1.0
    assert ruling.verdict is OPEN  # it is neither its formula nor its plan


def test_one_key_head_that_is_no_faster_is_found_out():
    assert verdicts(tried({MQA: (0.0, 0.81)})[1])[FAST] is F
    assert verdicts(tried({MQA: (0.0, 0.79)})[1])[FAST] is H


def test_latents_that_are_worked_through_faster_are_seen():
    assert verdicts(tried({MLA: (0.0, 0.79)})[1])[FAST_LATENT] is H


def test_a_window_that_slows_down_is_found_out():
    # 32 tokens take 1 + 0.32 seconds, 128 take 1 + 1.28: 1.73 times as long.
    assert verdicts(tried({WINDOW: (1.0, 0.01)})[1])[FLAT] is F
    assert verdicts(tried({WINDOW: (1.0, 0.005)})[1])[FLAT] is H


def test_tiles_that_write_every_score_down_save_nothing():
    assert verdicts(tried(changed={MHA: {"start": partial(Textbook, SIZES)}})[1])[TILED] is F


class Hoarding(Linear):
    """Keeps what it reads."""

    def __init__(self):
        super().__init__()
        self.kept = 0

    @property
    def nbytes(self):
        return super().nbytes + self.kept

    def read(self, text):
        self.kept += text.k.nbytes
        return super().read(text)


def test_a_state_that_grows_is_found_out():
    assert verdicts(tried(changed={LINEAR: {"start": Hoarding}})[1])[STATE] is F


def test_where_context_costs_nothing_no_variant_can_help():
    ruling = tried({MHA: (1.0, 0.0)})[1]
    assert ruling.verdict is OPEN
    assert ruling.conditions[0].en == "multi-head attention does not slow down with its context here"


def test_without_a_trained_model_no_loss_is_shown_and_the_rest_is_decided():
    measured, ruling = tried(text_model=missing)
    assert verdicts(ruling) == [H, H, H, F, F, IN_TILES, H]
    assert measured.series["kl"] == [None] * 8 and "window_kl" not in measured.numbers


class Forgetful(Grouped):
    """Remembers the last token alone."""

    def remember(self, text):
        super().remember(text.part(text.length - 1, text.length))


@pytest.mark.parametrize("name", SECONDS)
def test_every_layer_is_its_formula_whole_and_step_by_step(name):
    random = np.random.default_rng(3)
    variant, text = own_variants(SIZES, random)[name], Text.draw(SIZES, 53, random)
    assert apart(variant, text) < 1e-5
    if name == MHA:
        shape = variant.start().cache.shape  # type: ignore[attr-defined]
        assert apart(replace(variant, start=partial(Forgetful, shape)), text) > 0.1


@pytest.mark.parametrize(("G", "W"), [(4, None), (1, None), (2, 5)])
def test_formulas_of_softmax_in_loops(G, W):
    text = Text.draw(Sizes(4, 6, 5), 13, np.random.default_rng(1))
    expected = reference.attend(text.q, text.k[:, :G], text.v[:, :G], causal=True, window=W)[0]
    np.testing.assert_allclose(by_formula(text, G=G, W=W), expected, atol=1e-6)


def test_the_formula_of_latents_in_loops():
    sizes, random = Sizes(3, 6, 5), np.random.default_rng(1)
    text, w_kv = Text.draw(sizes, 11, random), random.standard_normal((3 * 12, 24), np.float32)
    k, v = np.zeros((1, 3, 11, 6 + 3)), np.zeros((1, 3, 11, 6))
    for h, s in np.ndindex(3, 11):
        latent, rotated = text.latents[0, 0, s, :24], text.latents[0, 0, s, 24:]
        k[0, h, s] = [*(w_kv[12 * h : 12 * h + 6] @ latent), *rotated]
        v[0, h, s] = w_kv[12 * h + 6 : 12 * h + 12] @ latent
    q = np.concatenate([text.q, text.q_rope], axis=-1)
    np.testing.assert_allclose(by_heads(w_kv, text), reference.attend(q, k, v, causal=True)[0], atol=1e-5)


def test_the_formula_of_pairs_by_hand():
    # Queries of 0 are mapped to 1, keys of 0 and 1 to 1 and 2: weights 1 and 2, of values 3 and 9.
    zeros, k, v = (np.array(one, np.float32)[None, None] for one in ([[0], [0]], [[0], [1]], [[3], [9]]))
    text = Text(zeros, k, v, zeros, zeros)
    assert by_pairs(text).ravel().tolist() == [3.0, 7.0]


def test_the_same_seed_gives_the_same_bytes_and_losses(found):
    again, other = tried()[0], tried(seed=1)[0]
    for name in ("farthest", "window_kl", "mqa_bytes", "mqa_decode"):
        assert again.value(name) == found[0].value(name)
    assert other.value("window_kl") != found[0].value("window_kl")
