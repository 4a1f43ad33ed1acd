"""Bytes before anything runs: what a model's KV cache takes under any strategy, and what to choose."""

from qkv.planner.estimate import plan
from qkv.planner.layers import LayerGroup, ModelMemory, StateGroup
from qkv.planner.result import Plan
from qkv.planner.sources import find_model

__all__ = ["LayerGroup", "ModelMemory", "Plan", "StateGroup", "find_model", "plan"]
