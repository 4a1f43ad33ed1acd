"""Many calls in one go: threads start once, and go from call to call without coming back to Python.

A decode step of a model is some hundreds of short calls, one after the other, always the same ones. Here
they are written down once. A call is cut into shares, which threads *take* as they come to it: one atomic
addition each. A thread that finds none left waits until all are done, and goes on to the next call. So one
thread that is late, or never comes, holds up nobody: the others do its shares. Who does a share changes no
bit of it.

The ladder, a Llama of 30 layers with weights of a few kilobytes, so that nothing but the way is measured;
a decode step on one thread, least of 500, both in turn:

==========================================================  ======
version                                                     time
==========================================================  ======
each call from Python: `qkv.models.llama` with any cache    5.7x
a program: `qkv.kernels.decode_step`                        1.0x
==========================================================  ======

On two threads the way counts for more: each call that wakes a thread by itself takes some microseconds.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange, types
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.host import num_threads
from qkv.kernels.launch import address, code_address, run_at
from qkv.kernels.memory import instruction, integer_at

Words = NDArray[np.int64]

CODE, WORDS, SHARES, TAKEN, DONE, YIELD = range(6)
"""What a record says of a call: its worker's code, its words, how many shares there are, were taken and
are done, and the code that lets another thread have the core."""

RECORD_WORDS = 8
LINE_BYTES = 8 * RECORD_WORDS
"""A record is a line of the cache, so that threads that wait for one call disturb nobody else."""

SPINS = 2000
"""How often a thread looks whether a call is done before it lets others have its core: some microseconds."""


class Call(NamedTuple):
    """A worker, its words and how many shares to cut its work into.

    Attributes
    ----------
    worker : compiled function
        Takes the address of the words and the number of a share.
    words : (words,) int64
    shares : int
        0 leaves the call out.
    """

    worker: Any
    words: Words
    shares: int


class Program:
    """Calls to be run in order, as often as one likes.

    What a call's words say may change between two runs, and so may its shares.

    Parameters
    ----------
    calls : sequence of Call

    Attributes
    ----------
    shares : (calls,) int64
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = tuple(calls)
        self._records = _in_lines(len(self._calls))
        for record, call in zip(self._records, self._calls, strict=True):
            record[CODE], record[WORDS] = code_address(call.worker), address(call.words)
            record[SHARES], record[YIELD] = call.shares, _yielding_code()
        self.shares: Words = self._records[:, SHARES]
        self._address = address(self._records)

    def run(self) -> None:
        """Run every call, one after the other; when this returns, all are done."""
        self._records[:, TAKEN : DONE + 1] = 0
        _follow_all(self._address, len(self._records), num_threads())


@compiled(parallel=True)
def _follow_all(records: int, count: int, num_workers: int) -> None:
    for _ in prange(num_workers):
        _follow(records, count)


@compiled()
def _follow(records: Any, count: Any) -> None:
    for number in range(count):
        record = records + number * LINE_BYTES
        shares, done = integer_at(record, SHARES), record + 8 * DONE
        share = add_atomically(record + 8 * TAKEN, 1)
        while share < shares:
            run_at(integer_at(record, CODE), integer_at(record, WORDS), share)
            add_atomically(done, 1)
            share = add_atomically(record + 8 * TAKEN, 1)
        spins = 0
        while integer_now_at(done) < shares:
            spins += 1
            if spins > SPINS and integer_at(record, YIELD) != 0:
                run_plainly(integer_at(record, YIELD))


@instruction
def add_atomically(typing_context: Any, address: Any, value: Any) -> Any:
    """Add to a 64-bit integer that other threads change too; return what it was before."""
    signature = types.int64(types.intp, types.int64)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "seq_cst")

    return signature, write


@instruction
def integer_now_at(typing_context: Any, address: Any) -> Any:
    """Return a 64-bit integer that other threads change, and see what they wrote before they did."""
    signature = types.int64(types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "seq_cst", 8)

    return signature, write


@instruction
def run_plainly(typing_context: Any, code: Any) -> Any:
    """Call a function of the system that takes nothing, by its address."""
    signature = types.void(types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.IntType(32), []).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), [])
        return context.get_dummy_value()

    return signature, write


def _in_lines(count: int) -> Words:
    """Return records that begin where lines of the cache do."""
    room = np.zeros((count + 1) * RECORD_WORDS, np.int64)
    first = -(address(room) // 8) % RECORD_WORDS
    return room[first : first + count * RECORD_WORDS].reshape(count, RECORD_WORDS)


@cache
def _yielding_code() -> int:
    """Return where the system's function begins that lets another thread have the core; 0 if unknown."""
    try:
        function = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError, TypeError):  # no POSIX system
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
