"""Which code runs the float32 arithmetic of NumPy arrays: compiled kernels, or NumPy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Literal, get_args

from qkv.errors import OptionError

Backend = Literal["numpy", "compiled"]

DISABLE_VARIABLE = "QKV_DISABLE_COMPILED"
"""Set to 1, everything runs on NumPy."""

_chosen: ContextVar[Backend | None] = ContextVar("chosen", default=None)


@contextmanager
def use_backend(name: Backend) -> Iterator[None]:
    """Run NumPy float32 arithmetic by the compiled kernels or by NumPy, for a while.

    Parameters
    ----------
    name : "numpy" or "compiled"

    Raises
    ------
    OptionError
        If the name is another, or this machine cannot run the kernels.

    Examples
    --------
    >>> with use_backend("numpy"):
    ...     is_compiled()
    False
    """
    if name not in get_args(Backend):
        raise OptionError(f"a backend is 'numpy' or 'compiled', not {name!r}")
    if name == "compiled" and not can_compile():
        raise OptionError("this machine cannot run the compiled kernels: it has no fused multiply-add")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_compiled() -> bool:
    """Whether the compiled kernels are in use: yes, unless turned off or not to be had."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen == "compiled"
    return not _is_disabled() and can_compile()


@cache
def _is_disabled() -> bool:
    """Whether the environment turns the kernels off; read once, for a decode step asks hundreds of times."""
    return os.environ.get(DISABLE_VARIABLE, "") not in ("", "0")


@cache
def can_compile() -> bool:
    """Whether this machine can run the kernels."""
    from qkv.kernels.host import is_supported  # the compiler is loaded when it is first needed

    return is_supported()
