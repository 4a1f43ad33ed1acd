"""What every model family offers: a cache that fits it, and a fingerprint that is its own."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
import tiny_deepseek
import tiny_models
from qkv.cache import PagedCache, PagePool
from qkv.errors import OptionError
from qkv.models import load, load_cache, new_cache
from qkv.ops.latent import AbsorbedWeights
from qkv.ops.projection import is_packed

TINY = {
    **dict.fromkeys(tiny_models.FAMILIES, tiny_models),
    **dict.fromkeys(tiny_deepseek.KINDS, tiny_deepseek),
}
"""What writes small folders of each model type."""

every_kind = pytest.mark.parametrize("kind", TINY)


@every_kind
def test_a_new_cache_is_empty_and_as_it_was_asked_for(tmp_path: Path, kind: str):
    model, pool = load(TINY[kind].write_model(tmp_path, kind)), PagePool()
    cache = qkv.new_cache(model, "fp16,page=8", batch_size=3, pool=pool)
    assert isinstance(cache, PagedCache)
    assert (cache.batch_size, cache.lengths, cache.nbytes) == (3, (0, 0, 0), 0)
    assert (cache.shape, cache.fingerprint) == (model.cache_shape, model.fingerprint)
    model.logits(np.arange(21).reshape(3, 7), cache)
    assert cache.lengths == (7, 7, 7)
    assert (
        cache.nbytes
        == pool.nbytes
        == cache.predict_nbytes(7)
        == 3 * 8 * model.cache_shape.bytes_per_token // 2
    )


def test_only_a_model_that_turns_whole_keys_can_move_them(tmp_path: Path):
    for kind in ("llama", "gpt2", "deepseek_v3"):
        model = load(TINY[kind].write_model(tmp_path / kind, kind))
        if kind == "llama":
            assert new_cache(model, "streaming=16,rerotate").length == 0
        else:
            with pytest.raises(OptionError, match="rerotate must know how"):
                new_cache(model, "streaming=16,rerotate")


@every_kind
def test_a_fingerprint_is_that_of_the_folder(tmp_path: Path, kind: str):
    """Whenever it is loaded, and unlike that of another config or of other weights."""
    write, norm_eps = TINY[kind].write_model, "layer_norm_epsilon" if kind == "gpt2" else "rms_norm_eps"
    first = load(write(tmp_path / "first", kind)).fingerprint
    assert load(write(tmp_path / "again", kind)).fingerprint == first
    assert load(write(tmp_path / "weights", kind, seed=1)).fingerprint != first
    assert load(write(tmp_path / "config", kind, **{norm_eps: 1e-4})).fingerprint != first


WHOLE = {"embedding", "position_embedding", "final_norm", "head"}


@every_kind
def test_a_fingerprint_sees_every_weight(tmp_path: Path, kind: str):
    """What a layer keeps of a token depends on all that comes before it, MLP and norms included."""
    model = load(TINY[kind].write_model(tmp_path, kind))
    first, last = model.fingerprint, model.layers[-1]
    for name in (one.name for one in fields(last) if getattr(last, one.name) is not None):
        layer = replace(last, **{name: grown(getattr(last, name))})
        assert replace(model, layers=(*model.layers[:-1], layer)).fingerprint != first, name
    for name in WHOLE & {one.name for one in fields(model)}:
        assert replace(model, **{name: grown(getattr(model, name))}).fingerprint != first, name


def grown(weights: Any) -> Any:
    """The same, half as large again: an array, a packed weight or several."""
    if isinstance(weights, tuple):
        return tuple(map(grown, weights))
    if is_packed(weights):
        return weights.rows(np.arange(weights.shape[0])) * 1.5
    if isinstance(weights, AbsorbedWeights):
        return replace(weights, **{one.name: grown(getattr(weights, one.name)) for one in fields(weights)})
    return weights * 1.5


def test_a_fingerprint_is_the_same_in_another_process(tmp_path: Path):
    folder = tiny_models.write_model(tmp_path, "llama")
    program = f"import qkv; print(qkv.load({str(folder)!r}).fingerprint)"
    environment = {**os.environ, "QKV_DISABLE_COMPILED": "1"}
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert other.stdout.strip() == load(folder).fingerprint, other.stderr


@every_kind
def test_a_row_without_a_token_has_no_logits_and_the_others_have_theirs(tmp_path: Path, kind: str):
    model = load(TINY[kind].write_model(tmp_path, kind))
    for T in (1, 3):
        ids = np.arange(2, 2 + 2 * T).reshape(2, T)
        both, alone = new_cache(model, batch_size=2), new_cache(model)
        logits = model.next_logits(ids, both, np.array([[True] * T, [False] * T]))
        assert not logits[1].any() and both.lengths == (T, 0)
        np.testing.assert_allclose(logits[0], model.next_logits(ids[0], alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", [None, 5, ["int8"]], ids=str)
def test_a_policy_is_text_or_a_policy(tmp_path: Path, policy: Any):
    model = load(tiny_models.write_model(tmp_path, "llama"))
    with pytest.raises(OptionError, match="a policy is text such as 'int8,window=1024'") as refused:
        new_cache(model, policy)
    assert str(refused.value).endswith(f"not {policy}")


@pytest.mark.parametrize("batch_size", [0, True, 1.5])
def test_a_cache_is_of_a_whole_number_of_sequences(tmp_path: Path, batch_size: Any):
    model = load(tiny_models.write_model(tmp_path, "llama"))
    with pytest.raises(OptionError, match=f"batch_size must be .*at least 1, not {batch_size}"):
        new_cache(model, batch_size=batch_size)


def test_a_cache_is_for_a_model_and_not_for_its_name(tmp_path: Path):
    for refused in (lambda: new_cache("verse"), lambda: load_cache("verse", tmp_path)):  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"qkv.load returns, not 'verse'; try qkv.load\('verse'\)"):
            refused()
    with pytest.raises(OptionError, match=r"not None; try qkv.load\('verse'\)"):
        new_cache(None)  # type: ignore[arg-type]
