"""How engines lay out their caches: each in a file, all behind the same three verbs.

``read`` a cache setting, name the ``candidates`` worth comparing, and say what one ``demand``s.
"""

from collections.abc import Callable, Mapping

from qkv.errors import PlanError
from qkv.planner.engines.ideal import Ideal
from qkv.planner.engines.llama_cpp import LlamaCpp
from qkv.planner.engines.transformers import Transformers
from qkv.planner.engines.vllm import VLLM
from qkv.planner.strategies import Engine


def _own() -> Engine:
    from qkv.planner.engines.own import Own  # with it come the caches and NumPy, which the others do without

    return Own()


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "ideal": Ideal,
    "qkv": _own,
    "vllm": VLLM,
    "llama.cpp": LlamaCpp,
    "transformers": Transformers,
}
"""What makes each engine, by its name."""


def engine_named(name: str) -> Engine:
    """Return an engine by name.

    Raises
    ------
    PlanError
        If there is none of that name.
    """
    if not isinstance(name, str) or name not in ENGINES:
        raise PlanError(f"an engine is one of {', '.join(ENGINES)}, not {repr(name)[:40]}")
    return ENGINES[name]()
