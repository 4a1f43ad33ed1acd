"""How long do the threads of each library hold their cores after a call?

`qkv bench` waits them out before each run. Prints the CPU time that this process takes in each 20 ms
after a call, in ms: with two threads, about 20 while one looks out for work.
"""

import statistics
import time

import numpy as np

from qkv import attend
from qkv.bench.attention_work import AttentionCall
from qkv.bench.onnxruntime_peer import onnxruntime_ways
from qkv.bench.torch_peer import torch_ways

STEP_SECONDS, STEPS, CALLS = 0.02, 10, 5


def cpu_after(run):
    run()
    seconds = []
    for _ in range(STEPS):
        before = time.process_time()
        time.sleep(STEP_SECONDS)
        seconds.append(time.process_time() - before)
    return seconds


if __name__ == "__main__":
    call = AttentionCall(1, 8, 8, 512, 512, 64)
    q, k, v = call.draw()
    matrix = np.ones((1024, 1024), np.float32)
    runs = {"qkv": lambda: attend(q, k, v), "NumPy": lambda: matrix @ matrix}
    runs |= {way.name: way.run for way in torch_ways(call, q, k, v) + onnxruntime_ways(call, q, k, v)}
    for name, run in runs.items():
        run()
        steps = zip(*(cpu_after(run) for _ in range(CALLS)), strict=True)
        print(f"{name:12}", *(f"{1e3 * statistics.median(step):5.1f}" for step in steps))
