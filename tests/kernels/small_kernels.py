"""A program of small kernels, run as a process of its own: ``python small_kernels.py WHAT``."""

import json
import multiprocessing
import sys
import threading
from typing import Any

import numpy as np

from qkv.kernels.compiler import cache_folder, compiled
from qkv.kernels.host import num_threads, set_num_threads
from qkv.kernels.memory import at
from qkv.kernels.micro import tile_product

# isort: split
from numba import get_num_threads, prange  # after qkv, which says how many threads to be ready for

ROWS, DEPTH, WIDTH = 7, 5, 4


def scaled(factor):
    @compiled()
    def scale(x):
        return x * factor

    @compiled(parallel=True)
    def scale_all(x, y):
        for i in prange(len(x)):
            y[i] = scale(x[i])

    return scale_all


def multiplied(vectors):
    product: Any = tile_product(1, vectors, WIDTH, adds=False)

    @compiled(parallel=True)
    def multiply(a, b, c):
        depth, columns = b.shape
        for row in prange(a.shape[0]):
            product(at(a, row * depth), depth, 1, at(b, 0), columns, at(c, row * columns), columns, depth)

    return multiply


@compiled(parallel=True)
def count_threads(counts):
    for i in prange(len(counts)):
        counts[i] = get_num_threads()


double, triple, multiply = scaled(2.0), scaled(3.0), multiplied(2)


def results():
    """Return what the kernels make of 0, 1, 2, ..., as numbers a reader can check."""
    x = np.arange(11.0)
    doubles, triples = np.empty(11), np.empty(11)
    double(x, doubles)
    triple(x, triples)
    return [doubles.tolist(), triples.tolist(), products().tolist()]


def products():
    rng = np.random.default_rng(3)
    a = rng.normal(size=(ROWS, DEPTH)).astype(np.float32)
    b = rng.normal(size=(DEPTH, 2 * WIDTH)).astype(np.float32)
    c = np.full((ROWS, 2 * WIDTH), np.nan, np.float32)
    multiply(a, b, c)
    return c


def count():
    counts = np.zeros(13, np.int64)
    count_threads(counts)
    return {"chosen": num_threads(), "used": counts.tolist()}


def same_bits():
    """Return the products' bits with 3, 2 and 1 threads."""
    found = []
    for number in (3, 2, 1):
        set_num_threads(number)
        found.append(products().tobytes().hex())
    return found


def from_threads(number=5, rounds=40):
    """Run the kernels from several Python threads at once."""
    found = []
    work = [
        threading.Thread(target=lambda: found.extend(results() for _ in range(rounds))) for _ in range(number)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    return found


def in_children(number, work):
    """Return what forked children make, None for one that dies or hangs."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=lambda: queue.put(work())) for _ in range(number)]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout=20)
        child.kill()
        child.join()
    return [queue.get() if child.exitcode == 0 else None for child in children]


def forked():
    """Run the kernels, then in forked children while a thread of the parent is at work."""
    results()
    busy, stop = threading.Event(), threading.Event()

    def work():
        while not stop.is_set():
            results()
            busy.set()

    thread = threading.Thread(target=work)
    thread.start()
    busy.wait()
    found = in_children(3, lambda: from_threads(2, 1))
    stop.set()
    thread.join()
    return [*found, [results()]]


def forked_first():
    """Run the kernels in a forked child, then here."""
    return [*in_children(1, lambda: [results(), count()]), results()]


def folder():
    return str(cache_folder())


if __name__ == "__main__":
    json.dump(globals()[sys.argv[1]](), sys.stdout)
