"""Start one compiled worker per thread.

A worker is a compiled function of two integers: the address of a call's words, and which worker it
is. All of them start from the one parallel loop here, by address: a loop of their own would have
the compiler go through each worker's code several times over.
"""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange, types
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.memory import instruction

LINE_NUMBERS = 16
"""Float32 numbers in one line of the cache."""

LINE_BYTES = 4 * LINE_NUMBERS

SIGNATURE = (types.int64, types.int64)


def launch(worker: Any, call: NDArray[np.int64], num_workers: int) -> None:
    """Run ``num_workers`` shares of a call and wait for all.

    Parameters
    ----------
    worker : compiled function
        Takes the address of ``call`` and its own number.
    call : (words,) int64
    num_workers : int
    """
    if num_workers == 1:
        worker(address(call), 0)
    else:
        _start_all(code_address(worker), address(call), num_workers)


def address(array: NDArray[Any]) -> int:
    """Return where an array's data begins."""
    return array.__array_interface__["data"][0]


def addresses(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each part of an array along its first axis begins."""
    first, step = address(array), array.strides[0]
    return np.arange(first, first + len(array) * step, step)


@cache
def code_address(worker: Any) -> int:
    """Compile a worker and return where its code begins, for `run_at`."""
    worker.compile(SIGNATURE)
    result = worker.overloads[SIGNATURE]
    return result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)


@instruction
def run_at(typing_context: Any, code: Any, call: Any, number: Any) -> Any:
    """Run the worker whose code begins at an address; its code does not become part of the caller's."""
    signature = types.void(types.intp, types.intp, types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        # The wrapper that other languages call returns None as a null pointer.
        worker_type = ir.FunctionType(ir.IntType(8).as_pointer(), [ir.IntType(64)] * 2)
        builder.call(builder.inttoptr(arguments[0], worker_type.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return signature, write


@compiled(parallel=True)
def _start_all(code: int, call: int, num_workers: int) -> None:
    for number in prange(num_workers):
        run_at(code, call, number)
