"""The siblings differ in their key heads alone, and their record says what each seed came to."""

import importlib.util
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import CheckpointError
from qkv.models import load
from qkv.planner import plan
from qkv.training.export import rounded
from qkv.training.llama import TrainableLlama
from qkv.training.loop import evaluate
from qkv.training.siblings import KEY_HEADS, SEEDS, SETTINGS, HeldOut, Trained, held_out_of, train_sibling
from qkv.training.text import Document, Split
from qkv.training.text_model import TextModel

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "she", "had", "her", "hat")


def lines(count: int, seed: int) -> str:
    generator = np.random.default_rng(seed)
    return "".join(" ".join(generator.choice(WORDS, 5)) + "\n" for _ in range(count))


TINY = replace(SETTINGS, V=271, E=16, F=22, L=1, D=2, T=19, B=3, steps=5, learning_rate=0.02)
SPLIT = Split((Document("a.txt", lines(200, 1)),), (Document("b.txt", lines(20, 2)),))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("siblings")
    first = TextModel.begin(SPLIT, TINY, folder)
    return {name: train_sibling(first, name, 3, folder / name) for name in KEY_HEADS}


def first_of(trained: dict[str, Trained]) -> TextModel:
    """Another seed's model with all key heads, whose text and tokens are the same."""
    model = trained["mha"].model
    return replace(model, settings=TINY, data=replace(model.data, seed=TINY.seed))


def test_settings_differ_in_key_heads_alone(trained: dict[str, Trained]):
    settings = {name: one.model.settings for name, one in trained.items()}
    assert {name: one.G for name, one in settings.items()} == {"mha": 8, "gqa": 2, "mqa": 1}
    assert len({replace(one, G=1) for one in settings.values()}) == 1
    assert settings["gqa"] == replace(TINY, G=2, seed=3)


def test_all_learn_from_the_same_windows(trained: dict[str, Trained]):
    batches = [one.model.data.batch(4) for one in trained.values()]
    for ids, targets in batches[1:]:
        np.testing.assert_array_equal(ids, batches[0][0])
        np.testing.assert_array_equal(targets, batches[0][1])


def test_a_seed_draws_windows_and_first_weights_of_its_own(trained: dict[str, Trained], tmp_path: Path):
    still = replace(first_of(trained), settings=replace(TINY, steps=1, learning_rate=1e-9))
    one = train_sibling(still, "mqa", 7, tmp_path).model
    again = TrainableLlama.begin(one.model.config, 7)
    np.testing.assert_allclose(one.model.parameters.vector, again.parameters.vector, atol=1e-6)
    ids, _ = one.data.batch(4)
    assert (ids != trained["mqa"].model.data.batch(4)[0]).any()
    np.testing.assert_array_equal(ids, replace(one.data, seed=7).batch(4)[0])


def test_the_loss_is_that_of_the_parameters_as_they_are_stored(trained: dict[str, Trained]):
    one = trained["mqa"]
    as_stored = TrainableLlama(one.model.model.config, rounded(one.model.model.parameters, "float16"))
    assert one.evaluation == evaluate(as_stored, one.model.data, TINY.steps)
    assert one.curve.num_steps == TINY.steps


def test_a_training_goes_on_where_it_was_left(trained: dict[str, Trained], tmp_path: Path):
    first = first_of(trained)

    def stop(done):
        if done.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_sibling(first, "gqa", 3, tmp_path, on_step=stop)
    again = train_sibling(first, "gqa", 3, tmp_path)
    assert again.curve.losses == trained["gqa"].curve.losses
    assert train_sibling(first, "gqa", 3, tmp_path).evaluation == again.evaluation


def test_one_siblings_folder_is_not_anothers(trained: dict[str, Trained]):
    with pytest.raises(CheckpointError):
        train_sibling(first_of(trained), "gqa", 3, trained["mha"].model.folder)


def test_a_record_has_every_seed_of_every_sibling(trained: dict[str, Trained], tmp_path: Path):
    record = held_out_of({name: [one, trained["mha"]] for name, one in trained.items()})
    assert record.texts == ["b"] and record.steps == 5 and record.seeds == [3, 3]
    for name, one in trained.items():
        assert record.bits_per_byte[name] == [
            one.evaluation.bits_per_byte,
            trained["mha"].evaluation.bits_per_byte,
        ]
    record.write(tmp_path)
    assert HeldOut.read(tmp_path) == record


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"steps": 5}', '{"texts": [], "steps": 1, "seeds": [], "bits": {}}']
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str):
    (tmp_path / "held_out.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"held_out\.json is not the record"):
        HeldOut.read(tmp_path)


def test_a_record_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match="held_out"):
        HeldOut.read(tmp_path)


def recipe():
    path = Path(__file__).parents[2] / "recipes" / "siblings.py"
    spec = importlib.util.spec_from_file_location("siblings_recipe", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_recipe_leaves_three_models_and_their_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts, folder = tmp_path / "texts", tmp_path / "siblings"
    texts.mkdir()
    for name, count in {"hamlet": 200, "tempest": 20, "twelfth_night": 19}.items():
        (texts / f"{name}.txt").write_text(lines(count, count))
    recipe().main(texts, folder, replace(TINY, steps=2))
    record = HeldOut.read(folder)
    assert record.texts == ["tempest", "twelfth_night"] and record.seeds == list(SEEDS)
    for name, G in KEY_HEADS.items():
        model = load(folder / name)
        assert model.cache_shape.num_kv_heads == G and model.tokenizer is not None
        assert model.logits(model.tokenizer.encode("the cat")).shape[-1] == TINY.V
        assert plan(folder / name, 1, 16, cache="fp16", engine="ideal").bytes == 16 * 2 * G * TINY.D * 2
        assert len(record.bits_per_byte[name]) == 3 and len(set(record.bits_per_byte[name])) == 3
        card = (folder / name / "README.md").read_text()
        assert all(f"{bits:.4f}" in card for seeds in record.bits_per_byte.values() for bits in seeds)
        assert f"G = {G} for keys and values" in card and "recipes/siblings.py" in card
    configs = {name: json.loads((folder / name / "config.json").read_text()) for name in KEY_HEADS}
    assert [one.pop("num_key_value_heads") for one in configs.values()] == [8, 2, 1]
    assert configs["mha"] == configs["gqa"] == configs["mqa"]
    said = capsys.readouterr().out
    assert all(f"{bits[0]:.4f} bits a byte" in said for bits in record.bits_per_byte.values())


def test_the_record_is_plain_json_that_says_what_it_is(tmp_path: Path):
    HeldOut(["tempest"], 7, [0], {"mha": [2.5]}).write(tmp_path)
    record = json.loads((tmp_path / "held_out.json").read_text())
    assert record["bits_per_byte"] == {"mha": [2.5]}
    assert set(record) == {field.name for field in fields(HeldOut)}
