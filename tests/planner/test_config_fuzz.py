"""Damaged configs: a clear error or a marked bound, never a traceback, never a smaller number."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import PlanError
from qkv.planner import find_model
from qkv.planner.catalogue import catalogue

REMOVED = object()


ONE_OF_EACH_TYPE = {entry["config"]["model_type"]: entry["config"] for entry in catalogue().values()}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


DAMAGE = {
    "removed": REMOVED,
    "null": None,
    "negative": -1,
    "zero": 0,
    "huge": 10**30,
    "larger than can be printed": 10**6000,
    "text": "many",
    "long text": "x" * 100_000,
    "fraction": 1.5,
    "not a number": float("nan"),
    "true": True,
    "list": [],
    "object": {},
    "deeply nested": nested(3000),
}


def paths(config: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from paths(value, (*before, name))


def damaged(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config)
    section = result
    for name in path[:-1]:
        section = section[name]
    if value is REMOVED:
        del section[path[-1]]
    else:
        section[path[-1]] = value
    return result


def check_is_safe(config: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    whole = find_model(config)
    try:
        memory = find_model(damaged(config, path, value))
    except PlanError as error:
        assert 10 < len(str(error)) < 400, path
        return
    for tokens in (1, 4096, 131_072):
        kept, needed = (2 * m.numbers(tokens) + m.state_bytes for m in (memory, whole))
        assert kept >= needed, (path, tokens, memory.notes)


@pytest.mark.parametrize("kind", DAMAGE)
def test_no_damage_to_a_known_config_makes_its_cache_smaller(kind):
    for config in ONE_OF_EACH_TYPE.values():
        for path in paths(config):
            check_is_safe(config, path, DAMAGE[kind])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = sorted({path[-1] for entry in catalogue().values() for path in paths(entry["config"])})


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(FIELD_NAMES) | st.text(max_size=9), JUNK, max_size=9))
def test_any_object_is_a_model_or_a_clear_error(config):
    try:
        memory = find_model(config)
    except PlanError as error:
        assert len(str(error)) < 400
    else:
        assert memory.numbers(100) >= 0


@settings(max_examples=100)
@given(st.sampled_from(sorted(catalogue())), st.data())
def test_several_damages_at_once_never_end_in_a_traceback(name, data):
    config = catalogue()[name]["config"]
    for path in data.draw(
        st.lists(st.sampled_from([p for p in paths(config) if len(p) == 1]), max_size=3, unique=True)
    ):
        config = damaged(config, path, data.draw(JUNK))
    try:
        find_model(config)
    except PlanError as error:
        assert len(str(error)) < 400


@pytest.mark.parametrize("config", [None, [], "llama", 7, {}, {"model_type": None}, {"model_type": 3}])
def test_what_is_no_config_at_all_is_refused(config):
    with pytest.raises(PlanError):
        find_model(config)


def test_a_section_that_holds_itself_is_refused():
    config: dict[str, Any] = {"model_type": "llama"}
    config["text_config"] = config
    with pytest.raises(PlanError, match="inside each other"):
        find_model(config)
