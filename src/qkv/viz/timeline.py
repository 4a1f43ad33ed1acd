"""A cache over time: which tokens each key head holds after each step, and what that takes.

A token comes once and goes at most once, so two numbers tell all of it: the step that brought it, and
the first step behind which a head no longer held it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkv.cache import PagedCache, Policy
from qkv.cache.occupancy import held_mask
from qkv.cache.prediction import predicted_nbytes
from qkv.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_YET, DROPPED, HELD = (1.0, 1.0, 1.0), (0.89, 0.89, 0.91), (0.12, 0.37, 0.65)
"""Red, green and blue of a cell: a token that has not come, one that has gone, one that is held."""

WIDTH_OF_HEADS = 0.68
"""Of the axis; the bytes stand beside them."""

PANEL_INCHES, MOST_INCHES = (3.6, 1.15), 24.0
"""Of a key head, where there are few; of all of them together."""

KIB = 2**10


@dataclass(frozen=True, eq=False)
class Timeline:
    """What one sequence's cache held after each of N steps.

    Attributes
    ----------
    policy : Policy
    lengths : N integers
        Tokens of the text that had passed through the cache.
    gone : (L, G, S) int64
        Behind which step a token was no longer held, counted from 0; N for one that is still there.
    nbytes : N integers
        Measured: bytes of the pages that were there.
    predicted_nbytes : N integers
        What `PagedCache.predict_nbytes` says of so many tokens, from sizes and policy alone.
    full_nbytes : N integers
        What all these tokens would take in float32.
    """

    policy: Policy
    lengths: tuple[int, ...]
    gone: NDArray[np.int64]
    nbytes: tuple[int, ...]
    predicted_nbytes: tuple[int, ...]
    full_nbytes: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        """N."""
        return len(self.lengths)

    @property
    def came(self) -> NDArray[np.int64]:
        """Which step brought each token, ``(S,)``."""
        return np.searchsorted(self.lengths, np.arange(self.lengths[-1]), side="right")

    def held(self, step: int) -> NDArray[np.bool_]:
        """Return which tokens each key head held behind a step, ``(L, G, S)``."""
        return (self.came <= step) & (step < self.gone)

    @property
    def tokens_run(self) -> int:
        """Tokens that went through the model."""
        return self.lengths[-1]

    @property
    def tokens_run_anew(self) -> int:
        """Tokens that would have, had each step run the whole text again."""
        return sum(range(self.lengths[0], self.lengths[-1] + 1))


@dataclass(frozen=True, eq=False)
class _Moment:
    """What is noted behind one step."""

    length: int
    nbytes: int
    held: NDArray[np.bool_]


def record(steps: Iterable[object], cache: PagedCache, prompt_tokens: int | None = None) -> Timeline:
    """Run through steps that fill a cache, and note what it holds behind each.

    Parameters
    ----------
    steps : iterable
        Such as a `Generation`: whatever it gives is left alone, what it does to the cache is noted. An item
        that adds no token is no step; one that adds several is one step of several tokens.
    cache : PagedCache
        Of one sequence; empty, or at the end of a prompt.
    prompt_tokens : int, optional
        How many tokens the prompt had, for the prediction; as many as the first step adds when left out.

    Returns
    -------
    Timeline

    Raises
    ------
    OptionError
        If the cache has several sequences, got no token, or was cut back on the way.

    Examples
    --------
    ::

        cache = qkv.new_cache(model, "h2o=32,page=8")
        timeline = record(qkv.generate(model, "HAMLET.", cache=cache, max_tokens=80), cache)
        draw_timeline(timeline, axes)
    """
    if cache.batch_size != 1:
        raise OptionError(f"a timeline is of one sequence, not of {cache.batch_size}; take cache.rows([0])")
    moments = [_Moment(cache.length, cache.nbytes, held_mask(cache))] if cache.length else []
    for _ in steps:
        before = moments[-1].length if moments else 0
        if cache.length < before:
            raise OptionError(f"a timeline only grows, but {cache.length} tokens came behind {before}")
        if cache.length > before:
            moments.append(_Moment(cache.length, cache.nbytes, held_mask(cache)))
    if not moments:
        raise OptionError("the steps added no token to this cache; give `record` the one that they fill")
    return _timeline(cache, moments, moments[0].length if prompt_tokens is None else prompt_tokens)


def _timeline(cache: PagedCache, moments: Sequence[_Moment], prompt_tokens: int) -> Timeline:
    lengths = tuple(moment.length for moment in moments)
    gone = np.full(moments[-1].held.shape, len(moments))
    for step, moment in reversed(list(enumerate(moments))):
        gone[..., : moment.length][~moment.held] = step
    return Timeline(
        policy=cache.policy,
        lengths=lengths,
        gone=gone,
        nbytes=tuple(moment.nbytes for moment in moments),
        predicted_nbytes=tuple(cache.predict_nbytes(length, prompt_tokens) for length in lengths),
        full_nbytes=tuple(predicted_nbytes(cache.shape, Policy(), length) for length in lengths),
    )


def timeline_inches(timeline: Timeline) -> tuple[float, float]:
    """Return width and height of a figure in which every key head has room."""
    L, G, _ = timeline.gone.shape
    width, height = PANEL_INCHES
    return min(G * width, MOST_INCHES) / WIDTH_OF_HEADS + 1.0, max(3.0, min(L * height, MOST_INCHES)) + 1.2


def draw_timeline(timeline: Timeline, axes: "Axes") -> None:
    """Draw a map of steps and tokens for each key head, and beside them the bytes of all.

    Parameters
    ----------
    timeline : Timeline
    axes : matplotlib.axes.Axes
        Made for it alone: it is divided, and its own scales are hidden.
    """
    axes.set_axis_off()
    _draw_heads(timeline, axes)
    _draw_key(axes)
    _draw_bytes(timeline, axes.inset_axes((WIDTH_OF_HEADS + 0.06, 0.0, 0.94 - WIDTH_OF_HEADS, 1.0)))
    name = str(timeline.policy) or "float32"
    axes.set_title(
        f"{name}: {timeline.tokens_run:,} tokens run; {timeline.tokens_run_anew:,} without a cache",
        loc="left",
        pad=30,
    )


def cells(timeline: Timeline, layer: int, head: int) -> NDArray[np.float64]:
    """Return the colours of one key head's map: tokens downwards, steps along, ``(S, N, 3)``."""
    steps = np.arange(timeline.num_steps)
    come = timeline.came[:, None] <= steps
    gone = timeline.gone[layer, head][:, None] <= steps
    colours = np.where(gone[..., None], DROPPED, HELD)
    return np.where(come[..., None], colours, NOT_YET)


def _draw_heads(timeline: Timeline, axes: "Axes") -> None:
    L, G, S = timeline.gone.shape
    width, height = WIDTH_OF_HEADS / G, 1 / L
    for layer, head in np.ndindex(L, G):
        panel = axes.inset_axes((head * width, 1 - (layer + 1) * height, 0.95 * width, 0.9 * height))
        extent = (-0.5, timeline.num_steps - 0.5, S - 0.5, -0.5)
        panel.imshow(cells(timeline, layer, head), aspect="auto", extent=extent)
        panel.tick_params(labelsize=7, labelbottom=layer == L - 1, labelleft=head == 0)
        if layer == 0:
            panel.set_title(f"key head {head}", fontsize=9)
        if layer == L - 1:
            panel.set_xlabel("step", fontsize=8)
        if head == 0:
            panel.set_ylabel(f"layer {layer}\ntoken", fontsize=8)


def _draw_key(axes: "Axes") -> None:
    from matplotlib.patches import Patch

    colours = {"held": HELD, "dropped": DROPPED, "not there yet": NOT_YET}
    patches = [
        Patch(facecolor=colour, edgecolor="grey", label=name, linewidth=0.5)
        for name, colour in colours.items()
    ]
    place = {"loc": "lower right", "bbox_to_anchor": (WIDTH_OF_HEADS, 1.025), "ncols": len(patches)}
    axes.legend(handles=patches, fontsize=8, frameon=False, borderpad=0, **place)


def _draw_bytes(timeline: Timeline, axes: "Axes") -> None:
    steps = np.arange(timeline.num_steps)
    full, measured, predicted = (
        np.array(some) / KIB for some in (timeline.full_nbytes, timeline.nbytes, timeline.predicted_nbytes)
    )
    same = int((measured == predicted).sum())
    axes.plot(steps, full, color="grey", linewidth=1, label="all tokens in float32", drawstyle="steps-post")
    axes.plot(
        steps,
        predicted,
        color="tab:orange",
        linewidth=5,
        alpha=0.5,
        label="predicted",
        drawstyle="steps-post",
    )
    label = f"measured: as predicted\nat {same} of {len(steps)} steps"
    axes.plot(steps, measured, color="black", linewidth=1.2, label=label, drawstyle="steps-post")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step", fontsize=8)
    axes.set_title("KiB of the cache", fontsize=9)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
