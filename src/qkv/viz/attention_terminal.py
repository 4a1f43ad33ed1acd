"""The attention of a text in a terminal: the grid of heads, what they do, and one head's map.

A map that is wider than the terminal is drawn in blocks of tokens: the weights of a block's keys are added,
the mean is taken over its queries, so that each line still sums to 1.
"""

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.lab.head_labels import LEAST_TOKENS
from qkv.lab.maps import block_starts, pool
from qkv.viz.attention import AttentionView, Head
from qkv.viz.head_names import HEAD_NAMES
from qkv.viz.terminal import SHADES

MARGIN = 8
"""Columns before the first head: its layer."""
THUMBNAIL_LINES = 3
MOST_LINES = 48
"""Beyond so many lines of small maps, heads have names alone."""
WIDEST = 13
"""Columns a head takes where there is room, a blank among them."""
LEAST_NAMED = 7
"""Columns a head needs for a name; with fewer it has a sign."""
ROW_LABEL, STRONGEST = 16, 18
"""Columns of a map's line before its cells and behind them."""
MOST_LISTED = 3
"""Heads of one name that are listed."""
BAR = 32
"""Columns of a whole."""
HARDLY = "·"
INK = "dark_orange"
"""Of all cells: the shade alone says how much, on black and on white."""


def overview(view: AttentionView, width: int) -> Group:
    """Return the grid, what its heads do, and the map that shows most."""
    at = view.maps.telling()[0]
    return Group(
        Text(view.title, "bold"), "", head_grid(view, width), "", reading(view), "", head_map(view, at, width)
    )


def head_view(view: AttentionView, at: Head, width: int) -> Group:
    """Return one head's map, and how much of its attention lies on each pattern."""
    return Group(Text(view.title, "bold"), "", head_map(view, at, width), *_shares(view, at))


def head_grid(view: AttentionView, width: int) -> Group:
    """Draw all heads, a line of small maps and names for each layer.

    Parameters
    ----------
    view : AttentionView
    width : int
        Columns of the terminal.

    Returns
    -------
    rich.console.Group
    """
    L, H = view.maps.shape
    each = (width - MARGIN) // H
    if each < LEAST_NAMED:
        return _sign_grid(view, width)
    each = min(each, WIDEST)
    lines = [*_brackets(view, each), _numbers(H, each)]
    has_maps = L * (THUMBNAIL_LINES + 2) <= MOST_LINES
    for layer in range(L):
        lines.append(_names(view, layer, each))
        lines += [*_thumbnails(view, layer, each), Text()] if has_maps else []
    return Group(*lines[: -1 if has_maps else None])


def reading(view: AttentionView) -> Table | Text:
    """Return a line for each name: what such a head looks at, which heads do, what even attention would."""
    if view.maps.is_short:
        return Text(f"What heads do can be told from {LEAST_TOKENS} tokens on.", "dim")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("heads", "look at", "layer.head, share of attention"):
        table.add_column(name, no_wrap=True)
    table.add_column("even", justify="right", no_wrap=True)
    labels = {at: view.maps.label(*at) for at in view.maps.heads}
    for name, shown in HEAD_NAMES.items():
        found = sorted((one.share, at) for at, one in labels.items() if one.name == name)[::-1]
        if found:
            named = [f"{at[0]}.{at[1]}" + (f" {share:.0%}" if share else "") for share, at in found]
            even = labels[found[0][1]].even
            row = Text(name, shown.style), shown.meaning, _some(named), f"{even:.0%}" if even else ""
            table.add_row(*row)
    return table


def head_map(view: AttentionView, at: Head, width: int) -> Group:
    """Draw one head's map: a line for each query, or for each block of them where it has no room for each.

    Parameters
    ----------
    view : AttentionView
    at : (layer, head)
    width : int
        Columns of the terminal.

    Returns
    -------
    rich.console.Group

    Raises
    ------
    OptionError
        If there is no such head.
    """
    T = len(view.tokens)
    room = max(width - ROW_LABEL - STRONGEST, 8)
    starts = block_starts(T, room)
    weights = pool(view.head(*at).weights(), starts, starts)
    each = max(1, min(3, room // len(starts)))
    lengths = np.diff(np.append(starts, T))
    labels = [view.block_label(start, length) for start, length in zip(starts, lengths, strict=True)]
    return Group(
        _caption(view, at),
        *_blocks(int(lengths[0])),
        _scale(starts, each),
        *(_row(row, weights, starts, labels, each) for row in range(len(starts))),
    )


def _row(row: int, weights: np.ndarray, starts: np.ndarray, labels: list[str], each: int) -> Text:
    """Return a query's line: position and token, a cell for each key it may see, the key that gets most."""
    best = int(weights[row].argmax())
    unseen = each * (len(starts) - row - 1)
    line = Text().append(f"{starts[row]:>4} ", "dim").append(_fit(labels[row], ROW_LABEL - 6) + " ")
    line.append_text(_cells(weights[row, : row + 1], each)).append(" " * (unseen + 1))
    return line.append(f"{weights[row, best]:4.0%} ").append(_fit(labels[best], STRONGEST - 7).rstrip())


def _caption(view: AttentionView, at: Head) -> Text:
    """Return what the head is, in a line."""
    named = view.maps.label(*at)
    text = Text().append(f"layer {at[0]}, head {at[1]}", "bold")
    if not view.maps.is_short:
        text.append(": ").append(named.name, HEAD_NAMES[named.name].style)
    if named.has_pattern:
        meaning = HEAD_NAMES[named.name].meaning
        text.append(f", {named.share:.0%} on {meaning}; even attention {named.even:.0%}", "dim")
    return text


def _shares(view: AttentionView, at: Head) -> list[Text]:
    """Return a bar for each pattern, with even attention's share behind it."""
    lines = []
    for name in (name for name in HEAD_NAMES if name in view.maps.shares and not view.maps.is_short):
        share, even = float(view.maps.shares[name][at]), view.maps.even[name]
        text = Text(f"  {name:<10}").append(f"{share:4.0%} ", "bold")
        bar = "█" * round(BAR * share)
        lines.append(text.append(f"{bar:<{BAR}}", INK).append(f"  even attention {even:.0%}", "dim"))
    return [Text(), *lines]


def _blocks(block: int) -> list[Text]:
    """Return what a cell is, where it is more than one token."""
    says = f"each cell is {block} x {block} tokens: summed over the keys, averaged over the queries"
    return [Text(says, "dim")] if block > 1 else []


def _scale(starts: np.ndarray, each: int) -> Text:
    """Return the positions of the keys, those that there is room for, and what stands in the columns."""
    step = next(n for n in (1, 2, 5, 10, 20) if n * each > len(str(starts[-1])))
    whole = each * len(starts)
    room = (f"{start:<{step * each}}" for start in starts[::step])
    marks = "".join(mark for i, mark in enumerate(room) if i * step * each + len(mark.rstrip()) <= whole)
    positions = f"{marks[:whole]:<{whole}}"
    return Text(f"{'query':<{ROW_LABEL - 5}}key: {positions}  most on", "dim")


def _cells(shares: np.ndarray, each: int) -> Text:
    """Return shaded cells; what is seen but hardly looked at is a dot."""
    levels = np.minimum((shares**0.5 * len(SHADES)).astype(int), len(SHADES) - 1)
    return Text("".join(SHADES[level] * each if level else HARDLY.center(each) for level in levels), INK)


def _thumbnails(view: AttentionView, layer: int, each: int) -> list[Text]:
    """Return a layer's maps side by side, a few lines high."""
    n = len(view.maps.starts)
    rows, columns = (np.arange(min(n, most)) * n // min(n, most) for most in (THUMBNAIL_LINES, each - 1))
    small = pool(view.maps.weights[layer], rows, columns)
    lines = []
    for line in range(len(rows)):
        text = Text(" " * MARGIN)
        last = n if line == len(rows) - 1 else rows[line + 1]
        for head in small:
            seen = head[line, columns < last]
            text.append_text(_cells(seen, 1)).append(" " * (each - len(seen)))
        lines.append(text)
    return lines


def _names(view: AttentionView, layer: int, each: int) -> Text:
    text = _layer(layer)
    for head in range(view.maps.shape[1]):
        name = view.maps.label(layer, head).name
        shown = HEAD_NAMES[name]
        fits = len(name) < each and shown.short
        text.append(_fit(name if fits else shown.short, each), shown.style)
    return text


def _layer(layer: int) -> Text:
    return Text().append(f"layer {layer}".ljust(MARGIN), "dim")


def _numbers(H: int, each: int) -> Text:
    named = (f"head {head}" if each > len("head 10") else str(head) for head in range(H))
    return Text(" " * MARGIN + "".join(f"{name:<{each}}" for name in named), "dim")


def _brackets(view: AttentionView, each: int) -> list[Text]:
    """Return a line of brackets over the heads that share one key/value head; none where none do."""
    H, G = view.maps.shape[1], view.maps.num_kv_heads
    wide = each * H // G - 1
    named = (f" k/v {g} " if wide > 10 else "" for g in range(G))
    brackets = " ".join(f"╭{name.center(wide - 2, '─')}╮" for name in named)
    return [Text(" " * MARGIN + brackets, "dim")] if G < H else []


def _sign_grid(view: AttentionView, width: int) -> Group:
    """Return a sign for each head, where there are too many for names, and which sign is which."""
    L, H = view.maps.shape
    each = 2 if width >= MARGIN + 2 * H else 1
    lines, used = [], {}
    for layer in range(L):
        text = _layer(layer)
        for head in range(H):
            name = view.maps.label(layer, head).name
            used[name] = shown = HEAD_NAMES[name]
            text.append(f"{shown.sign:<{each}}", shown.style)
        lines.append(text)
    key = Text("  ").join(
        Text(f"{shown.sign} {name}", shown.style) for name, shown in HEAD_NAMES.items() if name in used
    )
    return Group(*lines, key)


def _some(named: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(named) - MOST_LISTED
    return ", ".join(named[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _fit(text: str, width: int) -> str:
    """Return a text cut or filled to so many columns, also where a letter takes two."""
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
