"""A config being read: its fields, what its family fills in, and what had to be assumed."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qkv.errors import PlanError
from qkv.models.config import ConfigFields
from qkv.planner.families import Family


@dataclass(frozen=True)
class Reading:
    """The fields of one model, and the remarks that reading them gives rise to.

    A note says what was filled in from the model's class; a bound says why the figure may be too large.
    """

    fields: ConfigFields
    family: Family
    notes: list[str] = field(default_factory=list)
    bounds: list[str] = field(default_factory=list)

    @property
    def num_layers(self) -> int:
        """L, always from the file."""
        return self.fields.integer("num_hidden_layers")

    @property
    def num_heads(self) -> int:
        """H."""
        if self._leaves_out_heads:
            assert self.family.heads is not None
            return self.family.heads[0]
        return self.fields.integer("num_attention_heads")

    def num_kv_heads(self, layer: int) -> int:
        """Return G of a layer: as the file says, which may be a list, else as the class says, else H."""
        if not self.family.grouped:
            return self.num_heads
        if self.kv_heads_by_layer is not None:
            return self.kv_heads_by_layer[layer]
        if self.fields.holds("num_key_value_heads"):
            return self.fields.integer("num_key_value_heads")
        if self._leaves_out_heads:
            assert self.family.heads is not None
            self.note(f"the file names no heads: {self.family.heads[1]} key heads, as its class has")
            return self.family.heads[1]
        self.note("num_key_value_heads is not in the file: one for every query head")
        return self.num_heads

    @cached_property
    def kv_heads_by_layer(self) -> list[int] | None:
        """G of each layer where the file lists it; 0 where a layer has no attention."""
        listed = self.fields.values.get("num_key_value_heads")
        if not isinstance(listed, list):
            return None
        if len(listed) != self.num_layers or not all(type(G) is int and 0 <= G <= 100_000 for G in listed):
            raise PlanError(
                f"config.json: num_key_value_heads must list an integer for each of {self.num_layers} layers"
            )
        return listed

    @property
    def head_dim(self) -> int:
        """D: as the file says, else as the class says, else E / H."""
        fields = self.fields
        if fields.holds("head_dim"):
            return fields.integer("head_dim")
        if self.family.head_dim is not None:
            self.note(f"head_dim is not in the file: {self.family.head_dim}, as its class has")
            return self.family.head_dim
        width, num_heads = fields.integer("hidden_size"), self.num_heads
        if self.family.widened_head_dim > width / num_heads:
            self.bound(f"head_dim is not in the file: counted as {self.family.widened_head_dim}")
            return self.family.widened_head_dim
        if width % num_heads:
            raise PlanError(
                f"config.json: hidden_size {width} is no multiple of num_attention_heads {num_heads}, "
                "and there is no head_dim"
            )
        return width // num_heads

    def of_layer(self, layer: int) -> "Reading":
        """Return the reading of one layer, whose ``per_layer_config`` may say otherwise than the file."""
        changes = self._changes_by_layer.get(layer)
        if not changes:
            return self
        fields = ConfigFields({**self.fields.values, **changes})
        return Reading(fields, self.family, self.notes, self.bounds)

    @cached_property
    def _changes_by_layer(self) -> dict[int, dict[str, Any]]:
        changes: dict[int, dict[str, Any]] = {}
        for layer, fields in self.fields.section("per_layer_config").items():
            is_index = str(layer).isascii() and str(layer).isdigit() and len(str(layer)) < 9
            if not is_index or int(layer) >= self.num_layers or not isinstance(fields, dict):
                raise PlanError("config.json: per_layer_config must hold an object for each layer it names")
            changes[int(layer)] = fields
        return changes

    def note(self, remark: str) -> None:
        """Remember what the reader of a plan should know."""
        if remark not in self.notes:
            self.notes.append(remark)

    def bound(self, reason: str) -> None:
        """Remember why the figure is an upper bound."""
        if reason not in self.bounds:
            self.bounds.append(reason)

    @property
    def _leaves_out_heads(self) -> bool:
        names = ("num_attention_heads", "num_key_value_heads")
        return self.family.heads is not None and not any(self.fields.holds(name) for name in names)
