"""Every well-known model, to the byte; and what the catalogue promises."""

import json
from pathlib import Path

import pytest

from known_models import KEPT_BYTES, LENGTHS, PARAMETERS
from qkv import PlanError, plan
from qkv.planner import find_model
from qkv.planner.catalogue import catalogue, catalogue_name

FACTS = Path(__file__).parents[3] / "shared" / "facts" / "kv_models.json"


@pytest.mark.parametrize("hub_id", KEPT_BYTES)
def test_a_published_model_keeps_exactly_its_bytes(hub_id):
    kept = tuple(plan(hub_id, context=length).bytes for length in LENGTHS)
    assert kept == KEPT_BYTES[hub_id]
    assert not find_model(hub_id).bounds


@pytest.mark.skipif(not FACTS.is_file(), reason="the collection of configurations is not there")
def test_the_files_as_published_give_the_same():
    for model in json.loads(FACTS.read_text("utf-8")):
        for length, expected in model["expected_bytes_bf16"].items():
            assert plan(model["config"], context=int(length)).bytes == expected, (model["id"], length)


def test_every_model_of_the_catalogue_is_exact():
    for name in catalogue():
        memory = find_model(name)
        assert memory.numbers(1) > 0 and not memory.bounds, name


def test_a_model_is_found_by_short_name_and_hub_id_in_any_case():
    assert catalogue_name("META-LLAMA/meta-llama-3-8b") == catalogue_name("Llama-3-8B") == "llama-3-8b"


@pytest.mark.parametrize("name", PARAMETERS)
def test_weights_are_estimated_within_a_thousandth(name):
    estimated = find_model(name).num_parameters
    assert estimated is not None
    assert abs(estimated / PARAMETERS[name] - 1) < 1e-3


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_bytes_of_weights_are_never_too_few(name):
    memory = find_model(name)
    stored_bits = {"deepseek-v3": 8, "gpt-oss-120b": 4.25}.get(name, 16)
    assert memory.weight_bytes is not None
    assert memory.weight_bytes >= PARAMETERS[name] * stored_bits / 8


def test_a_misspelt_name_is_told_the_nearest_ones():
    with pytest.raises(PlanError, match="llama-3-8b"):
        plan("lama-3-8b")


def test_an_experts_model_works_with_few_of_its_weights():
    # Mixtral: 2 of 8 experts on each token, 12.9 of 46.7 billion weights.
    memory = find_model("mixtral-8x7b")
    assert memory.active_parameters is not None
    assert round(memory.active_parameters / 1e9, 1) == 12.9
