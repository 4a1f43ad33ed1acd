"""The language model's fields of a config.json: found where a file nests them, under today's names."""

from collections.abc import Mapping
from typing import Any

from qkv.errors import PlanError
from qkv.planner.families import FAMILIES, LANGUAGE_SECTIONS, SECTION_TYPES, SPELLINGS, Family

DEEPEST = 4
"""How many sections, lists and objects may lie inside each other."""

LARGEST = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "max_position_embeddings": 2**40,
}
LONGEST_TYPE = 80
"""Characters of a model type."""

LARGEST_SIZE = 2**28
"""No width, head size or rank comes near this."""

DEFAULT_LANGUAGE_MODEL = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    }
}
"""The sizes of a nested model none of whose sizes are written down (LLaVA 1.5 7B)."""


def language_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the part that generates text, each under its present name.

    Parameters
    ----------
    config : mapping
        What a config.json holds.

    Returns
    -------
    dict
        With ``model_type``. Fields that are ``null`` are left out, but for the windows, where null
        says that there is none.

    Raises
    ------
    PlanError
        If there is no model type, two spellings of a field disagree, or a size is beyond any model's.

    Examples
    --------
    >>> section = language_section({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768})
    >>> section["num_hidden_layers"], section["hidden_size"]
    (12, 768)
    """
    if not isinstance(config, Mapping):
        raise PlanError(f"expected config.json to hold an object, found {_kind(config)}")
    section = _innermost(config)
    _check_shape(section)
    _check_sizes(section)
    return _respelled(section)


def family_of(section: Mapping[str, Any]) -> Family | None:
    """Return what is known of a section's model type; ``None`` if it is not known."""
    return FAMILIES.get(section["model_type"])


def _innermost(config: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    if depth > DEEPEST:
        raise PlanError(f"config.json: more than {DEEPEST} sections inside each other hold a language model")
    outer_type = config.get("model_type")
    if outer_type is not None and type(outer_type) is not str:
        raise PlanError(f"config.json: model_type must be a string, not {_kind(outer_type)}")
    name = next((name for name in LANGUAGE_SECTIONS if isinstance(config.get(name), Mapping)), None)
    if name is None or outer_type in ("t5", "bart"):
        return {**config, "model_type": _type_of(config, outer_type)}
    inner = dict(config[name])
    inner.setdefault("model_type", SECTION_TYPES.get(outer_type or "", outer_type))
    for shared in ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config"):
        if shared in config:
            inner.setdefault(shared, config[shared])
    return _innermost(_completed(inner), depth + 1)


def _type_of(config: Mapping[str, Any], model_type: str | None) -> str:
    if model_type is None:
        raise PlanError(
            "config.json lacks model_type, which says how its layers keep keys and values; "
            "add it, such as llama or qwen2"
        )
    if len(model_type) > LONGEST_TYPE:
        raise PlanError(f"config.json: model_type is a name, not a text of {len(model_type):,} characters")
    return SECTION_TYPES.get(model_type, model_type)


def _completed(inner: dict[str, Any]) -> dict[str, Any]:
    """Fill in the sizes of a nested model that writes down none of them: then its class's are meant."""
    model_type = inner.get("model_type")
    defaults = DEFAULT_LANGUAGE_MODEL.get(model_type, {}) if isinstance(model_type, str) else {}
    return inner if any(name in inner for name in defaults) else {**defaults, **inner}


def _respelled(section: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in section.items() if value is not None or "window" in name}
    for name, others in SPELLINGS.items():
        given = {other: fields[other] for other in (name, *others) if fields.get(other) is not None}
        if given and name not in fields:
            fields[name] = next(iter(given.values()))
        if name in LARGEST and name != "max_position_embeddings" and len(set(map(str, given.values()))) > 1:
            said = ", ".join(f"{other} = {_shown(value)}" for other, value in given.items())
            raise PlanError(f"config.json says the same thing twice and differently: {said}")
    return fields


def _check_shape(section: Mapping[str, Any]) -> None:
    """Refuse what no config holds, and what could not even be shown in an error."""
    level: list[object] = list(section.values())
    for _ in range(DEEPEST):
        for value in level:
            if type(value) is int and value.bit_length() > 64:
                raise PlanError(f"config.json holds {_shown(value)}, beyond any model's")
        level = [inner for value in level for inner in _inside(value)]
    if level:
        raise PlanError(f"config.json holds more than {DEEPEST} lists or objects inside each other")


def _inside(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_sizes(section: Mapping[str, Any]) -> None:
    names = {other: name for name, others in SPELLINGS.items() for other in others}
    for name, value in section.items():
        largest = LARGEST.get(names.get(name, name), None if "token" in name else LARGEST_SIZE)
        is_size = name in SPELLINGS or name in names or name.endswith(("_dim", "_rank", "_size", "_window"))
        if is_size and type(value) is int and largest is not None and abs(value) > largest:
            raise PlanError(f"config.json: {name} is {_shown(value)}, beyond any model's ({largest:,})")


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    """Return a value in a few characters, however large it is."""
    if type(value) is int and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
