"""A model with latent attention computes what its paper says, and remembers only latents."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from qkv.cache import ContiguousCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import CheckpointError, CheckpointWarning, ShapeError
from qkv.models import load, new_cache
from qkv.models.checkpoint import Checkpoint
from qkv.models.deepseek import DeepSeek, DeepSeekConfig
from qkv.ops.backend import is_compiled, use_backend
from tiny_deepseek import KINDS, config_of, random_tensors, tensor_shapes, write_model
from tiny_models import write_folder

IDS = [11, 3, 97, 42, 3, 58, 7]
YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}


def loaded(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> DeepSeek:
    model = load(write_folder(folder, config, dict(tensors)))
    assert isinstance(model, DeepSeek)
    return model


def tiny(folder: Path, kind: str = "deepseek_v3", **changes: Any) -> DeepSeek:
    model = load(write_model(folder, kind, **changes))
    assert isinstance(model, DeepSeek)
    return model


# The formula, in loops


def linear(tensors: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ tensors[f"{name}.weight"].T.astype(np.float64) + tensors.get(f"{name}.bias", 0.0)


def norm(tensors: Mapping[str, np.ndarray], name: str, x: np.ndarray, eps: float) -> np.ndarray:
    return reference.rms_norm(x, tensors[f"{name}.weight"], eps)


def heads_of(x: np.ndarray, H: int) -> np.ndarray:
    """(T, H*D) to (H, T, D)."""
    return np.stack(np.split(x, H, axis=1))


def queries_by_loops(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], attention: str, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Each head's part without positions and its rotated part."""
    name = "q_proj"
    if config["q_lora_rank"] is not None:
        x, name = linear(tensors, f"{attention}.q_a_proj", x), "q_b_proj"
        x = norm(tensors, f"{attention}.q_a_layernorm", x, 1e-6)
    q = heads_of(linear(tensors, f"{attention}.{name}", x), config["num_attention_heads"])
    nope = config["qk_nope_head_dim"]
    return q[..., :nope], rotated(config, q[..., nope:])


def keys_by_loops(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], attention: str, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The latents, (S, latent), and the rotated part of all heads' keys, (S, rope)."""
    latent = config["kv_lora_rank"]
    both = linear(tensors, f"{attention}.kv_a_proj_with_mqa", x)
    latents = norm(tensors, f"{attention}.kv_a_layernorm", both[:, :latent], 1e-6)
    return latents, rotated(config, both[None, :, latent:])[0]


def rotated(config: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    rope = config["qk_rope_head_dim"]
    frequencies = [config["rope_theta"] ** (-2 * pair / rope) for pair in range(rope // 2)]
    interleaved = config["model_type"] == "deepseek_v2" or config.get("rope_interleave", True)
    return reference.rotate(x, range(x.shape[1]), frequencies, interleaved)


def attention_by_loops(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], attention: str, x: np.ndarray
) -> np.ndarray:
    """Keys and values of every head from the latents, then attention: (T, E)."""
    H, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    q_nope, q_rope = queries_by_loops(config, tensors, attention, x)
    latents, k_rope = keys_by_loops(config, tensors, attention, x)
    up = heads_of(linear(tensors, f"{attention}.kv_b_proj", latents), H)
    q = np.concatenate([q_nope, q_rope], axis=-1)
    k = np.concatenate([up[..., :nope], np.stack([k_rope] * H)], axis=-1)
    mixed, _, _ = reference.attend(q[None], k[None], up[None, ..., nope:], causal=True)
    return linear(tensors, f"{attention}.o_proj", np.concatenate(mixed[0], axis=1))


def logits_by_loops(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], ids: list[int]
) -> np.ndarray:
    """A DeepSeek model in float64, written from the paper against the names in the checkpoint."""
    eps = config["rms_norm_eps"]
    x = tensors["model.embed_tokens.weight"][ids].astype(np.float64)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        normed = norm(tensors, f"{prefix}.input_layernorm", x, eps)
        x = x + attention_by_loops(config, tensors, f"{prefix}.self_attn", normed)
        normed = norm(tensors, f"{prefix}.post_attention_layernorm", x, eps)
        gate = linear(tensors, f"{prefix}.mlp.gate_proj", normed)
        gate = gate / (1 + np.exp(-gate)) * linear(tensors, f"{prefix}.mlp.up_proj", normed)
        x = x + linear(tensors, f"{prefix}.mlp.down_proj", gate)
    x = norm(tensors, "model.norm", x, eps)
    head = tensors["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return x @ head.T.astype(np.float64)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("deepseek_v3", {}),
        ("deepseek_v3", {"q_lora_rank": None}),
        ("deepseek_v3", {"rope_interleave": False}),
        ("deepseek_v3", {"attention_bias": True, "tie_word_embeddings": True}),
        ("deepseek_v3", {"attention_bias": True, "q_lora_rank": None}),
        ("deepseek_v3", {"num_attention_heads": 1, "v_head_dim": 19, "kv_lora_rank": 3}),
        ("deepseek_v3", {"rms_norm_eps": 0.1}),
        ("deepseek_v2", {}),
        ("deepseek_v2", {"q_lora_rank": None, "mlp_bias": True, "rope_interleave": False}),
    ],
    ids=str,
)
def test_logits_are_those_of_the_formula_in_loops(
    tmp_path: Path, kind: str, changes: dict[str, Any], backend: Any
):
    if backend == "compiled" and not is_compiled():
        pytest.skip("this machine cannot run the kernels")
    config = config_of(kind, **changes)
    tensors = random_tensors(config)
    with use_backend(backend):
        got = loaded(tmp_path, config, tensors).logits(np.array(IDS))
    np.testing.assert_allclose(got, logits_by_loops(config, tensors, IDS), rtol=0, atol=2e-5)


# With a cache


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [[29], [1] * 29, [10, 1, 1, 17]], ids=str)
@pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")
def test_a_cached_text_has_the_bits_of_one_computed_anew(tmp_path: Path, kind: str, chunks: list[int]):
    model = tiny(tmp_path, kind)
    ids = np.random.default_rng(0).integers(0, 101, 29)
    cache, logits, start = new_cache(model), [], 0
    for chunk in chunks:
        logits.append(model.logits(ids[start : start + chunk], cache))
        start += chunk
    np.testing.assert_array_equal(np.concatenate(logits), model.logits(ids))


def test_rows_of_a_padded_batch_are_what_they_are_alone(tmp_path: Path):
    model = tiny(tmp_path)
    ids, mask = np.zeros((2, 9), int), np.zeros((2, 9), bool)
    ids[0, 2:], mask[0, 2:] = IDS, True
    ids[1, :3], mask[1, :3] = IDS[:3], True
    cache = new_cache(model, batch_size=2)
    for logits in (model.logits(ids, None, mask), model.logits(ids, cache, mask)):
        np.testing.assert_allclose(logits[0, 2:], model.logits(np.array(IDS)), rtol=0, atol=1e-5)
        np.testing.assert_allclose(logits[1, :3], model.logits(np.array(IDS[:3])), rtol=0, atol=1e-5)
    assert cache.lengths == (7, 3)
    following = model.next_logits(np.array([[9], [IDS[3]]]), cache)
    np.testing.assert_allclose(following[1], model.next_logits(np.array(IDS[:4])), rtol=0, atol=1e-5)


def test_a_token_costs_its_latent_and_the_rotated_part_in_each_layer(tmp_path: Path):
    model = tiny(tmp_path)
    assert model.cache_shape == CacheShape(3, 1, 11 + 4, value_dim=11, shares_values=True)
    assert model.cache_shape.bytes_per_token == 3 * 15 * 4
    assert model.context_length == 97
    cache = new_cache(model, batch_size=5)
    model.logits(np.zeros((5, 17), int), cache)
    assert cache.nbytes == cache.predict_nbytes(17) == 5 * 32 * 180


class WatchedCache(ContiguousCache):
    """Keeps the keys it was given, by layer."""

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self.keys: dict[int, list[np.ndarray]] = {}

    def append(self, layer: int, k: Any, v: Any, lengths: Any = None) -> None:
        self.keys.setdefault(layer, []).append(k[0, 0])
        super().append(layer, k, v, lengths)


def test_what_is_cached_is_the_normed_latent_and_behind_it_the_rotated_part(tmp_path: Path):
    config = config_of(num_hidden_layers=1, first_k_dense_replace=1)
    tensors = random_tensors(config)
    model = loaded(tmp_path, config, tensors)
    cache = WatchedCache(model.cache_shape)
    model.logits(np.array(IDS[:4]), cache)
    model.logits(np.array(IDS[4:]), cache)
    x = tensors["model.embed_tokens.weight"][IDS].astype(np.float64)
    normed = norm(tensors, "model.layers.0.input_layernorm", x, config["rms_norm_eps"])
    expected = np.concatenate(keys_by_loops(config, tensors, "model.layers.0.self_attn", normed), axis=1)
    np.testing.assert_allclose(np.concatenate(cache.keys[0]), expected, rtol=0, atol=1e-5)


def test_a_cache_of_another_shape_is_refused(tmp_path: Path):
    model = tiny(tmp_path)
    for shape in (CacheShape(3, 1, 15), CacheShape(3, 3, 11), CacheShape(3, 1, 15, value_dim=7)):
        with pytest.raises(ShapeError, match="the cache takes k and v"):
            model.logits(np.array(IDS), ContiguousCache(shape))


# Positions


def test_positions_act_through_the_rotary_part_alone(tmp_path: Path):
    """Without it the last token sees the others as a set: their order changes nothing."""
    config = config_of(num_hidden_layers=1, first_k_dense_replace=1)
    tensors = random_tensors(config)
    with_rotary = loaded(tmp_path / "with", config, tensors)
    tensors["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"][11:] = 0
    without = loaded(tmp_path / "without", config, tensors)
    one, other = np.array([3, 97, 42, 7]), np.array([42, 3, 97, 7])
    np.testing.assert_allclose(without.next_logits(one), without.next_logits(other), rtol=0, atol=1e-5)
    assert np.abs(with_rotary.next_logits(one) - with_rotary.next_logits(other)).max() > 1e-2


def test_neighbours_are_pairs_unless_the_config_says_otherwise(tmp_path: Path):
    def logits(name: str, kind: str = "deepseek_v3", **changes: Any) -> np.ndarray:
        return tiny(tmp_path / name, kind, **changes).logits(np.array(IDS))

    neighbours = logits("left out")
    np.testing.assert_array_equal(logits("true", rope_interleave=True), neighbours)
    np.testing.assert_array_equal(logits("v2", "deepseek_v2"), neighbours)
    np.testing.assert_array_equal(logits("v2, false", "deepseek_v2", rope_interleave=False), neighbours)
    halves = logits("false", rope_interleave=False)
    np.testing.assert_array_equal(logits("null", rope_interleave=None), halves)
    assert np.abs(halves - neighbours).max() > 1e-2


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 1.0),
        (YARN, (0.1 * 0.7 * math.log(4) + 1) ** 2),
        ({**YARN, "mscale": 0}, (0.1 * 0.7 * math.log(4) + 1) ** 2),
        ({**YARN, "mscale_all_dim": 0}, 1.0),
        ({**YARN, "mscale_all_dim": None}, 1.0),
        ({**YARN, "factor": 1.0}, 1.0),
        ({**YARN, "factor": 0.5}, 1.0),
        ({"type": "linear", "factor": math.e, "mscale_all_dim": 2}, 1.44),
        ({"type": "default", "factor": 4.0, "mscale_all_dim": 2}, 1.0),
    ],
    ids=str,
)
def test_the_scale_is_that_of_a_whole_head_and_of_mscale_squared(
    scaling: dict[str, Any] | None, expected: float
):
    config = DeepSeekConfig.from_dict(config_of(rope_scaling=scaling))
    assert config.scale == pytest.approx(expected / math.sqrt(7 + 4), rel=1e-12)


# Configs


def published(**changes: Any) -> dict[str, Any]:
    """What DeepSeek-V2-Lite's config.json says, as far as it matters here, of dense layers."""
    sizes = {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944}
    attention = {
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    return {"model_type": "deepseek_v2", **sizes, **attention, **changes}


def refusal(config: Mapping[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        DeepSeekConfig.from_dict(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_routed_experts": 64, "first_k_dense_replace": 1}, "of 27 those from first_k_dense_replace = 1"),
        ({"n_routed_experts": 64, "first_k_dense_replace": 26}, "n_routed_experts = 64"),
        ({"n_routed_experts": 64}, "first_k_dense_replace = 0"),
        ({"n_routed_experts": 256, "model_type": "deepseek_v3"}, "first_k_dense_replace = 3"),
    ],
    ids=str,
)
def test_mixtures_of_experts_are_refused_in_one_line(changes: dict[str, Any], named: str):
    message = refusal(published(**changes))
    assert message.startswith("config.json: every layer must be dense")
    assert named in message


def test_a_mixture_of_experts_is_refused_before_a_tensor_is_read(tmp_path: Path):
    folder = write_folder(tmp_path, config_of(first_k_dense_replace=2), {"w": np.ones(3)})
    with pytest.raises(CheckpointError, match="every layer must be dense"):
        load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_routed_experts": 64, "first_k_dense_replace": 27},
        {"n_routed_experts": None, "first_k_dense_replace": 1},
        {"n_routed_experts": 0},
        {},
    ],
    ids=str,
)
def test_dense_layers_are_run_whatever_is_said_of_experts(changes: dict[str, Any]):
    assert DeepSeekConfig.from_dict(published(**changes)).L == 27


def test_a_query_latent_that_is_null_is_none_and_one_left_out_is_the_documented_one():
    config = published()
    assert DeepSeekConfig.from_dict(config).query_latent_size is None
    del config["q_lora_rank"]
    assert DeepSeekConfig.from_dict(config).query_latent_size == 1536


def test_sizes_left_out_are_the_documented_ones():
    named = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    config = {name: value for name, value in published().items() if name not in named}
    read = DeepSeekConfig.from_dict(config)
    assert (read.latent_size, read.nope_size, read.rope_size, read.value_size) == (512, 128, 64, 128)
    assert (read.context_length, read.norm_eps, read.tied) == (2048, 1e-6, False)
    assert DeepSeekConfig.from_dict({**config, "model_type": "deepseek_v3"}).context_length == 4096


def test_only_v2_has_biases_in_its_mlp():
    biased = published(mlp_bias=True)
    assert DeepSeekConfig.from_dict(biased).mlp_bias
    assert not DeepSeekConfig.from_dict({**biased, "model_type": "deepseek_v3"}).mlp_bias


def test_a_head_size_beside_the_parts_of_a_head_is_not_its_size():
    """Saved configs carry head_dim = qk_rope_head_dim, and a number of key heads there is no use for."""
    config = DeepSeekConfig.from_dict(published(head_dim=64, qk_head_dim=192, num_key_value_heads=16))
    assert config.scale == pytest.approx(192**-0.5)
    assert config.rotary.size == 64


@pytest.mark.parametrize(
    "name",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "max_position_embeddings",
        "first_k_dense_replace",
        "n_routed_experts",
        "num_nextn_predict_layers",
    ],
)
@pytest.mark.parametrize("wrong", ["64", 64.0, True, -1, [64]], ids=str)
def test_a_size_that_is_no_size_is_refused_by_its_name(name: str, wrong: Any):
    assert name in refusal(published(**{name: wrong}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_interleave": 1, "model_type": "deepseek_v3"}, "rope_interleave must be true or false"),
        ({"attention_bias": "no"}, "attention_bias"),
        ({"mlp_bias": 0}, "mlp_bias"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"hidden_act": "relu"}, "hidden_act must be one of"),
        ({"qk_rope_head_dim": 63}, "even size, not 63"),
        ({"qk_rope_head_dim": 0}, "qk_rope_head_dim"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({"rope_scaling": {**YARN, "mscale_all_dim": "1"}}, "mscale_all_dim"),
        ({"rope_scaling": {**YARN, "type": "su"}}, "rotary scaling must be one of"),
    ],
    ids=str,
)
def test_a_config_that_says_what_cannot_be_run_is_refused(changes: dict[str, Any], named: str):
    assert named in refusal(published(**changes))


# Every tensor in its place


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": None}], ids=str)
def test_every_tensor_of_the_checkpoint_changes_the_logits(tmp_path: Path, changes: dict[str, Any]):
    config = config_of("deepseek_v2", attention_bias=True, mlp_bias=True, **changes)
    tensors = random_tensors(config)
    before = loaded(tmp_path, config, tensors).logits(np.array(IDS))
    for name in tensor_shapes(config):
        changed = {**tensors, name: tensors[name] + np.float32(0.5)}
        after = loaded(tmp_path, config, changed).logits(np.array(IDS))
        assert np.abs(after - before).max() > 1e-2, name


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": None}], ids=str)
def test_no_tensor_may_be_missing_or_of_another_shape(tmp_path: Path, changes: dict[str, Any]):
    config = config_of(num_hidden_layers=1, first_k_dense_replace=1, **changes)
    tensors = random_tensors(config)
    for name, tensor in tensors.items():
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        with pytest.raises(CheckpointError) as caught:
            loaded(tmp_path, config, rest)
        assert f" {name} " in str(caught.value)
        larger = np.zeros([n + 1 for n in tensor.shape], np.float32)
        with pytest.raises(CheckpointError) as caught:
            loaded(tmp_path, config, {**tensors, name: larger})
        assert all(str(shape) in str(caught.value) for shape in (tensor.shape, larger.shape))


def test_layers_that_predict_later_tokens_are_no_part_of_the_model(tmp_path: Path):
    config = config_of(num_nextn_predict_layers=1)
    tensors = random_tensors(config)
    extra = {f"model.layers.3.{name}.weight": np.ones(23, np.float32) for name in ("enorm", "eh_proj")}
    with_extra = loaded(tmp_path / "with", config, tensors | extra)
    without = loaded(tmp_path / "without", config, tensors)
    np.testing.assert_array_equal(with_extra.logits(np.array(IDS)), without.logits(np.array(IDS)))
    # Nothing else goes unnoticed: not a layer behind them, and not one whose number begins alike.
    for name in ("model.layers.4.enorm.weight", "model.layers.30.enorm.weight"):
        with pytest.warns(CheckpointWarning, match=name):
            loaded(tmp_path / name, config, tensors | extra | {name: np.ones(23, np.float32)})


def test_old_files_rotary_buffers_are_no_parameters(tmp_path: Path):
    config = config_of()
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32) for i in range(3)}
    assert loaded(tmp_path, config, random_tensors(config) | buffers).config.L == 3


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
    ("query_latent", "expected"),
    [
        (None, {"q_proj": (3072, 2048)}),
        (1536, {"q_a_proj": (1536, 2048), "q_b_proj": (3072, 1536)}),
    ],
)
def test_projections_have_the_rows_of_the_published_models(
    query_latent: int | None, expected: dict[str, tuple[int, int]]
):
    small = {"vocab_size": 2, "intermediate_size": 2, "num_hidden_layers": 1, "q_lora_rank": query_latent}
    checkpoint = ShapesOnly(published(**small))
    with use_backend("numpy"):
        DeepSeek.from_checkpoint(checkpoint)
    expected |= {"kv_a_proj_with_mqa": (576, 2048), "kv_b_proj": (4096, 512), "o_proj": (2048, 2048)}
    prefix = "model.layers.0.self_attn."
    asked = {name.split(".")[4]: shape for name, shape in checkpoint.asked.items() if name.startswith(prefix)}
    assert {name: shape for name, shape in asked.items() if name.endswith(("proj", "mqa"))} == expected
