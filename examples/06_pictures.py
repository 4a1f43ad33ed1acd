"""Pictures of a KV cache: tokens that come and go, pages that texts share, and what each policy costs."""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

import qkv
from qkv.cache import PagePool, PrefixIndex
from qkv.engine import compare
from qkv.viz.pages import page_map
from qkv.viz.pages_picture import draw_pages, pages_inches
from qkv.viz.pages_terminal import page_table
from qkv.viz.strategies import strategies_figure
from qkv.viz.timeline import draw_timeline, record, timeline_inches

console = Console()
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
model = qkv.load()
tokenizer = model.tokenizer
assert tokenizer is not None
PROMPT = "HAMLET.\nTo be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer"
ids = tokenizer.encode(PROMPT)


def write(cache, max_tokens):
    """Let the model write on from the prompt; each item is a piece of text, and a step of the cache."""
    return qkv.generate(model, PROMPT, cache=cache, max_tokens=max_tokens, temperature=0.7, seed=5)


def save(figure, name):
    """Write a picture, and say so."""
    figure.savefig(folder / name, dpi=110)
    console.print(f"see {folder / name}", highlight=False)


# 1. Each key head keeps about 32 tokens, those that got most attention: which, step by step?
cache = qkv.new_cache(model, "h2o=32,page=8")
timeline = record(write(cache, 90), cache)
figure = Figure(figsize=timeline_inches(timeline), layout="constrained")
draw_timeline(timeline, figure.add_subplot())
same = np.sum(np.equal(timeline.nbytes, timeline.predicted_nbytes))
console.print(f"bytes measured as predicted at {same} of {timeline.num_steps} steps")
save(figure, "timeline.png")

# 2. Texts in one pool: one that begins as the first did, and a fork of the first.
pool = PagePool(budget_bytes=320 * 1024)
index = PrefixIndex(pool, page_size=8)


def read(text):
    """Let the model read a text, with the pages of the longest beginning that was read before."""
    cache = qkv.new_cache(model, "page=8", pool=pool)
    known = cache.adopt_prefix(index, text)
    model.next_logits(text[known:], cache)
    cache.remember_prefix(index, text)
    return cache, known


read(tokenizer.encode("Once more unto the breach, dear friends, once more"))[0].free()  # its pages stay idle
first, _ = read(ids)
alike, known = read(ids[:-12] + tokenizer.encode(" to sleep, to dream", add_special_tokens=False))
caches = {"first": first, "begins alike": alike, "fork of first": first.fork()}
shared = page_map(caches, layer=3, head=1)

# Whoever writes to a page that others hold too gets a copy of his own. All pages before it stay shared.
for _ in range(8):
    model.next_logits(ids[-1:], caches["fork of first"])
written = page_map(caches, layer=3, head=1, before=shared)
console.print(
    f"\n'begins alike' found {known} of its {alike.length} tokens computed; the fork has written 8:\n"
)
console.print(page_table(written, console.width))
width, height = pages_inches(written)
figure = Figure(figsize=(width, 2 * height), layout="constrained")
for moment, axes in zip((shared, written), figure.subplots(2, 1), strict=True):
    draw_pages(moment, axes)
save(figure, "pages.png")

# 3. All policies read what the full cache writes: what do they still hold, and how far off are they?
policies = ["int8", "window=32", "streaming=32", "h2o=32", "tova=32", "knorm=32", "snapkv=16"]
save(strategies_figure(compare(model, PROMPT, policies, max_tokens=90)), "strategies.png")
