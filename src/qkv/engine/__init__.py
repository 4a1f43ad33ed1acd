"""Run a model: from a prompt to a stream of text, many at once, and beside itself with other caches."""

from qkv.engine.compared import Comparison
from qkv.engine.comparison import compare
from qkv.engine.engine import Engine
from qkv.engine.generation import Generation, generate
from qkv.engine.stream import Stream

__all__ = ["Comparison", "Engine", "Generation", "Stream", "compare", "generate"]
