"""`python -m benchmarks.decoding FOLDER`: qkv beside llama.cpp and transformers, a Llama of 135 M parameters.

Decoding one text in float32, 16-bit and 8-bit weights, reading a prompt of 512 tokens, and eight texts at
once beside one after the other. All in one process, in turn, A B C A B C ...; every figure is the median
over rounds of ratios within a round, in brackets the quartiles. Libraries that are not installed are left
out. The models are written to FOLDER (1.8 GB) where they are not there yet.
"""

import argparse
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from benchmarks.peers import LlamaCpp, Qkv, Transformers
from benchmarks.random_llama import GGUF_KINDS, LARGE, draw, write_folder, write_gguf
from rich.console import Console
from rich.table import Table

from qkv.bench.stopwatch import Spread, Stopwatch, times_as_fast, wait_until_idle
from qkv.bench.tables import format_ratio
from qkv.engine import Engine
from qkv.kernels.host import num_threads
from qkv.models.weights import weight_nbytes

ROUNDS = 5
KINDS = "decode", "prefill", "texts"
PROMPT, NEW = 32, 32
LONG_PROMPT = 512
TEXTS = 8

TARGETS = [
    ("decode", "qkv float32", "llama.cpp f32", 1.0),
    ("decode", "qkv bf16", "llama.cpp f16", 1.0),
    ("decode", "qkv int8", "llama.cpp q8_0", 0.95),
    ("decode", "qkv float32", "transformers float32", 2.5),
    ("prefill", "qkv float32", "llama.cpp f32", 1.2),
    ("prefill", "qkv float32", "transformers float32", 1.2),
    ("8 texts", "at once, float32", "one by one, float32", 3.0),
    ("8 texts", "at once, bf16", "one by one, bf16", 3.0),
    ("8 texts", "at once, int8", "one by one, int8", 3.0),
]


def write_models(folder):
    """Write what is not there: two folders and three GGUF files of the same numbers."""
    folder = Path(folder)
    folders = [kind for kind in ("float32", "bf16") if not (folder / kind / "model.safetensors").exists()]
    files = [kind for kind in GGUF_KINDS if not (folder / f"{kind}.gguf").exists()]
    tensors = draw(LARGE) if folders or files else {}
    for kind in folders:
        write_folder(folder / kind, LARGE, tensors, kind)
    for kind in files:
        write_gguf(folder / f"{kind}.gguf", LARGE, tensors, kind)
    return folder


def load_all(folder, kinds):
    """Return every library's model by its name, as far as something is to be measured of it."""
    float32, small = "qkv float32", {"decode", "texts"} & set(kinds)
    ways = {float32: Qkv(folder / "float32")}
    if small:
        ways |= {"qkv bf16": Qkv(folder / "bf16"), "qkv int8": Qkv(folder / "float32", "int8")}
    if kinds == ["texts"]:
        return ways
    if find_spec("llama_cpp"):
        files = {kind: folder / f"{kind}.gguf" for kind in (GGUF_KINDS if small else ["f32"])}
        ways |= {f"llama.cpp {kind}": LlamaCpp(path, LARGE.context) for kind, path in files.items()}
    if find_spec("transformers") and find_spec("torch"):
        ways["transformers float32"] = Transformers(folder / "float32")
    return ways


def check_alike(ways, ids):
    """Make sure that all run the same model: the float32 ones say the same, the others nearly."""
    expected = ways["qkv float32"].read(ids)
    for name, way in ways.items():
        off = np.abs(way.read(ids) - expected).max() / np.abs(expected).max()
        assert off < (1e-2 if "32" in name else 0.2), f"{name} is off by {off:.1%}"


def time_decoding(ways, ids, rounds):
    """Return seconds per token of each way, for each round."""
    times = {name: [] for name in ways}
    for _ in range(rounds + 1):  # the first is to warm up
        for name, way in ways.items():
            way.begin(ids, NEW)
            wait_until_idle()
            start = time.perf_counter()
            way.follow(NEW)
            times[name].append((time.perf_counter() - start) / NEW)
    return {name: tuple(seconds[1:]) for name, seconds in times.items()}


def time_prefill(ways, ids, rounds):
    return Stopwatch(rounds).time_in_turn({name: partial(way.read, ids) for name, way in ways.items()})


def run_texts(model, prompts, max_batch):
    """Run texts of `NEW` tokens through an engine; nothing is shared between them."""
    engine = Engine(model, max_batch=max_batch, prefix_sharing=False)
    for prompt in prompts:
        engine.submit(prompt, max_tokens=NEW, ignore_eos=True)
    engine.run()


def time_texts(ways, prompts, rounds):
    runs = {}
    for name, way in ways.items():
        weights = name.removeprefix("qkv ")
        runs[f"at once, {weights}"] = partial(run_texts, way.model, prompts, TEXTS)
        runs[f"one by one, {weights}"] = partial(run_texts, way.model, prompts, 1)
    return Stopwatch(rounds).time_in_turn(runs)


def speeds(title, times, num_tokens, nbytes):
    """Return a table of tokens a second, and of how fast weights passed through memory."""
    table = Table(title=title, box=None, title_justify="left", pad_edge=False)
    table.add_column("")
    for name in ("tokens/s", "GB/s of weights"):
        table.add_column(name, justify="right")
    for name, seconds in times.items():
        median = Spread.of(seconds).median
        rate = f"{nbytes[name] / median / 1e9:.1f}" if name in nbytes else ""
        table.add_row(name, f"{num_tokens / median:,.1f}", rate)
    return table


def ratios(times):
    """Return a table of what was to be reached, and what was."""
    table = Table(title="ratios", box=None, title_justify="left", pad_edge=False)
    for name in ("", "", "beside", "times as fast", "at least"):
        table.add_column(name)
    for kind, ours, peer, target in TARGETS:
        if kind in times and ours in times[kind] and peer in times[kind]:
            ratio = times_as_fast(times[kind], ours, peer)
            table.add_row(kind, ours, peer, format_ratio(ratio), f"{target:g}")
    return table


def main():
    parser = argparse.ArgumentParser(description="qkv beside llama.cpp and transformers")
    parser.add_argument("folder", type=Path, help="where the models are, or are written to")
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=f"what to measure: {', '.join(KINDS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="2 or more")
    options = parser.parse_args()
    kinds, rounds, rng = options.kinds, options.rounds, np.random.default_rng(0)
    ways = load_all(write_models(options.folder), kinds)
    ours = {name: way for name, way in ways.items() if isinstance(way, Qkv)}
    nbytes = {name: weight_nbytes(way.model) for name, way in ours.items()}
    check_alike(ways, rng.integers(0, LARGE.V, PROMPT).tolist())
    console, times = Console(width=110), {}
    if "decode" in kinds:
        times["decode"] = time_decoding(ways, rng.integers(0, LARGE.V, PROMPT).tolist(), rounds)
        title = f"one text, {NEW} tokens behind {PROMPT}, {num_threads()} threads"
        console.print(speeds(title, times["decode"], 1, nbytes))
    if "prefill" in kinds:
        float32 = {name: way for name, way in ways.items() if "32" in name}
        times["prefill"] = time_prefill(float32, rng.integers(0, LARGE.V, LONG_PROMPT).tolist(), rounds)
        console.print(speeds(f"a prompt of {LONG_PROMPT} tokens", times["prefill"], LONG_PROMPT, {}))
    if "texts" in kinds:
        prompts = rng.integers(0, LARGE.V, (TEXTS, PROMPT)).tolist()
        times["8 texts"] = time_texts(ours, prompts, rounds)
        title = f"{TEXTS} texts, each {NEW} tokens behind {PROMPT}"
        console.print(speeds(title, times["8 texts"], TEXTS * NEW, {}))
    console.print(ratios(times))


if __name__ == "__main__":
    main()
