"""What every head of a model looks at in one text: pooled maps, names, and one head's own numbers.

A map of T x T weights for each head is too much for a long text (32 x 32 heads, 1,024 tokens: 4 GiB), so
only one layer is held at a time, and what is kept of it are blocks: over the keys of a block the weights
are added, over its queries their mean is taken, so that each row still sums to what it did.

Copying needs something to copy, so induction and duplicates are read off the text said twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.cache.protocol import LayerRules
from qkv.errors import OptionError, PromptError
from qkv.lab.head_labels import LEAST_TOKENS, TOO_SHORT, Label, label
from qkv.lab.patterns import (
    FIRST_SCORED,
    Bools,
    Delimiters,
    Ids,
    delimiter_ids,
    entropies,
    even_attention,
    patterns,
)
from qkv.models import Model
from qkv.models.watching import PassingStep
from qkv.ops import attend

Floats = NDArray[np.floating]

COPYING = ("duplicate", "induction")
"""Patterns that are read off the text said twice."""
LEAST_QUERIES = 4
"""A pattern that names keys for fewer queries is not read off them."""
MOST_BLOCKS = 64
"""Rows and columns of a kept map; a text of up to so many tokens is kept whole."""
MOST_LAYER_BYTES = 2 << 30
"""The most that the weights of one layer may take while they are looked at."""


@dataclass(frozen=True, eq=False)
class HeadNumbers:
    """The numbers of one head, as the model computed them.

    Attributes
    ----------
    q, k, v : (T, D)
        Queries and keys turned by their positions. The values' D may be another one.
    rules : LayerRules
        What its layer attends by.
    """

    q: Floats
    k: Floats
    v: Floats
    rules: LayerRules

    @property
    def scale(self) -> float:
        """What the dot products are multiplied by."""
        scale = self.rules.get("scale")
        return self.q.shape[-1] ** -0.5 if scale is None else scale

    def weights(self) -> Floats:
        """Return the weights ``(T, T)``."""
        _, weights = attend(self.q, self.k, self.v, causal=True, return_weights=True, **self.rules)
        return weights


@dataclass(frozen=True, eq=False)
class Maps:
    """What every head did with one text.

    Attributes
    ----------
    ids : (T,) integers
    starts : (n,) integers
        Where each block of tokens begins; ``arange(T)`` for a text that is kept whole.
    weights : (L, H, n, n)
        Pooled by `pool`.
    num_kv_heads : int
        G: key head g serves query heads g*H/G to (g+1)*H/G - 1.
    shares : mapping of str to (L, H)
        What lies on each pattern that names keys for enough queries.
    even : mapping of str to float
        What would, if heads looked at all they may see alike.
    entropy : (L, H)
        Mean over the queries, as a share of that of even attention.
    peaks : (L, H)
        The weight of the key that gets most, but for the first token, mean over the queries.
    """

    ids: Ids
    starts: NDArray[np.integer]
    weights: Floats
    num_kv_heads: int
    shares: Mapping[str, Floats]
    even: Mapping[str, float]
    entropy: Floats
    peaks: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """L and H."""
        return self.weights.shape[0], self.weights.shape[1]

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return int(self.starts[1]) if len(self.starts) > 1 else 1

    @property
    def heads(self) -> list[tuple[int, int]]:
        """All heads: layer, then head."""
        return list(np.ndindex(self.shape))

    @property
    def is_short(self) -> bool:
        """Whether the text is too short to name what heads do."""
        return len(self.ids) < LEAST_TOKENS

    def label(self, layer: int, head: int) -> Label:
        """Return what a head is called."""
        if self.is_short:
            return Label(TOO_SHORT)
        shares = {name: float(table[layer, head]) for name, table in self.shares.items()}
        return label(shares, self.even, float(self.entropy[layer, head]))

    def telling(self) -> list[tuple[int, int]]:
        """Return all heads, those first whose maps show most: a pattern, and weight on few keys.

        A head that rests on the first token has a name, and a map that shows nothing else.
        """

        def worth(at: tuple[int, int]) -> tuple[bool, float]:
            named = self.label(*at)
            return named.has_pattern and named.name != "first", float(self.peaks[at])

        return sorted(self.heads, key=worth, reverse=True)


def read_maps(model: Model, ids: Ids, *, delimiters: Delimiters = delimiter_ids) -> Maps:
    """Run a model on a text, and on the text said twice, and keep what every head looked at.

    Parameters
    ----------
    model : Model
    ids : (T,) integers
    delimiters : callable
        Which ids of a model divide a text.

    Returns
    -------
    Maps

    Raises
    ------
    PromptError
        If there is no token, more than the model's context holds, or more than can be looked at.
    """
    shape, T = model.cache_shape, len(ids)
    _require_room(model, T)
    starts = block_starts(T, MOST_BLOCKS)
    twice = _said_twice(ids)
    named, copying = patterns(ids, delimiters(model)), patterns(twice, ())
    kept, found = _look(model, ids, {name: named[name] for name in named if name not in COPYING}, starts)
    _, copied = _look(model, twice, {name: copying[name] for name in COPYING}, starts[:1])
    shares, even = found.shares | copied.shares, found.even | copied.even
    return Maps(ids, starts, kept, shape.num_kv_heads, shares, even, found.entropy, found.peaks)


def read_heads(model: Model, ids: Ids, heads: Sequence[tuple[int, int]]) -> list[HeadNumbers]:
    """Run a model on a text and keep the numbers of some heads.

    Parameters
    ----------
    model : Model
    ids : (T,) integers
    heads : sequence of (layer, head)

    Returns
    -------
    list of HeadNumbers

    Raises
    ------
    OptionError
        If there is no such head.
    """
    read: dict[tuple[int, int], HeadNumbers] = {}

    def look(layer: int, q: Floats, k: Floats, v: Floats, rules: LayerRules) -> Floats:
        H, G = q.shape[1], k.shape[1]
        for head in (head for at, head in heads if at == layer):
            _require_within("head", head, H)
            g = head * G // H
            own_q, own_k, own_v = q[0, head].copy(), k[0, g].copy(), v[0, g].copy()
            read[layer, head] = HeadNumbers(own_q, own_k, own_v, _of_head(rules, head))
        return attend(q, k, v, causal=True, **rules)

    for layer, _ in heads:
        _require_within("layer", layer, model.cache_shape.num_layers)
    model.hidden(ids, PassingStep(model.cache_shape, look))
    return [read[at] for at in heads]


def block_starts(T: int, most: int) -> NDArray[np.integer]:
    """Return where blocks of equally many tokens begin, at most so many blocks.

    Examples
    --------
    >>> block_starts(7, 4).tolist()
    [0, 2, 4, 6]
    """
    return np.arange(0, T, -(-T // most))


def pool(weights: Floats, rows: NDArray[np.integer], columns: NDArray[np.integer]) -> Floats:
    """Return weights by blocks: added over the keys of each, and their mean over its queries.

    Parameters
    ----------
    weights : (..., T, S)
    rows, columns : (n,), (m,) integers
        Where blocks of queries and of keys begin, 0 first.

    Returns
    -------
    (..., n, m)
        A row sums to the mean of what its queries' rows sum to.

    Examples
    --------
    >>> weights = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    >>> pool(weights, np.array([0, 2]), np.array([0, 1]))
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    counts = np.diff(np.append(rows, weights.shape[-2]))
    keys = np.add.reduceat(weights, columns, axis=-1)
    return np.add.reduceat(keys, rows, axis=-2) / counts[:, None]


@dataclass(frozen=True, eq=False)
class _Read:
    shares: dict[str, Floats]
    even: dict[str, float]
    entropy: Floats
    peaks: Floats


def _look(
    model: Model, ids: Ids, named: Mapping[str, Bools], starts: NDArray[np.integer]
) -> tuple[Floats, _Read]:
    """Return the pooled maps (L, H, n, n), and what was read off the whole ones."""
    even = even_attention(len(ids))
    named = {name: table for name, table in named.items() if _scored(table).sum() >= LEAST_QUERIES}
    kept: list[Floats] = []
    of_layers: list[tuple[dict[str, Floats], Floats, Floats]] = []

    def look(layer: int, q: Floats, k: Floats, v: Floats, rules: LayerRules) -> Floats:
        _require_memory(*q.shape[1:3])
        output, (weights,) = attend(q, k, v, causal=True, return_weights=True, **rules)
        kept.append(pool(weights, starts, starts))
        shares = {name: _share(weights, table) for name, table in named.items()}
        peaks = weights[..., 1:].max(axis=-1, initial=0).mean(axis=-1)
        of_layers.append((shares, entropies(weights).mean(axis=-1), peaks))
        return output

    model.hidden(ids, PassingStep(model.cache_shape, look))
    shares, entropy, peaks = zip(*of_layers, strict=True)
    most = float(entropies(even).mean())
    return np.stack(kept), _Read(
        {name: np.stack([one[name] for one in shares]) for name in named},
        {name: float(_share(even, table)) for name, table in named.items()},
        np.stack(entropy) / (most or 1.0),
        np.stack(peaks),
    )


def _scored(table: Bools) -> Bools:
    """Return for which queries a pattern names a key, without those that see few: the first half at most."""
    T = len(table)
    return table.any(axis=-1) & (np.arange(T) >= min(FIRST_SCORED, T // 2))


def _share(weights: Floats, table: Bools) -> Floats:
    """Return the share of attention that lies on a pattern, mean over the queries that count."""
    return (weights * table).sum(axis=-1)[..., _scored(table)].mean(axis=-1)


def _said_twice(ids: Ids) -> Ids:
    """Return a text of the same length, whose second half says what the first one did."""
    half = ids[: len(ids) // 2 + 1]
    return np.concatenate([half, half[1:]])[: len(ids)]


def _of_head(rules: LayerRules, head: int) -> LayerRules:
    sinks = rules.get("sinks")
    return rules if sinks is None else {**rules, "sinks": np.asarray(sinks)[head : head + 1]}


def _require_room(model: Model, T: int) -> None:
    if T == 0:
        raise PromptError("there is no token to look at; give at least one id")
    if model.context_length < T:
        raise PromptError(
            f"the text has {T:,} tokens, the model's context holds {model.context_length:,}; shorten it"
        )


def _require_memory(H: int, T: int) -> None:
    if H * T * T * 4 > MOST_LAYER_BYTES:
        longest = int((MOST_LAYER_BYTES / 4 / H) ** 0.5)
        raise PromptError(
            f"the text has {T:,} tokens; a layer of {H} heads can be looked at over {longest:,}; shorten it"
        )


def _require_within(what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise OptionError(f"{what} must be from 0 to {count - 1} for this model, not {index}")
