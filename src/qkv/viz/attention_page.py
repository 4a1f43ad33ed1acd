"""The attention of a text as a page: one file that loads nothing, with the numbers it computes from.

The page holds the maps of all heads, pooled for long texts, and the queries, keys and values of as many
heads as a budget allows, the chosen one and those whose maps show most first. What does not fit is named.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from qkv.lab.maps import HeadNumbers, read_heads
from qkv.viz.attention import AttentionView, Head
from qkv.viz.head_names import HEAD_NAMES

TEMPLATE = "attention.html.j2"
MOST_NUMBER_BYTES = 12_000_000
"""What the queries, keys and values may take of the file."""
LARGEST_CODE = 32_767


def attention_html(
    view: AttentionView, chosen: Head | None = None, *, most_bytes: int = MOST_NUMBER_BYTES
) -> str:
    """Return one HTML file that loads nothing from anywhere.

    Parameters
    ----------
    view : AttentionView
    chosen : (layer, head), optional
        The head that it begins with; the one whose map shows most when left out.
    most_bytes : int
        What the queries, keys and values may take.

    Raises
    ------
    OptionError
        If there is no such head.
    """
    environment = Environment(
        loader=PackageLoader("qkv.viz", "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # names stand in their order
    L, H = view.maps.shape
    heads = heads_within(view, chosen, most_bytes)
    return environment.get_template(TEMPLATE).render(
        name=view.name,
        text=view.text,
        title=view.title,
        heads=H,
        shared=H // view.maps.num_kv_heads,
        block=view.maps.block,
        left_out="" if len(heads) == L * H else _left_out(len(heads), L * H),
        data=page_data(view, heads),
    )


def heads_within(view: AttentionView, chosen: Head | None, most_bytes: int) -> list[Head]:
    """Return the heads whose numbers a page holds, the one it begins with first, and always.

    A number takes two bytes, and three bytes are four letters of text. Keys and values are held once for all
    heads that share them.
    """
    order = view.maps.telling()
    first = order[0] if chosen is None else chosen
    shape, H, G = view.model.cache_shape, view.maps.shape[1], view.maps.num_kv_heads
    kept: list[Head] = []
    groups: set[Head] = set()
    for layer, head in (first, *(at for at in order if at != first)):
        group = layer, head * G // H
        shared = 0 if group in groups else shape.head_dim + shape.value_size
        most_bytes -= len(view.tokens) * (shape.head_dim + shared) * 8 // 3
        if most_bytes < 0 and kept:
            break
        kept.append((layer, head))
        groups.add(group)
    return kept


def page_data(view: AttentionView, heads: Sequence[Head]) -> dict[str, Any]:
    """Return what the page computes and draws from, as plain values; it begins with the first head."""
    maps = view.maps
    L, H = maps.shape
    numbers = dict(zip(heads, read_heads(view.model, maps.ids, heads), strict=True))
    labels = {at: maps.label(*at) for at in maps.heads}
    return {
        "tokens": view.tokens,
        "layers": L,
        "heads": H,
        "groups": maps.num_kv_heads,
        "chosen": heads[0],
        "starts": maps.starts.tolist(),
        "maps": pack_maps(maps.weights),
        "labels": [
            [
                [labels[layer, head].name, labels[layer, head].share, labels[layer, head].even]
                for head in range(H)
            ]
            for layer in range(L)
        ],
        "names": {
            name: {"meaning": one.meaning, "short": one.short, "light": one.light, "dark": one.dark}
            for name, one in HEAD_NAMES.items()
        },
        "queries": {f"{layer}.{head}": pack(one.q) for (layer, head), one in numbers.items()},
        "keyValues": {
            f"{layer}.{head * maps.num_kv_heads // H}": [pack(one.k), pack(one.v)]
            for (layer, head), one in numbers.items()
        },
        "rules": {f"{layer}.{head}": rules_record(one) for (layer, head), one in numbers.items()},
    }


def rules_record(numbers: HeadNumbers) -> dict[str, float]:
    """Return what a head attends by, without the rules it has not."""
    rules = numbers.rules
    given = {"scale": numbers.scale, "window": rules.get("window"), "softcap": rules.get("softcap")}
    sinks = rules.get("sinks")
    if sinks is not None:
        given["sink"] = float(np.asarray(sinks)[0])
    return {name: value for name, value in given.items() if value is not None}


def pack(x: np.ndarray) -> dict[str, Any]:
    """Return an array as text: 16-bit codes, row by row, to be multiplied by a step.

    Examples
    --------
    >>> pack(np.array([[1.0, -2.0]]))["step"] * 32767
    2.0
    """
    step = float(np.abs(x).max(initial=0)) / LARGEST_CODE
    codes = np.rint(x / (step or 1.0)).astype("<i2")
    return {"step": step, "codes": b64encode(codes.tobytes()).decode()}


def pack_maps(weights: np.ndarray) -> str:
    """Return maps ``(L, H, n, n)`` as text: the roots of their lower triangles, a byte each."""
    n = weights.shape[-1]
    below = weights[..., *np.tril_indices(n)]
    return b64encode(np.rint(255 * np.sqrt(below)).astype(np.uint8).tobytes()).decode()


def _left_out(kept: int, count: int) -> str:
    return (
        f"To keep the file small, it has them for {kept} of {count} heads; "
        "of the others it has the maps alone."
    )
