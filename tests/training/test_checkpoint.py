import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bigram_model import settings
from qkv.errors import CheckpointError
from qkv.training.adamw import AdamW
from qkv.training.checkpoint import load_checkpoint, origin_of, save_checkpoint
from qkv.training.curve import Curve, Evaluation
from qkv.training.parameters import Parameters

CURVE = Curve([2.5, 2.25, 0.1], [1.0, 0.5, 0.3], [Evaluation(2, 2.0, 1.5), Evaluation(3, 1.75, None)])
ORIGIN = origin_of(settings(), "a text")


def optimiser(seed: int) -> AdamW:
    made = AdamW(Parameters({"table": (5, 7), "scale": (3,)}))
    generator = np.random.default_rng(seed)
    for vector in (made.parameters.vector, made.first_moments, made.second_moments):
        vector[:] = generator.normal(size=vector.size)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "checkpoint", optimiser(1), CURVE, ORIGIN)
    return tmp_path / "checkpoint"


def is_as(one: AdamW, other: AdamW) -> bool:
    pairs = [
        (one.parameters.vector, other.parameters.vector),
        (one.first_moments, other.first_moments),
        (one.second_moments, other.second_moments),
    ]
    return all(np.array_equal(a, b) for a, b in pairs)


def test_everything_comes_back_to_the_bit_and_in_place(path: Path):
    loaded = optimiser(2)
    vector = loaded.parameters.vector
    assert load_checkpoint(path, loaded, ORIGIN) == CURVE
    assert is_as(loaded, optimiser(1)) and loaded.num_steps == 3
    assert loaded.parameters.vector is vector
    assert np.array_equal(loaded.parameters["scale"], optimiser(1).parameters["scale"])


def test_any_reader_of_safetensors_opens_it(path: Path):
    assert sorted(load_file(path)) == [
        "evaluations", "first_moments", "losses", "norms", "parameters", "second_moments"
    ]  # fmt: skip
    with safe_open(path, framework="numpy") as file:
        assert json.loads(file.metadata()["origin"])["seed"] == 5


@pytest.mark.parametrize(
    ("changes", "data", "said"),
    [
        ({"steps": 17}, "a text", "with steps 13, not 17; take another folder, or accept the changes"),
        ({"seed": 7, "B": 2}, "a text", "with B 3, not 2, seed 5, not 7; take another folder, or accept"),
        ({"V": 12}, "a text", "with V 11, not 12; take another folder$"),
        ({"betas": (0.8, 0.9)}, "a text", r"betas \[0.9, 0.95\], not \[0.8, 0.9\]"),
        ({}, "another", "with other text; take another folder$"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(path: Path, changes: dict, data: str, said: str):
    loaded = optimiser(2)
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(path, loaded, origin_of(replace(settings(), **changes), data))
    assert is_as(loaded, optimiser(2)) and loaded.num_steps == 0


def test_other_settings_can_be_accepted_but_never_other_sizes_or_text(path: Path):
    changed = replace(settings(), steps=17, learning_rate=0.5)
    loaded = optimiser(2)
    assert load_checkpoint(path, loaded, origin_of(changed, "a text"), accept_changes=True) == CURVE
    assert is_as(loaded, optimiser(1))
    for wrong in (origin_of(replace(changed, T=9), "a text"), origin_of(changed, "another")):
        with pytest.raises(CheckpointError, match=r"of another training, with (T 7, not 9|other text)"):
            load_checkpoint(path, loaded, wrong, accept_changes=True)


def test_a_file_that_is_damaged_or_something_else_is_refused(path: Path):
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", b"no such thing"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="remove it to begin anew"):
            load_checkpoint(path, optimiser(2), ORIGIN)
    save_file({"parameters": np.zeros(3)}, path)
    with pytest.raises(CheckpointError, match="is no checkpoint of a training"):
        load_checkpoint(path, optimiser(2), ORIGIN)


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match="cannot be written: No such file or directory; try another"):
        save_checkpoint(tmp_path / "none" / "checkpoint", optimiser(1), CURVE, ORIGIN)
