"""Views of attention of a small random model, or of maps made up by hand."""

from dataclasses import replace
from functools import cache

import numpy as np

from qkv.lab.maps import Maps, block_starts, read_maps
from qkv.lab.random_models import random_llama
from qkv.viz.attention import AttentionView

L, H, G = 3, 6, 2
CONTEXT = 211


@cache
def model():
    return random_llama(np.random.default_rng(5), E=36, L=L, H=H, G=G, context_length=CONTEXT, V=13)


@cache
def view_of(length=23, text="a text"):
    """A random model's view of random tokens, called t0, t1, ..."""
    ids = np.random.default_rng(6).integers(0, 13, length)
    read = read_maps(model(), ids, delimiters=lambda model: (2, 5))
    return AttentionView(model(), "made-up", text, tuple(f"t{t}" for t in range(length)), read)


def previous_head(view, layer, head, share=0.75):
    """The same view, in which one head is called previous."""
    shares = {name: np.full(view.maps.shape, even) for name, even in view.maps.even.items()}
    shares["previous"][layer, head] = share
    return replace(view, maps=replace(view.maps, shares=shares))


def made_up_maps(num_layers, num_heads, num_kv_heads, length=16):
    """Maps of even attention, as many as asked for, every head diffuse."""
    even = np.tri(length) / np.tri(length).sum(axis=-1, keepdims=True)
    names = ("previous", "first", "local")
    return Maps(
        np.arange(length),
        block_starts(length, 64),
        np.broadcast_to(even, (num_layers, num_heads, length, length)),
        num_kv_heads,
        {name: np.full((num_layers, num_heads), 0.25) for name in names},
        dict.fromkeys(names, 0.25),
        np.ones((num_layers, num_heads)),
        np.zeros((num_layers, num_heads)),
    )


def view_of_many(num_layers, num_heads, num_kv_heads):
    maps = made_up_maps(num_layers, num_heads, num_kv_heads)
    return AttentionView(model(), "many", "a text", tuple(f"t{t}" for t in range(16)), maps)
