import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.models.llama import LlamaConfig
from qkv.training.llama import check_learnable, shapes_of
from qkv.training.presets import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_model_that_can_learn_and_says_its_size(name: str):
    config = LlamaConfig.from_dict(PRESETS[name].config())
    check_learnable(config)
    assert PRESETS[name].num_parameters == sum(int(np.prod(shape)) for shape in shapes_of(config).values())
    assert (config.V, config.context_length) == (PRESETS[name].V, PRESETS[name].T)
    assert (config.E, config.F, config.L) == (PRESETS[name].E, PRESETS[name].F, PRESETS[name].L)
    assert (config.H, config.G, config.D) == (PRESETS[name].H, PRESETS[name].G, PRESETS[name].D)
    assert len({config.H, config.G}) == 2  # so that heads share keys


def test_the_warm_up_is_a_share_of_the_steps():
    schedule = preset("tiny", steps=40, warm_up=0.25, learning_rate=1.0).schedule
    assert [schedule.at(step) for step in (0, 9, 10)] == [0.1, 1.0, 1.0]
    assert preset("tiny", steps=1).schedule.at(0) == PRESETS["tiny"].learning_rate


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"V": 0, "T": -1}, "sizes of at least 1, got V 0, T -1"),
        ({"steps": 0}, "sizes of at least 1, got steps 0"),
        ({"H": 5}, "H to be a multiple of G, got H 5 and G 2"),
        ({"learning_rate": -1.0}, "learning rate above 0"),
        ({"warm_up": 1.0}, "shorter than all"),
        ({"dropout": 1.0}, "dropout from 0 to below 1, got 1.0"),
        ({"max_norm": 0.0}, "max_norm above 0, got 0.0"),
        ({"layers": 3}, "no setting 'layers'; there are V, E"),
    ],
)
def test_settings_without_meaning_are_refused(changes: dict, said: str):
    with pytest.raises(OptionError, match=said):
        preset("tiny", **changes)


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(OptionError, match="expected a preset of tiny, small, got 'large'"):
        preset("large")
