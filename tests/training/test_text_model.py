"""From a text to a model of it, in a few steps."""

from pathlib import Path

import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.models.llama import Llama
from qkv.training.card import text_card
from qkv.training.curve import Curve, Evaluation
from qkv.training.presets import Settings, preset
from qkv.training.text import Document, Split
from qkv.training.text_model import TextModel

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "she", "had", "her", "hat")


def lines(count: int, seed: int) -> str:
    generator = np.random.default_rng(seed)
    return "".join(" ".join(generator.choice(WORDS, 5)) + "\n" for _ in range(count))


SPLIT = Split(
    (Document("a.txt", lines(200, 1)), Document("b.txt", lines(61, 2))), (Document("c.txt", lines(20, 3)),)
)
SETTINGS = preset("tiny", V=271, E=16, F=22, L=1, H=2, G=1, D=8, T=19, B=5, steps=60, learning_rate=0.02)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TextModel, Curve]:
    model = TextModel.begin(SPLIT, SETTINGS, tmp_path_factory.mktemp("models") / "cat")
    return model, model.train(evaluate_every=20)


def test_it_learns(trained: tuple[TextModel, Curve]):
    _, curve = trained
    first, last = np.log(SETTINGS.V), curve.evaluations[-1].nats_per_token
    assert curve.losses[0] == pytest.approx(first, rel=0.05) and last < 0.6 * first
    assert [evaluation.step for evaluation in curve.evaluations] == [20, 40, 60]


def test_the_vocabulary_is_of_the_text_that_is_trained_on_alone(tmp_path: Path):
    odd = Split(SPLIT.train, (Document("c.txt", "zyzzyva " * 400),))
    model = TextModel.begin(odd, SETTINGS, tmp_path)
    assert len(model.tokenizer.encode("zyzzyva", add_special_tokens=False)) == 7


def test_bits_per_byte_are_of_the_bytes_of_the_held_out_text(trained: tuple[TextModel, Curve]):
    model, curve = trained
    last = curve.evaluations[-1]
    [held_out] = SPLIT.held_out
    tokens = len(model.tokenizer.encode(held_out.text, add_special_tokens=False)) + 1  # and its end
    assert last.bits_per_byte == pytest.approx(last.nats_per_token * tokens / np.log(2) / len(held_out.text))


def test_a_snapshot_is_the_model_as_it_is_now(trained: tuple[TextModel, Curve]):
    model, _ = trained
    snapshot = model.snapshot()
    assert isinstance(snapshot, Llama) and snapshot.tokenizer is not None
    rounded = model.evaluate_stored("bfloat16", 60)
    exact = model.evaluate_stored("float32", 60)
    assert exact.nats_per_token != rounded.nats_per_token == pytest.approx(exact.nats_per_token, abs=0.02)


def test_the_card_says_what_the_model_is_made_of(trained: tuple[TextModel, Curve]):
    model, curve = trained
    card = text_card(
        model,
        curve,
        Evaluation(60, 2.5, 1.8765),
        title="cat",
        stored="float16",
        command="qkv train cats",
        source=["made up"],
        sample="the cat\n",
    ).markdown()
    [held_out] = SPLIT.held_out
    for said in [
        "# cat\n",
        f"{SETTINGS.num_parameters:,} parameters, stored as float16",
        "- made up\n",
        f"trained on 2 texts of {sum(document.nbytes for document in SPLIT.train):,} bytes",
        f"1 text of {held_out.nbytes:,} bytes, {len(model.data.held_out_tokens):,} tokens (c)",
        "60 steps of 5 windows of 19 tokens: 5,700 tokens in all",
        "```\nqkv train cats\n```",
        "| held-out text, as stored in float16, bits per byte | 1.877 |",
        f"| last 60 batches of training, nats per token | {np.mean(curve.losses):.3f} |",
        "made for 19 tokens of context",
        "```\nthe cat\n```",
    ]:
        assert said in card


@pytest.mark.parametrize(
    ("settings", "text", "said"),
    [
        (SETTINGS, "abcabcabc", "supports a vocabulary of 271 tokens, got one that has 260 at most"),
        (preset("tiny", V=259, T=400), lines(20, 1), "more than 400 tokens, a window, got"),
    ],
)
def test_a_text_that_is_too_small_is_refused(tmp_path: Path, settings: Settings, text: str, said: str):
    split = Split((Document("a.txt", text),), SPLIT.held_out)
    with pytest.raises(OptionError, match=said):
        TextModel.begin(split, settings, tmp_path)
