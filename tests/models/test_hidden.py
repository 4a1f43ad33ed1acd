"""What a model gives before its output head: as many logits as somebody asks for, and no others."""

import numpy as np
import pytest

from qkv import load, new_cache
from qkv.models import Model
from tiny_deepseek import write_model as write_deepseek
from tiny_models import FAMILIES, write_model

IDS = np.random.default_rng(0).integers(0, 101, 13)


@pytest.fixture(scope="module", params=[*FAMILIES, "deepseek_v2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    write = write_deepseek if request.param == "deepseek_v2" else write_model
    return load(write(tmp_path_factory.mktemp("model"), request.param))


def test_logits_are_those_of_the_hidden_states(model: Model):
    hidden = model.hidden(IDS)
    assert hidden.shape[0] == len(IDS)
    np.testing.assert_allclose(model.unembed(hidden), model.logits(IDS), rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.unembed(hidden[[7, 2]]), model.logits(IDS)[[7, 2]], rtol=0, atol=1e-5)


def test_hidden_states_of_rows_keep_their_axes(model: Model):
    rows = np.stack([IDS, IDS[::-1]])
    hidden = model.hidden(rows)
    assert hidden.shape[:2] == (2, len(IDS))
    np.testing.assert_allclose(hidden[0], model.hidden(IDS), rtol=0, atol=1e-5)


def test_hidden_states_continue_a_cache(model: Model):
    cache = new_cache(model)
    parts = [model.hidden(IDS[:5], cache), model.hidden(IDS[5:], cache)]
    assert cache.length == len(IDS)
    np.testing.assert_allclose(np.concatenate(parts), model.hidden(IDS), rtol=0, atol=1e-5)


def test_the_vocabulary_is_as_large_as_a_row_of_logits(model: Model):
    assert model.vocab_size == model.logits(IDS).shape[-1]
