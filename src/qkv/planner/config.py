"""From config.json to what each layer keeps."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.errors import CheckpointError, PlanError
from qkv.models.config import ConfigFields
from qkv.planner.attention import attention_layer, encoder_decoder_layers
from qkv.planner.families import UNSEEN_STATE_WORDS, Family
from qkv.planner.kinds import layer_kinds
from qkv.planner.layers import LayerGroup, ModelMemory, StateGroup, gathered
from qkv.planner.parameters import count_parameters, weight_bytes
from qkv.planner.reading import Reading
from qkv.planner.recurrence import STATES
from qkv.planner.section import family_of, language_section

OTHER_PARTS = ("vision_config", "audio_config", "vision_tower")
"""Sections of models that see or hear."""

LONGEST_ERROR = 300
"""Characters; a field may hold a text of any length."""


def read_model(config: Mapping[str, Any], name: str = "") -> ModelMemory:
    """Work out what a model keeps per token and layer from its config.json.

    Parameters
    ----------
    config : mapping
        What the file holds.
    name : str
        What to call the model; its type when left out.

    Returns
    -------
    ModelMemory
        Exact for the model types that are known. For another type with keys and values alone, every
        layer is counted in full and ``bounds`` says so.

    Raises
    ------
    PlanError
        If the fields that decide the size are missing or have no meaning, or the type is unknown and
        keeps something else than keys and values.

    Examples
    --------
    DeepSeek-V3 keeps 512 + 64 numbers per layer and token, whatever its number of key heads says:

    >>> sizes = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128}
    >>> latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    >>> read_model({"model_type": "deepseek_v3", **sizes, **latent}).numbers(1)
    35136
    """
    section = language_section(config)
    reading = Reading(ConfigFields(section), family_of(section) or _unknown(section))
    if family_of(section) is None:
        reading.bound(
            f"{section['model_type']!r} is not a model type known here: every layer is counted in full, "
            "with the most key heads and the largest head size the file names"
        )
    if any(part in config for part in OTHER_PARTS):
        reading.note("weights are those of the language model; pictures or sound come on top")
    try:
        return replace(_described(reading, name or section["model_type"]), config=config)
    except CheckpointError as error:
        raise PlanError(str(error)[:LONGEST_ERROR]) from error


def _described(reading: Reading, name: str) -> ModelMemory:
    layers, states = _layers(reading)
    memory = ModelMemory(
        name=name,
        model_type=reading.fields.text("model_type"),
        layers=gathered(layers),
        states=states,
        max_context=_max_context(reading),
        num_query_heads=_size(reading, "num_attention_heads"),
        activation_numbers=_activation_numbers(reading, layers),
        vocab_size=_size(reading, "vocab_size"),
    )
    memory = _weighed(reading, memory)
    return replace(memory, notes=tuple(reading.notes), bounds=tuple(reading.bounds))


def _size(reading: Reading, name: str) -> int:
    """Return a size that a plan can do without: 0 where the file does not say it plainly."""
    stated = reading.fields.values.get(name)
    return stated if type(stated) is int and stated > 0 else 0


def _activation_numbers(reading: Reading, layers: list[LayerGroup]) -> int:
    """Two copies of the residual, queries and output, keys and values, gate and feed-forward inside."""
    E, F = _size(reading, "hidden_size"), _size(reading, "intermediate_size")
    queries = _size(reading, "num_attention_heads") * max((layer.key_dim for layer in layers), default=0)
    return (
        2 * E + 2 * queries + max((layer.numbers_per_token for layer in layers), default=0) + 2 * (F or 4 * E)
    )


def _weighed(reading: Reading, memory: ModelMemory) -> ModelMemory:
    """Add what the weights take, where the config says enough about them."""
    parameters = count_parameters(reading, memory)
    if parameters is None:
        return memory
    return replace(
        memory,
        num_parameters=parameters.total,
        active_parameters=parameters.active,
        weight_bytes=weight_bytes(parameters, reading.fields),
    )


def _layers(reading: Reading) -> tuple[list[LayerGroup], tuple[StateGroup, ...]]:
    structure = reading.family.structure
    if structure == "encoder":
        raise PlanError(f"{reading.fields.text('model_type')} reads all tokens at once and keeps no KV cache")
    if structure in ("encoder-decoder", "speech"):
        return encoder_decoder_layers(reading), ()
    kinds = layer_kinds(reading)
    attention = [
        attention_layer(reading, layer, kind)
        for layer, kind in enumerate(kinds)
        if kind not in ("state", "nothing")
    ]
    return attention, _states(reading, kinds)


def _states(reading: Reading, kinds: list[str]) -> tuple[StateGroup, ...]:
    family = reading.family
    count = kinds.count("state") + kinds.count("both")
    if not count:
        return ()
    if family.state is None:
        raise PlanError(
            f"config.json names layers with a recurrent state, whose size is not known "
            f"for model type {reading.fields.text('model_type')!r}"
        )
    state = STATES[family.state](reading.fields)
    reading.note("recurrent states are counted in float32; an engine may keep them in 16 bits")
    return (replace(state, count=count),)


def _max_context(reading: Reading) -> int | None:
    fields, longest = reading.fields, []
    for name in ("max_position_embeddings", "model_max_length", "max_target_positions"):
        value = fields.values.get(name)
        if type(value) is int and 0 < value <= 2**40:
            longest.append(value)
    return max(longest, default=reading.family.max_context)


def _unknown(section: Mapping[str, Any]) -> Family:
    """Refuse a type that seems to keep more than keys and values; any other can be bounded."""
    telling = [name for name in section if any(word in name for word in UNSEEN_STATE_WORDS)]
    if section.get("is_encoder_decoder") is True or "decoder_layers" in section:
        telling.append("is_encoder_decoder")
    if telling:
        raise PlanError(
            f"{section['model_type']!r} is not a model type known here, and {telling[0]} says that it keeps "
            "more than keys and values, so not even a bound can be given"
        )
    return Family("unknown")
