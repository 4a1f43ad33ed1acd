"""`python -m benchmarks.serving [--scale N] [--batch N]`: 256 requests at once, beside one after the other.

The scenario of nano-vllm's benchmark: 256 prompts of 100 to 1024 random tokens, each continued by 100 to
1024, temperature 0.6, ends ignored, seed 0, all there from the beginning. The model is a random Llama of
1 million parameters. ``--scale 4`` divides all lengths by 4.
"""

import argparse
import random
import tempfile
import time
from dataclasses import dataclass

import numpy as np
from benchmarks.random_llama import SMALL, draw, write_folder
from rich.console import Console
from rich.table import Table

from qkv.engine import Engine
from qkv.kernels.host import num_threads
from qkv.models import load
from qkv.ops.sampling import Sampling

REQUESTS, SHORTEST, LONGEST = 256, 100, 1024


@dataclass(frozen=True)
class Served:
    """What a run took: seconds, tokens made, and each request's seconds to its first token."""

    seconds: float
    new_tokens: int
    first_tokens: tuple[float, ...]
    preemptions: int

    @property
    def tokens_per_second(self):
        return self.new_tokens / self.seconds


def make_requests(scale):
    """Return prompts and numbers of new tokens, as nano-vllm draws them."""
    random.seed(0)
    low, high = SHORTEST // scale, LONGEST // scale
    prompts = [[random.randrange(SMALL.V) for _ in range(random.randint(low, high))] for _ in range(REQUESTS)]
    return prompts, [random.randint(low, high) for _ in range(REQUESTS)]


def serve(model, prompts, lengths, max_batch):
    engine = Engine(model, max_batch=max_batch)
    start = time.perf_counter()
    streams = [
        engine.submit(prompt, sampling=Sampling(temperature=0.6, seed=0), max_tokens=length, ignore_eos=True)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    engine.run()
    seconds = time.perf_counter() - start
    assert [len(stream.new_ids) for stream in streams] == lengths
    first_tokens = tuple(stream.statistics.seconds_to_first_token for stream in streams)
    return Served(seconds, sum(lengths), first_tokens, engine.statistics.preemptions)


def report(runs, prompts):
    read = sum(map(len, prompts))
    table = Table(title=f"{REQUESTS} requests, {read:,} tokens of prompts, {num_threads()} threads", box=None)
    for name in ("at once", "seconds", "new tokens", "tokens/s", "to the first token, p50", "p99"):
        table.add_column(name, justify="right")
    for max_batch, run in runs.items():
        p50, p99 = np.percentile(run.first_tokens, [50, 99])
        table.add_row(
            str(max_batch), f"{run.seconds:.1f}", f"{run.new_tokens:,}", f"{run.tokens_per_second:,.0f}",
            f"{p50:.2f} s", f"{p99:.2f} s",
        )  # fmt: skip
    return table


def main():
    parser = argparse.ArgumentParser(description="256 requests at once, beside one after the other")
    parser.add_argument("--scale", type=int, default=1, help="divide all lengths by this")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 1], help="how many run at once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = load(write_folder(folder, SMALL, draw(SMALL)))
    prompts, lengths = make_requests(options.scale)
    few = [prompt[:40] for prompt in prompts[:16]]
    runs = {}
    for max_batch in options.batch:
        serve(model, few, [3] * len(few), max_batch)  # to warm up
        runs[max_batch] = serve(model, prompts, lengths, max_batch)
    console = Console(width=110)
    console.print(report(runs, prompts))
    most, least = (runs[options.batch[index]] for index in (0, -1))
    console.print(
        f"{options.batch[0]} at once beside {options.batch[-1]}: "
        f"{most.tokens_per_second / least.tokens_per_second:.2f} times the tokens/s, "
        f"{np.median(least.first_tokens) / np.median(most.first_tokens):.2f} times sooner at the first token"
    )


if __name__ == "__main__":
    main()
