"""Run a model: from a prompt to a stream of text, and beside itself with other caches."""

from qkv.engine.compared import Comparison
from qkv.engine.comparison import compare
from qkv.engine.generation import Generation, generate

__all__ = ["Comparison", "Generation", "compare", "generate"]
