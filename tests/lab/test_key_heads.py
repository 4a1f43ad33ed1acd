"""(i) with siblings of a few steps, bytes counted by hand, and a clock that counts key heads."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocks import Clock
from lab_results import as_result
from qkv.errors import NumericError
from qkv.lab import Instruments, NotTestable, Number, Verdict
from qkv.lab.board import Row
from qkv.lab.key_heads import (
    KEY_HEADS_SHARED,
    KeyHeads,
    Siblings,
    bits_per_character,
    measure,
    recorded_numbers,
    shipped_siblings,
)
from qkv.lab.own_texts import Reading, read
from qkv.lab.repeated_heads import next_token
from qkv.models import load, shipped
from qkv.training.siblings import (
    KEY_HEADS,
    SETTINGS,
    HeldOut,
    export_sibling,
    held_out_of,
    train_sibling,
)
from qkv.training.text import Document, Split
from qkv.training.text_model import TextModel

H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
SAVES_GQA, SAVES_MQA, PLANNED, COSTS_GQA, COSTS_HERE, COSTS_MQA, FASTER = range(7)
TINY = KeyHeads(texts=3, T=11, context=23, new_tokens=3, E=16, pairs=2)
TRAINED = replace(SETTINGS, V=271, E=16, F=22, L=1, D=2, T=19, B=5, steps=60, learning_rate=0.02)
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "she", "had", "her", "hat")


def lines(count: int, seed: int) -> str:
    generator = np.random.default_rng(seed)
    return "".join(" ".join(generator.choice(WORDS, 5)) + "\n" for _ in range(count))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three siblings, each from two seeds."""
    split = Split((Document("a.txt", lines(200, 1)),), (Document("b.txt", lines(20, 2)),))
    folder = tmp_path_factory.mktemp("siblings")
    begun = TextModel.begin(split, TRAINED, folder)
    trained = {
        name: [train_sibling(begun, name, seed, folder / f"{name}-{seed}") for seed in (0, 1)]
        for name in KEY_HEADS
    }
    record = held_out_of(trained)
    for name, (first, _) in trained.items():
        export_sibling(first, name, record, folder / name, "command", [])
    record.write(folder)
    return folder


def tried(folder: Path, seconds_a_head=1.0, record: HeldOut | None = None, seed=0, **broken):
    """Try the claim where a step takes a second, and more for each key head."""
    clock = Clock()

    def step(model, cache):
        clock.now += 1 + seconds_a_head * model.config.G
        return next_token(model, cache)

    def siblings():
        found = Siblings.load(folder)
        return found if record is None else replace(found, held_out=record)

    instruments = Instruments(
        seed, text_model=lambda: load(folder / "mha"), stopwatch=clock.stopwatch(pairs=2)
    )
    measured = measure(TINY, instruments, siblings=siblings, **{"step": step, **broken})
    return measured, Row.of(KEY_HEADS_SHARED, as_result(KEY_HEADS_SHARED, TINY, measured)).ruling


@pytest.fixture(scope="module")
def found(folder: Path):
    return tried(folder)


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def record_of(**bits: list[float]) -> HeldOut:
    return HeldOut(["tempest"], 7, list(range(len(bits["mha"]))), bits)


def test_bytes_are_those_of_pages_of_keys_and_values(found):
    """Of one layer, 2 numbers of 4 bytes each; the text ends within the second page of 16 or before."""
    measured, ruling = found
    pages = measured.value("mqa_bytes") / (2 * 2 * 4 * 16)
    assert pages in (1, 2)
    assert measured.value("gqa_bytes") == 2 * measured.value("mqa_bytes")
    assert measured.value("mha_bytes") == 8 * measured.value("mqa_bytes")
    assert (measured.value("gqa_saving"), measured.value("mqa_saving")) == (4, 8)
    assert measured.value("planned_off") == 0
    assert verdicts(ruling)[: PLANNED + 1] == [H, H, H]


def test_fewer_key_heads_that_are_only_pretended_save_nothing(folder: Path):
    def pretended(model, text):
        reading = read(model, text)
        return replace(reading, nbytes=reading.nbytes * 8 // model.cache_shape.num_kv_heads)

    assert verdicts(tried(folder, read=pretended)[1])[: PLANNED + 1] == [F, F, F]


def test_costs_are_taken_seed_by_seed():
    numbers = recorded_numbers(record_of(mha=[2.0, 2.5, 4.0], gqa=[2.5, 2.5, 4.0], mqa=[3.0, 5.0, 5.0]))
    assert numbers["gqa_cost"] == Number(0.0, 0.0, 0.125)
    assert numbers["mqa_cost"] == Number(0.5, 0.375, 0.75)
    assert (numbers["gqa_least_cost"], numbers["mqa_least_cost"]) == (0.0, 0.25)
    assert numbers["seed_spread"] == 1.0 and numbers["num_seeds"] == 3


@pytest.mark.parametrize(
    ("gqa", "mqa", "expected"),
    [(2.0, 2.5, [H, H]), (2.5, 2.5, [F, H]), (2.0, 2.0, [H, F]), (1.5, 1.5, [H, F])],
)
def test_the_record_decides_what_is_lost(folder: Path, gqa: float, mqa: float, expected: list[Verdict]):
    """The last seed alone makes the difference for MQA, the median for GQA."""
    record = record_of(mha=[2.0, 2.0, 2.0], gqa=[gqa, gqa, 9.0], mqa=[9.0, 9.0, mqa])
    _, ruling = tried(folder, record=record)
    assert [verdicts(ruling)[one] for one in (COSTS_GQA, COSTS_MQA)] == expected


def test_the_record_shown_is_the_one_written_at_training(found, folder: Path):
    bits = json.loads((folder / "held_out.json").read_text())["bits_per_byte"]
    assert found[0].series["recorded"] == [bits["mha"], bits["gqa"], bits["mqa"]]
    assert found[0].value("mqa_bits") == pytest.approx(np.mean(bits["mqa"]))


def test_bits_of_a_character_by_hand(folder: Path):
    """A model that finds the next token certain by 1/4 pays 2 bits for each."""
    model = load(folder / "gqa")

    def quarter(model, ids):
        log_probs = np.full((len(ids), model.vocab_size), -50.0)
        log_probs[np.arange(len(ids) - 1), ids[1:]] = np.log(0.25)
        return Reading(log_probs, 0)

    text = "the cat"
    assert model.tokenizer is not None
    count = len(model.tokenizer.encode(text)) - 1
    assert bits_per_character(model, text, quarter) == pytest.approx(2 * count / len(text))


def test_a_text_is_read_up_to_the_models_context(folder: Path):
    model = load(folder / "gqa")
    seen = []

    def watched(model, ids):
        seen.append(len(ids))
        return read(model, ids)

    long = lines(9, 4)
    bits = bits_per_character(model, long, watched)
    assert model.tokenizer is not None
    ids = np.array(model.tokenizer.encode(long)[: TRAINED.T])
    logits = model.logits(ids).astype(np.float64)
    nats = sum(np.log(np.exp(logits[t]).sum()) - logits[t, ids[t + 1]] for t in range(TRAINED.T - 1))
    assert seen == [TRAINED.T]
    assert bits == pytest.approx(nats / np.log(2) / len(model.tokenizer.decode(ids[1:].tolist())), rel=1e-5)


def test_a_sibling_that_says_something_else_costs_more(folder: Path):
    def mixed_up(model, text):
        reading = read(model, text)
        few = model.cache_shape.num_kv_heads == 2
        return replace(reading, log_probs=np.roll(reading.log_probs, 1, axis=-1)) if few else reading

    measured, ruling = tried(folder, read=mixed_up)
    assert verdicts(ruling)[COSTS_HERE] is F
    assert measured.value("gqa_here_cost") > 0.05


def test_a_sibling_has_learned_far_more_than_one_that_was_never_trained(found, folder: Path):
    assert found[0].value("untrained_cost") > 0.25
    uniform = tried(
        folder, read=lambda model, text: Reading(np.full((len(text), 271), -5.6), read(model, text).nbytes)
    )
    assert uniform[1].verdict is OPEN and uniform[0].value("untrained_cost") == pytest.approx(0)


def test_speed_is_worked_out_round_by_round(found):
    """A step takes 1 second and one for each key head: 9, 3 and 2 seconds."""
    measured, ruling = found
    assert measured.value("gqa_speedup") == pytest.approx(9 / 3)
    assert measured.value("mqa_speedup") == pytest.approx(9 / 2)
    assert measured.series["milliseconds"] == pytest.approx([9000, 3000, 2000])
    assert verdicts(ruling)[FASTER] is H


def test_where_key_heads_take_no_time_fewer_are_not_faster(folder: Path):
    assert verdicts(tried(folder, seconds_a_head=0.0)[1])[FASTER] is F


def test_models_that_are_not_the_same_function_are_not_timed(folder: Path):
    def another(model, cache):
        return next_token(model, cache) + model.config.G

    with pytest.raises(NumericError, match="lie 7 apart"):
        tried(folder, step=another)


def test_the_siblings_that_come_with_qkv_are_those_of_their_record():
    found = shipped_siblings()
    assert found.held_out.texts == ["tempest", "twelfth_night"]
    for name, bits in found.held_out.bits_per_byte.items():
        card = (found.folder / name / "README.md").read_text()
        assert len(bits) == len(found.held_out.seeds) >= 3
        assert all(f"{one:.4f}" in card for one in bits)
        assert f"{found.held_out.steps:,} steps" in card
        assert found.models[name].cache_shape.num_kv_heads == KEY_HEADS[name]


def test_the_models_that_come_with_qkv_are_small():
    trained = Path(shipped.__file__).parent / "trained"
    sizes = {one: one.stat().st_size for one in trained.rglob("*") if one.is_file()}
    assert sum(sizes.values()) < 12e6
    assert sum(size for one, size in sizes.items() if "siblings" in one.parts) < 4.2e6


def test_without_siblings_nothing_can_be_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "shipped.py"))
    with pytest.raises(NotTestable):
        shipped_siblings()


def test_every_text_names_numbers_that_are_measured(found):
    texts = [KEY_HEADS_SHARED.shows, *(part.shows for part in KEY_HEADS_SHARED.parts)]
    for language in ("en", "zh"):
        named = {name for text in texts for name in re.findall(r"{(\w+)", getattr(text, language))}
        assert named <= found[0].numbers.keys()


def test_the_same_seed_gives_the_same_numbers(found, folder: Path):
    assert tried(folder)[0].numbers == found[0].numbers
    assert tried(folder, seed=1)[0].value("mha_here_bits") != found[0].value("mha_here_bits")
