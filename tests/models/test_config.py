"""A config.json is read field by field: each of the right type, or refused by name in one line."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import CheckpointError
from qkv.models.config import ConfigFields, head_dim_of
from qkv.models.gpt2 import GPT2Config
from qkv.models.llama import LlamaConfig, layer_windows
from qkv.models.loading import FAMILIES, family_of
from qkv.ops.mlp import gelu, gelu_tanh, silu
from tiny_models import CONFIGS, config_of

CONFIG_TYPES = {"gpt2": GPT2Config}


def read(config: dict[str, Any]) -> LlamaConfig | GPT2Config:
    return CONFIG_TYPES.get(config["model_type"], LlamaConfig).from_dict(config)


def read_llama(kind: str = "llama", **changes: Any) -> LlamaConfig:
    return LlamaConfig.from_dict(config_of(kind, **changes))


def read_gpt2(**changes: Any) -> GPT2Config:
    return GPT2Config.from_dict(config_of("gpt2", **changes))


def refusal(config: dict[str, Any]) -> str:
    """The one line with which a config is refused."""
    with pytest.raises(CheckpointError) as caught:
        read(config)
    message = str(caught.value)
    assert message.startswith("config.json")
    assert "\n" not in message
    return message


def without(config: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != name}


# Sizes


def test_llama_sizes_are_those_of_the_config():
    config = read_llama()
    assert (config.V, config.E, config.F, config.L) == (101, 23, 37, 3)
    assert (config.H, config.G, config.D) == (6, 2, 14)
    assert (config.context_length, config.norm_eps, config.rotary.theta) == (97, 1e-5, 1000.0)


def test_gpt2_sizes_are_those_of_the_config():
    config = read_gpt2(layer_norm_epsilon=1e-3)
    assert (config.V, config.E, config.F, config.L, config.H) == (101, 21, 31, 3, 3)
    assert (config.context_length, config.norm_eps) == (67, 1e-3)
    assert config.scales == (7**-0.5,) * 3


def test_a_gpt2_config_of_nothing_is_the_smallest_published_gpt2():
    config = GPT2Config.from_dict({"model_type": "gpt2"})
    assert (config.V, config.E, config.F, config.L, config.H) == (50257, 768, 3072, 12, 12)
    assert (config.context_length, config.norm_eps, config.tied) == (1024, 1e-5, True)
    assert config.scales == (0.125,) * 12


@pytest.mark.parametrize(
    ("E", "H", "G", "head_dim", "D"),
    [(5120, 32, 8, 128, 128), (2560, 32, 8, 128, 128), (3072, 16, 16, 256, 256), (5120, 32, 8, None, 160)],
)
def test_the_head_size_is_the_stated_one_and_only_else_width_over_heads(
    E: int, H: int, G: int, head_dim: int | None, D: int
):
    sizes = {"hidden_size": E, "num_attention_heads": H, "num_key_value_heads": G, "head_dim": head_dim}
    config = read_llama(**sizes)
    assert config.D == D
    assert config.rotary.size == D
    assert len(config.rotary.at(1).frequencies) == D // 2


def test_an_absent_head_size_is_as_one_that_is_null():
    config = without(config_of("llama", hidden_size=36), "head_dim")
    assert LlamaConfig.from_dict(config).D == read_llama(hidden_size=36, head_dim=None).D == 6


def test_without_key_heads_every_query_head_has_its_own():
    assert LlamaConfig.from_dict(without(config_of("llama"), "num_key_value_heads")).G == 6


def test_a_width_that_heads_do_not_divide_is_refused_unless_their_size_is_stated():
    assert head_dim_of(ConfigFields({"head_dim": 4}), 23, 6) == 4
    assert "hidden_size 23" in refusal(config_of("llama", head_dim=None))
    assert "n_embd 23" in refusal(config_of("gpt2", n_embd=23))


def test_query_heads_that_key_heads_do_not_divide_are_refused():
    assert "num_key_value_heads 4" in refusal(config_of("llama", num_key_value_heads=4))


# Switches


@pytest.mark.parametrize("changes", [{}, {"attention_bias": None}, {"attention_bias": False}], ids=str)
def test_qwen2_has_biases_on_q_k_and_v_only_whether_or_not_its_config_says_so(changes: dict[str, Any]):
    config = read_llama("qwen2", **changes)
    assert (config.qkv_bias, config.out_bias) == (True, False)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_other_models_have_attention_biases_where_the_config_says_so(kind: str):
    plain, biased = read_llama(kind), read_llama(kind, attention_bias=True)
    assert (plain.qkv_bias, plain.out_bias) == (False, False)
    assert (biased.qkv_bias, biased.out_bias) == (True, True)


def test_mlp_biases_are_there_where_the_config_says_so():
    assert [read_llama(mlp_bias=flag).mlp_bias for flag in (None, False, True)] == [False, False, True]


def test_only_qwen3_norms_its_heads():
    assert {kind: read_llama(kind).head_norms for kind in CONFIGS if kind != "gpt2"} == {
        "llama": False,
        "mistral": False,
        "qwen2": False,
        "qwen3": True,
    }


def test_llama_ties_its_head_only_if_told_and_gpt2_unless_told():
    untold = without(config_of("llama"), "tie_word_embeddings")
    assert not LlamaConfig.from_dict(untold).tied
    assert [read_llama(tie_word_embeddings=flag).tied for flag in (True, False)] == [True, False]
    assert [read_gpt2(tie_word_embeddings=flag).tied for flag in (None, True, False)] == [True, True, False]


def test_activations_are_those_named():
    assert read_llama().activation is silu
    assert read_llama(hidden_act="gelu_pytorch_tanh").activation is gelu_tanh
    named = {
        "gelu_new": gelu_tanh,
        "gelu_pytorch_tanh": gelu_tanh,
        "gelu": gelu,
        "silu": silu,
        None: gelu_tanh,
    }
    for name, activation in named.items():
        assert read_gpt2(activation_function=name).activation is activation


@pytest.mark.parametrize(
    "config", [config_of("llama", hidden_act="relu2"), config_of("gpt2", activation_function="")]
)
def test_an_unknown_activation_is_refused_with_the_known_ones(config: dict[str, Any]):
    assert "silu" in refusal(config)


def test_gpt2_scales_its_scores_as_told():
    assert read_gpt2(scale_attn_weights=False).scales == (1.0, 1.0, 1.0)
    by_depth = read_gpt2(scale_attn_by_inverse_layer_idx=True).scales
    assert by_depth == pytest.approx((7**-0.5, 7**-0.5 / 2, 7**-0.5 / 3))


# Windows


def windows(kind: str, L: int = 4, **fields: Any) -> tuple[int | None, ...]:
    return layer_windows(ConfigFields({"model_type": kind, "num_hidden_layers": L, **fields}))


@pytest.mark.parametrize(
    ("uses", "max_window_layers", "num_full"), [(False, 21, 28), (True, 21, 21), (True, 28, 28), (True, 0, 0)]
)
def test_qwen_windows_its_upper_layers_if_it_uses_windows_at_all(
    uses: bool, max_window_layers: int, num_full: int
):
    for kind in ("qwen2", "qwen3"):
        got = windows(
            kind, 28, sliding_window=4096, use_sliding_window=uses, max_window_layers=max_window_layers
        )
        assert got == (None,) * num_full + (4096,) * (28 - num_full)


def test_qwen_uses_no_window_unless_told():
    assert windows("qwen2", sliding_window=8, max_window_layers=0) == (None,) * 4


def test_layer_types_go_before_the_number_of_full_layers():
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    fields = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4, "layer_types": kinds}
    assert windows("qwen3", **fields) == (8, None, 8, None)


def test_mistral_windows_every_layer():
    assert windows("mistral", sliding_window=8) == (8, 8, 8, 8)


@pytest.mark.parametrize("window", [None, 0, -1])
def test_a_window_of_null_or_nothing_is_none(window: int | None):
    assert windows("mistral", sliding_window=window) == (None,) * 4


def test_a_window_that_is_left_out_is_the_one_the_model_type_documents():
    assert windows("mistral") == (4096,) * 4
    assert windows("qwen2", 30, use_sliding_window=True) == (None,) * 28 + (4096,) * 2


def test_llama_has_no_window():
    assert windows("llama", sliding_window=8, use_sliding_window=True) == (None,) * 4


@pytest.mark.parametrize("window", ["8", 8.0, True, [8]], ids=str)
def test_a_mistyped_window_is_refused(window: Any):
    assert "sliding_window" in refusal(config_of("mistral", sliding_window=window))


@pytest.mark.parametrize(
    "kinds",
    [
        ["full_attention"] * 2,
        ["full_attention"] * 4,
        ["full_attention", "linear_attention", "full_attention"],
        [1, None, []],
    ],
    ids=["short", "long", "unknown", "junk"],
)
def test_layer_types_must_name_a_known_kind_for_every_layer(kinds: list[Any]):
    for kind in ("mistral", "qwen2"):
        assert "layer_types" in refusal(config_of(kind, layer_types=kinds))


# What is refused


REQUIRED = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
INTEGERS = {
    "llama": [*REQUIRED, "num_key_value_heads", "head_dim", "max_position_embeddings"],
    "qwen2": [*REQUIRED, "num_key_value_heads", "head_dim", "max_position_embeddings"],
    "gpt2": ["vocab_size", "n_embd", "n_head", "n_layer", "n_inner", "n_positions"],
}
NUMBERS = {"llama": ["rms_norm_eps", "rope_theta"], "gpt2": ["layer_norm_epsilon"]}
FLAGS = {
    "llama": ["attention_bias", "mlp_bias", "tie_word_embeddings"],
    "qwen2": ["use_sliding_window"],
    "gpt2": ["tie_word_embeddings", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"],
}


def fields_of(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(kind, name) for kind, names in table.items() for name in names]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_refused_by_name(name: str):
    for config in (without(config_of("llama"), name), config_of("llama", **{name: None})):
        assert refusal(config) == f"config.json lacks {name}, which must be a positive integer"


@pytest.mark.parametrize(("kind", "name"), fields_of(INTEGERS))
@pytest.mark.parametrize("value", [0, -1, 6.0, "6", True, [6], {}], ids=str)
def test_an_integer_field_takes_a_positive_integer(kind: str, name: str, value: Any):
    assert refusal(config_of(kind, **{name: value})) == (
        f"config.json: {name} must be a positive integer, not {value!r}"
    )


@pytest.mark.parametrize(("kind", "name"), fields_of(NUMBERS))
@pytest.mark.parametrize("value", [0, -1e-6, math.nan, math.inf, 10**400, "1e-5", False, [1.0]], ids=repr)
def test_a_number_field_takes_a_positive_number(kind: str, name: str, value: Any):
    assert f"{name} must be a positive number" in refusal(config_of(kind, **{name: value}))


@pytest.mark.parametrize(("kind", "name"), fields_of(FLAGS))
@pytest.mark.parametrize("value", [0, 1, "true", []], ids=repr)
def test_a_flag_takes_true_or_false(kind: str, name: str, value: Any):
    assert (
        refusal(config_of(kind, **{name: value}))
        == f"config.json: {name} must be true or false, not {value!r}"
    )


@pytest.mark.parametrize(
    "config", [config_of("llama", hidden_act=3), config_of("gpt2", activation_function=[])]
)
def test_a_text_field_takes_a_string(config: dict[str, Any]):
    assert "must be a string" in refusal(config)


def test_an_odd_head_size_cannot_be_turned():
    assert "even size, not 7" in refusal(config_of("llama", head_dim=7))


def test_an_unknown_scaling_is_refused_by_name():
    assert "'longrope'" in refusal(config_of("llama", rope_scaling={"type": "longrope", "factor": 2.0}))


def test_numbers_may_be_written_as_integers():
    assert ConfigFields({"rope_theta": 10000}).number("rope_theta") == 10000.0


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma", "phi3", "LLAMA", "mixtral", ""])
def test_an_unknown_model_type_is_refused_with_the_known_ones(kind: str):
    with pytest.raises(CheckpointError) as caught:
        family_of({"model_type": kind})
    known = "deepseek_v2, deepseek_v3, gpt2, llama, mistral, qwen2, qwen3"
    assert str(caught.value) == f"config.json: model_type {kind!r} is not one qkv runs: {known}"


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": 3}], ids=str)
def test_a_config_without_a_model_type_is_refused(config: dict[str, Any]):
    with pytest.raises(CheckpointError, match="model_type"):
        family_of(config)


# Whatever comes

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats() | st.text(max_size=4),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=2)
    ),
    max_leaves=4,
)
rope = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": st.sampled_from(["linear", "dynamic", "llama3", "yarn", "default"]) | json_values,
        "factor": st.just(2.0) | json_values,
        "rope_theta": st.just(100.0) | json_values,
        "low_freq_factor": st.just(1.0) | json_values,
        "high_freq_factor": st.just(4.0) | json_values,
        "full_attention": json_values,
    },
)
windowed = {
    "layer_types": st.lists(st.sampled_from(["full_attention", "sliding_attention"]), max_size=4)
    | json_values,
    "sliding_window": json_values,
    "use_sliding_window": st.booleans() | json_values,
    "max_window_layers": json_values,
}
absent = object()


@st.composite
def mutated_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A valid config in which a few fields are dropped or hold anything else."""
    config = config_of(draw(st.sampled_from(sorted(CONFIGS))))
    special = {"rope_parameters": rope, "rope_scaling": rope, **windowed}
    more = ["attention_bias", "mlp_bias", "hidden_act", "partial_rotary_factor", "activation_function"]
    for name in draw(st.lists(st.sampled_from([*config, *special, *more]), min_size=1, max_size=3)):
        value = draw(special.get(name, json_values) | st.just(absent))
        config = without(config, name) if value is absent else {**config, name: value}
    return config


@settings(deadline=None, max_examples=250)
@given(config=mutated_configs())
def test_any_config_is_read_or_refused_with_one_line(config: dict[str, Any]):
    config = json.loads(json.dumps(config))
    try:
        family_of(config)
        sizes = read(config)
    except CheckpointError as error:
        assert str(error).startswith("config.json")
        assert "\n" not in str(error)
    else:
        assert config["model_type"] in FAMILIES
        assert all(type(size) is int and size > 0 for size in (sizes.V, sizes.E, sizes.F, sizes.L, sizes.H))
        if isinstance(sizes, LlamaConfig):
            assert len(sizes.windows) == sizes.L
            assert all(window is None or window > 0 for window in sizes.windows)
