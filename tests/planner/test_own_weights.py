"""What a loaded model's weights take, planned from its config and then counted: the same bytes."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiny_deepseek
import tiny_models
from qkv import PlanError, load, plan, use_backend
from qkv.models.weights import FORMS, weight_nbytes
from qkv.ops.backend import is_compiled
from qkv.planner.engines.own_weights import (
    HeldWeights,
    held_weights,
    matrix_nbytes,
    with_loaded_weights,
)
from qkv.planner.sources import find_model

VARIANTS = {
    "llama": {},
    "llama, tied, with biases": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "gpt2": {},
    "gpt2, untied": {"tie_word_embeddings": False},
    "deepseek_v2": {"attention_bias": True, "mlp_bias": True},
    "deepseek_v3": {},
    "deepseek_v3, tied, queries without a latent": {"q_lora_rank": None, "tie_word_embeddings": True},
    "deepseek_v3, with biases": {"attention_bias": True, "q_lora_rank": None},
}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def write(folder, variant, dtype="float32", **more):
    """A random model on disk, whose config says of what type its weights are."""
    kind, changes = variant.split(",")[0], {"torch_dtype": dtype, **VARIANTS[variant], **more}
    family = tiny_deepseek if kind.startswith("deepseek") else tiny_models
    config = family.config_of(kind, **changes)
    return tiny_models.write_folder(folder, config, family.random_tensors(config), dtype=DTYPES[dtype])


def planned(model, form=None):
    """The bytes of a model's weights, and what the planner says of them."""
    loaded = with_loaded_weights(find_model(model), form)
    assert loaded.weight_bytes is not None
    return loaded.weight_bytes, loaded.notes


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_loaded_model_holds_the_bytes_that_were_planned(tmp_path, variant):
    for dtype in DTYPES:
        folder = write(tmp_path / dtype, variant, dtype)
        config = json.loads((folder / "config.json").read_text())
        forms: tuple[Any, ...] = tuple(FORMS) if dtype == "bfloat16" else ("as stored",)
        for form in forms:
            held = weight_nbytes(load(folder, form))
            assert planned(folder, form) == planned(config, form) == (held, ()), (dtype, form)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_the_kernels_all_of_them_are_float32(tmp_path, variant):
    folder = write(tmp_path, variant, "bfloat16")
    with use_backend("numpy"):
        forms = {planned(folder, form)[0] for form in FORMS}
        assert forms == {weight_nbytes(load(folder))} == {weight_nbytes(load(folder, "int8"))}


def test_they_are_what_a_plan_takes_off_the_memory(tmp_path):
    folder = write(tmp_path / "model", "qwen3", "bfloat16")
    forms: tuple[Any, ...] = tuple(FORMS)
    for form in forms:
        made = plan(folder, context=64, engine="qkv", memory="1MiB", weights=form)
        assert made.memory is not None
        assert made.memory.weights == weight_nbytes(load(folder, form)) == planned(folder, form)[0]


def test_the_bytes_of_a_matrix_are_its_panels_and_scales():
    # 3 rows fill a panel of 16, 35 inner steps two groups of 32, each with a float32 scale per row.
    matrix, columns = (3, 35), panel_columns()
    expected: dict[Any, int] = {
        "float32": columns * 35 * 4,
        "bfloat16": columns * 35 * 2,
        "int8": columns * (35 + 2 * 4),
    }
    if not is_compiled():
        expected = dict.fromkeys(expected, 3 * 35 * 4)
    assert {form: matrix_nbytes(matrix, form) for form in expected} == expected
    assert HeldWeights((matrix, matrix), numbers=7).nbytes("int8") == 2 * expected["int8"] + 28


def panel_columns():
    from qkv.kernels.host import HOST_TILE

    return HOST_TILE.columns


def test_maps_that_read_the_same_vector_lie_in_the_same_panels():
    # Q of 6 x 14 numbers with K and V of 2 x 14 each; gate and up of 37 each.
    matrices = held_weights(tiny_models.config_of("llama")).matrices
    assert matrices[:4] == ((84 + 2 * 28, 23), (23, 84), (74, 23), (23, 37))


def test_a_half_of_them_is_counted_only_where_the_file_or_the_config_says_so(tmp_path):
    half = write(tmp_path / "half", "llama", "bfloat16", torch_dtype=None)
    assert planned(half) == (weight_nbytes(load(half)), ())
    weights, notes = planned(json.loads((half / "config.json").read_text()))
    assert weights == weight_nbytes(load(half, "float32"))
    assert notes == ("the config does not say in which type weights are stored: counted in float32",)


def test_matrices_of_several_types_are_bounded_from_above(tmp_path):
    config = tiny_models.config_of("llama")
    tensors = tiny_models.random_tensors(config)
    tensors = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()}
    tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.float32)
    folder = tmp_path / "mixed"
    tiny_models.write_folder(folder, config, {})
    tiny_models.save_file(tensors, folder / "model.safetensors")
    weights, notes = planned(folder)
    assert weights == weight_nbytes(load(folder, "float32")) >= weight_nbytes(load(folder))
    assert "upper bound" in notes[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [("gemma-2-2b", "model_type 'gemma2'"), ("deepseek-v2-lite", "mixtures"), ("mixtral-8x7b", "'mixtral'")],
)
def test_a_model_that_qkv_does_not_run_is_said_to_be_one_and_estimated(name, why):
    weights, notes = planned(name)
    assert len(notes) >= 1 and "qkv does not run this model" in notes[-1] and why in notes[-1]
    numbers = find_model(name).num_parameters
    assert numbers is not None and 2 * numbers <= weights <= 2.01 * numbers
    assert 1.125 * numbers <= planned(name, "int8")[0] <= 1.13 * numbers
    assert planned(name, "float32")[0] >= 4 * numbers


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "deepseek_v3"])
def test_a_damaged_config_is_an_estimate_or_a_clear_error(kind):
    family = tiny_deepseek if kind.startswith("deepseek") else tiny_models
    config = family.config_of(kind, torch_dtype="bfloat16", rope_scaling={"type": "linear", "factor": 2.0})
    for name in config:
        for value in (None, 0, -1, 10**30, "x" * 1000, 1.5, float("nan"), True, [], {}):
            try:
                loaded = with_loaded_weights(find_model({**config, name: value}), None)
            except PlanError:
                continue
            assert all(len(note) < 400 for note in loaded.notes), (name, value)


def test_codes_in_the_folder_are_none_of_the_forms():
    config = tiny_models.config_of(
        "llama", torch_dtype="bfloat16", quantization_config={"quant_method": "gptq"}
    )
    assert "the weights are codes" in planned(config)[1][0]


def test_a_damaged_folder_is_told_from_a_whole_one(tmp_path):
    folder = write(tmp_path / "model", "llama")
    (folder / "model.safetensors").write_bytes(b"not a tensor")
    weights, notes = planned(folder)
    assert weights > 0 and "expected a whole safetensors file" in notes[0]


def test_bytes_are_taken_at_their_word(tmp_path):
    made = plan(write(tmp_path / "model", "llama"), context=64, engine="qkv", memory="1MiB", weights="12KiB")
    assert made.memory is not None and made.memory.weights == 12 * 1024


@pytest.mark.parametrize("engine", ["ideal", "vllm", "llama.cpp", "transformers"])
def test_other_engines_are_not_asked_for_a_form(engine):
    with pytest.raises(PlanError, match="engine qkv alone"):
        plan("llama-3-8b", context=64, engine=engine, weights="int8")


def test_llama_3_8b_is_its_parameters_in_two_bytes_but_for_norms_and_padding():
    weights, notes = planned("llama-3-8b")
    assert notes == ()
    norms = (2 * 32 + 1) * 4096
    matrices = 8_030_261_248 - norms  # every size is a whole number of panels, up to 32 columns
    assert weights == (2 * matrices if is_compiled() else 4 * matrices) + 4 * norms
