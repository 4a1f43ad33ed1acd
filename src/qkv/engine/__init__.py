"""Run a model: from a prompt to a stream of text."""

from qkv.engine.generation import Generation, generate

__all__ = ["Generation", "generate"]
