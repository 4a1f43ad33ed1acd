"""A key head that is written down several times changes what a cache takes, and nothing that is said."""

import numpy as np
import pytest

from qkv import use_backend
from qkv.errors import NumericError
from qkv.lab.random_models import random_llama
from qkv.lab.repeated_heads import decoding, next_token, require_equal, with_key_heads


def one_key_head():
    return random_llama(np.random.default_rng(3), E=48, L=2, H=8, G=1, context_length=31)


IDS = np.random.default_rng(4).integers(0, 97, 13)


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("G", [1, 2, 8])
def test_a_key_head_written_down_several_times_is_the_same_function(G: int, backend):
    with use_backend(backend):
        one = one_key_head()
        several = with_key_heads(one, G)
        np.testing.assert_allclose(several.logits(IDS), one.logits(IDS), atol=1e-4)
    assert several.cache_shape.num_kv_heads == G


def test_a_run_makes_its_tokens_behind_the_text_and_forgets_them():
    lengths = []

    def watched(model, cache):
        lengths.append(cache.length)
        return next_token(model, cache)

    model = one_key_head()
    run = decoding(model, IDS, 3, watched)
    first, again = run(), run()
    assert lengths == [13, 14, 15] * 2
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, model.logits([*IDS, 0, 0, 0])[-1], atol=1e-4)


def test_what_differs_is_refused_and_rounding_is_not():
    require_equal([np.zeros(3), np.full(3, 1e-4)])
    with pytest.raises(NumericError, match=r"lie 0\.5 apart"):
        require_equal([np.zeros(3), np.array([0.0, 0.5, 0.0])])
