"""The Llama family computes what its papers say, with every optional tensor in its place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from qkv.cache import ContiguousCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import CheckpointError, CheckpointWarning
from qkv.models import Llama, load, new_cache
from qkv.models.checkpoint import Checkpoint
from qkv.models.llama import take_tables
from qkv.ops.embedding import embed
from qkv.ops.logits import unembed
from tiny_models import config_of, random_tensors, tensor_shapes, write_folder, write_model

IDS = [11, 3, 97, 42, 3, 58, 7]
WINDOWS = {"llama": [None] * 3, "mistral": [5] * 3, "qwen2": [None, 4, 4], "qwen3": [None] * 3}
"""What the configs of `tiny_models` say, by layer."""


def loaded(folder: Path, kind: str = "llama", **changes: Any) -> Llama:
    model = load(write_model(folder, kind, **changes))
    assert isinstance(model, Llama)
    return model


# The formula, in loops


def project(tensors: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ tensors[f"{name}.weight"].T.astype(np.float64) + tensors.get(f"{name}.bias", 0.0)


def heads(x: np.ndarray, D: int) -> np.ndarray:
    """(T, H*D) to (H, T, D)."""
    return np.stack(np.split(x, x.shape[1] // D, axis=1))


def logits_by_loops(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], ids: list[int]
) -> np.ndarray:
    """A Llama-style model in float64, written from the papers against the names in the checkpoint."""
    D, eps, kind = config["head_dim"], config["rms_norm_eps"], config["model_type"]
    frequencies = [config["rope_theta"] ** (-2 * pair / D) for pair in range(D // 2)]
    positions = range(len(ids))
    x = tensors["model.embed_tokens.weight"][ids].astype(np.float64)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        normed = reference.rms_norm(x, tensors[f"{prefix}.input_layernorm.weight"], eps)
        q, k, v = (heads(project(tensors, f"{attention}.{name}_proj", normed), D) for name in "qkv")
        if kind == "qwen3":
            q = reference.rms_norm(q, tensors[f"{attention}.q_norm.weight"], eps)
            k = reference.rms_norm(k, tensors[f"{attention}.k_norm.weight"], eps)
        q, k = (reference.rotate(part, positions, frequencies) for part in (q, k))
        mixed, _, _ = reference.attend(q[None], k[None], v[None], causal=True, window=WINDOWS[kind][layer])
        x = x + project(tensors, f"{attention}.o_proj", np.concatenate(mixed[0], axis=1))
        normed = reference.rms_norm(x, tensors[f"{prefix}.post_attention_layernorm.weight"], eps)
        gate = project(tensors, f"{mlp}.gate_proj", normed)
        gate = gate / (1 + np.exp(-gate))
        x = x + project(tensors, f"{mlp}.down_proj", gate * project(tensors, f"{mlp}.up_proj", normed))
    x = reference.rms_norm(x, tensors["model.norm.weight"], eps)
    head = tensors["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return x @ head.T.astype(np.float64)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"num_key_value_heads": 6, "head_dim": 2}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    ],
    ids=str,
)
def test_logits_are_those_of_the_formula_in_loops(tmp_path: Path, kind: str, changes: dict[str, Any]):
    config = config_of(kind, **changes)
    tensors = random_tensors(config)
    model = load(write_folder(tmp_path, config, tensors))
    np.testing.assert_allclose(
        model.logits(IDS),
        logits_by_loops(config, tensors, IDS),
        rtol=0,
        atol=2e-5,
    )


# Every tensor in its place


def test_every_tensor_of_the_checkpoint_changes_the_logits(tmp_path: Path):
    config = config_of("qwen3", attention_bias=True, tie_word_embeddings=False)
    tensors = random_tensors(config)
    before = load(write_folder(tmp_path, config, tensors)).logits(np.array(IDS))
    for name in tensor_shapes(config):
        changed = {**tensors, name: tensors[name] + np.float32(0.5)}
        after = load(write_folder(tmp_path, config, changed)).logits(np.array(IDS))
        assert np.abs(after - before).max() > 1e-2, name


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_no_tensor_may_be_missing(tmp_path: Path, kind: str):
    config = config_of(kind)
    tensors = random_tensors(config)
    for name in tensors:
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        with pytest.raises(CheckpointError) as caught:
            load(write_folder(tmp_path, config, rest))
        assert f" {name} " in str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_every_tensor_must_have_the_shape_that_the_config_says(tmp_path: Path, kind: str):
    config = config_of(kind)
    tensors = random_tensors(config)
    for name, tensor in tensors.items():
        larger = np.zeros([n + 1 for n in tensor.shape], np.float32)
        with pytest.raises(CheckpointError) as caught:
            load(write_folder(tmp_path, config, {**tensors, name: larger}))
        assert all(str(shape) in str(caught.value) for shape in (tensor.shape, larger.shape))


def test_a_tensor_without_a_place_is_listed(tmp_path: Path):
    config = config_of("llama")
    tensors = random_tensors(config)
    extra = {"model.layers.0.self_attn.q_proj.bias": np.ones(84, np.float32)}
    with pytest.warns(CheckpointWarning, match=r"1 without: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(write_folder(tmp_path, config, tensors | extra))


def test_rotary_buffers_of_old_files_are_no_parameters(tmp_path: Path):
    config = config_of("llama")
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(7, np.float32) for i in range(3)}
    model = load(write_folder(tmp_path, config, random_tensors(config) | buffers))
    assert model.logits(np.array(IDS)).shape == (7, 101)


def test_a_qwen2_checkpoint_s_biases_are_used_though_its_config_is_silent(tmp_path: Path):
    config = config_of("qwen2")
    tensors = random_tensors(config)
    biased = load(write_folder(tmp_path, config, tensors)).logits(np.array(IDS))
    silenced = {name: tensor * (0 if name.endswith("bias") else 1) for name, tensor in tensors.items()}
    unbiased = load(write_folder(tmp_path, config, silenced)).logits(np.array(IDS))
    assert np.abs(biased - unbiased).max() > 0.1


class ShapesOnly(Checkpoint):
    """A checkpoint of any size that takes no memory: it notes the shapes asked for."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(Path("none"), config, {}, {})
        self.asked: dict[str, tuple[int, ...]] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        self.asked[name] = shape
        return np.broadcast_to(np.float32(0), shape)

    take_matrix = take


@pytest.mark.parametrize(
    ("E", "H", "G", "D", "query_rows", "key_rows"),
    [(5120, 32, 8, 128, 4096, 1024), (2560, 32, 8, 128, 4096, 1024), (3072, 16, 16, 256, 4096, 4096)],
)
def test_projections_have_heads_times_head_size_rows(
    E: int, H: int, G: int, D: int, query_rows: int, key_rows: int
):
    sizes = {"hidden_size": E, "num_attention_heads": H, "num_key_value_heads": G, "head_dim": D}
    checkpoint = ShapesOnly(config_of("llama", **sizes, num_hidden_layers=1))
    model = Llama.from_checkpoint(checkpoint)
    attention = "model.layers.0.self_attn"
    assert checkpoint.asked[f"{attention}.q_proj.weight"] == (query_rows, E)
    assert checkpoint.asked[f"{attention}.k_proj.weight"] == (key_rows, E)
    assert checkpoint.asked[f"{attention}.v_proj.weight"] == (key_rows, E)
    assert checkpoint.asked[f"{attention}.o_proj.weight"] == (E, query_rows)
    assert model.cache_shape == CacheShape(1, G, D)
    assert len(model.config.rotary.at(1).frequencies) == D // 2


# Tied and separate output heads


EMBEDDING = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
SEPARATE = np.array([[1, 1], [0, 0], [2, 0]], np.float32)


def head_of(folder: Path, tied: bool, **tensors: np.ndarray) -> np.ndarray:
    config = {"model_type": "llama"}
    named = {
        "table": EMBEDDING,
        **{name.replace("_weight", ".weight"): value for name, value in tensors.items()},
    }
    checkpoint = Checkpoint.open(write_folder(folder, config, named))
    embedding, head = take_tables(checkpoint, "table", EMBEDDING.shape, tied)
    assert embed(np.arange(3), embedding).tolist() == EMBEDDING.tolist()
    return unembed(np.array([2.0, 3.0], np.float32), head)


def test_a_tied_head_is_the_embedding(tmp_path: Path):
    assert head_of(tmp_path, True).tolist() == [2, 3, 5]


def test_an_untied_head_is_its_own_tensor(tmp_path: Path):
    assert head_of(tmp_path, False, lm_head_weight=SEPARATE).tolist() == [5, 0, 4]


def test_a_tied_head_that_is_stored_all_the_same_is_no_matter(tmp_path: Path):
    assert head_of(tmp_path, True, lm_head_weight=EMBEDDING).tolist() == [2, 3, 5]


def test_a_tied_head_that_differs_is_not_used_and_said(tmp_path: Path):
    with pytest.warns(CheckpointWarning, match=r"lm_head\.weight differs"):
        assert head_of(tmp_path, True, lm_head_weight=SEPARATE).tolist() == [2, 3, 5]


def test_an_untied_head_that_is_missing_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        head_of(tmp_path, False)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_whole_model_uses_the_head_its_config_ties_it_to(tmp_path: Path, kind: str):
    config = config_of(kind, tie_word_embeddings=False)
    tensors = random_tensors(config)
    untied = load(write_folder(tmp_path, config, tensors))
    units = np.eye(untied.embedding.shape[1], dtype=np.float32)
    assert np.array_equal(unembed(units, untied.head).T, tensors["lm_head.weight"])
    with pytest.warns(CheckpointWarning, match="differs from the embedding"):
        tied = load(write_folder(tmp_path, {**config, "tie_word_embeddings": True}, tensors))
    assert np.array_equal(unembed(units, tied.head).T, embed(np.arange(101), tied.embedding))
    assert tied.head is tied.embedding


# Norms of single heads


class WatchedCache(ContiguousCache):
    """A cache that notes the queries and keys it is given."""

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self.queries: list[np.ndarray] = []
        self.keys: list[np.ndarray] = []

    def append(self, layer: int, k: Any, v: Any, lengths: Any = None) -> None:
        self.keys.append(k[0])
        super().append(layer, k, v, lengths)

    def attend(self, layer: int, q: Any, lengths: Any = None, **options: Any) -> Any:
        self.queries.append(q[0])
        return super().attend(layer, q, lengths, **options)


def hand_made_qwen3(folder: Path) -> Llama:
    """One layer, two query heads of 4, one key head; a query before the norm is 3, 4, 0, 0 | 1, 1, 1, 1."""
    config = config_of(
        "qwen3",
        vocab_size=2,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        rms_norm_eps=1e-6,
    )
    tensors = {name: np.ones_like(tensor) for name, tensor in random_tensors(config).items()}
    row = np.array([3, 4, 0, 0, 1, 1, 1, 1], np.float32)
    tensors["model.embed_tokens.weight"] = np.stack([row, 2 * row])
    # The norm before the projections divides by the root of 29/8, which its weight puts back.
    tensors["model.layers.0.input_layernorm.weight"] = np.full(8, (29 / 8) ** 0.5, np.float32)
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.eye(8, dtype=np.float32)
    tensors["model.layers.0.self_attn.k_proj.weight"] = np.eye(8, dtype=np.float32)[:4]
    model = load(write_folder(folder, config, tensors))
    assert isinstance(model, Llama)
    return model


@pytest.mark.parametrize("ids", [[0], [1], [0, 1]], ids=str)
def test_each_head_is_normed_by_itself_before_rotation(tmp_path: Path, ids: list[int]):
    model = hand_made_qwen3(tmp_path)
    prefilled, stepped = WatchedCache(model.cache_shape), WatchedCache(model.cache_shape)
    model.logits(np.array(ids), prefilled)
    for token_id in ids:
        model.logits(np.array([token_id]), stepped)
    for cache in (prefilled, stepped):
        q, k = (np.concatenate(seen, axis=1) for seen in (cache.queries, cache.keys))
        np.testing.assert_allclose(q[:, 0], [[1.2, 1.6, 0, 0], [1, 1, 1, 1]], atol=1e-5)
        np.testing.assert_allclose(k[:, 0], [[1.2, 1.6, 0, 0]], atol=1e-5)
        if len(ids) == 2:
            # Pairs are (0, 2) and (1, 3); the first turns by 1 rad, the second by 1000 ** -0.5 rad.
            angle = np.array([1.0, 1000**-0.5])
            turned = [1.2 * np.cos(1.0), 1.6 * np.cos(angle[1]), 1.2 * np.sin(1.0), 1.6 * np.sin(angle[1])]
            ones = np.concatenate([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)])
            np.testing.assert_allclose(q[:, 1], [turned, ones], atol=1e-5)
            np.testing.assert_allclose(k[:, 1], [turned], atol=1e-5)


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_head_norms_act_alike_with_and_without_a_cache(tmp_path: Path, num_tokens: int):
    config = config_of("qwen3")
    tensors = random_tensors(config)
    model = load(write_folder(tmp_path, config, tensors))
    ids = IDS[:num_tokens]
    expected = logits_by_loops(config, tensors, ids)
    cache = new_cache(model)
    one_by_one = [model.logits(np.array([token_id]), cache)[0] for token_id in ids]
    for got in (model.logits(np.array(ids)), model.logits(np.array(ids), new_cache(model)), one_by_one):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


# Windows and length


def test_a_windowed_layer_forgets_what_is_behind_its_window(tmp_path: Path):
    """One layer with a window of 5: token 5 no longer sees token 0, token 4 still does."""
    model = loaded(tmp_path, "mistral", num_hidden_layers=1)
    ids, other = np.array(IDS), np.array([99, *IDS[1:]])
    changed = np.abs(model.logits(ids) - model.logits(other)).max(axis=1)
    assert (changed[:5] > 1e-3).all()
    assert (changed[5:] < 1e-5).all()


def test_dynamic_positions_stretch_only_beyond_the_trained_length(tmp_path: Path):
    scaled = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 5}
    plain, dynamic = loaded(tmp_path / "plain"), loaded(tmp_path / "dynamic", **scaled)
    np.testing.assert_array_equal(dynamic.logits(IDS[:5]), plain.logits(IDS[:5]))
    assert np.abs(dynamic.logits(IDS)[1:5] - plain.logits(IDS)[1:5]).max() > 1e-3


def test_a_cache_for_the_model_has_its_layers_key_heads_and_head_size(tmp_path: Path):
    model = loaded(tmp_path)
    assert model.cache_shape == CacheShape(num_layers=3, num_kv_heads=2, head_dim=14)
    assert model.context_length == 97
    cache = new_cache(model, batch_size=5)
    assert (cache.batch_size, cache.shape) == (5, model.cache_shape)
