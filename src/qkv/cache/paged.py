"""The cache of all policies: pages from a pool, in the form and for as long as a policy says.

A model sees two calls: `PagedCache.append` a layer's keys and values, `PagedCache.attend` with its
queries. Which tokens stay, in how many bits and in whose pages never shows there.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.cache.attending import Rules, Sight, attend_tables, positions_of
from qkv.cache.closing import close_pages, drop_filled
from qkv.cache.contiguous import CacheShape, check_rows
from qkv.cache.evicting import Dropped, Rotation, SeenStep, evict, note_attention
from qkv.cache.policy import Policy
from qkv.cache.pool import PagePool
from qkv.cache.prediction import page_layout, predicted_nbytes
from qkv.cache.protocol import LayerRules
from qkv.cache.retention import layer_budgets
from qkv.cache.room import check_room
from qkv.cache.rows import write_rows
from qkv.cache.tables import SequenceTables
from qkv.cache.trimming import check_trim, trim_sequence
from qkv.errors import OptionError
from qkv.shapes import Array, Keys, Queries, Values

NO_WINDOW = 1 << 40
"""A window that no text exceeds."""


class PagedCache:
    """Keys and values of B sequences in pages, each sequence with its own length.

    Parameters
    ----------
    shape : CacheShape
        Of the model; see its ``cache_shape``.
    policy : Policy or str
        What is kept, and in what form: `qkv.cache.policy`.
    batch_size : int
        B, how many sequences step together.
    pool : PagePool, optional
        Where pages come from, shared with other caches or with a budget; one of its own when left out.
    rotation : Rotation, optional
        How the model turns its keys; ``expected`` and ``rerotate`` need it.
    fingerprint : str
        Of the model, so that a saved cache is not loaded for another.

    Raises
    ------
    OptionError
        If the policy contradicts itself or does not fit the model.

    Examples
    --------
    >>> cache = PagedCache(CacheShape(num_layers=1, num_kv_heads=2, head_dim=4), "int8,window=32")
    >>> k = v = np.ones((1, 2, 100, 4), np.float32)
    >>> cache.append(0, k, v)
    >>> cache.attend(0, np.ones((1, 6, 100, 4), np.float32)).shape
    (1, 6, 100, 4)
    >>> cache.length, cache.nbytes == cache.predict_nbytes(100)
    (100, True)
    """

    def __init__(
        self,
        shape: CacheShape,
        policy: Policy | str = "",
        batch_size: int = 1,
        *,
        pool: PagePool | None = None,
        rotation: Rotation | None = None,
        fingerprint: str = "",
    ) -> None:
        if batch_size < 1:
            raise OptionError(f"a cache holds at least one sequence, not {batch_size}")
        self.shape = shape
        self.policy = Policy.parse(policy) if isinstance(policy, str) else policy
        self.pool = PagePool() if pool is None else pool
        self.rotation, self.fingerprint = rotation, fingerprint
        self.layout = page_layout(shape, self.policy)
        self._check_policy()
        self.budgets = self._layer_budgets()
        self.windows, self.first_keys = self._head_rules()
        L, G = shape.num_layers, shape.num_kv_heads
        self.sequences = [SequenceTables(self.pool, self.layout, L, G) for _ in range(batch_size)]
        self.drops: list[list[Dropped]] = [[] for _ in range(batch_size)]

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.sequences)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence that have passed through every layer, whether still held or not."""
        return tuple(one.length for one in self.sequences)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @property
    def next_positions(self) -> tuple[int, ...]:
        """At which rotary position each sequence's next token stands."""
        if not self.policy.rerotate:
            return self.lengths
        return tuple(int(one.held[-1, 0]) for one in self.sequences)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages that the sequences hold; one that several hold counts once."""
        tables = [table for one in self.sequences for table in one.tables]
        ids = np.unique(np.concatenate([table.ids[table.present] for table in tables]))
        return int(self.pool.sizes(ids).sum())

    def predict_nbytes(self, num_tokens: int, prompt_tokens: int | None = None) -> int:
        """Return what ``nbytes`` will be once each sequence has ``num_tokens``: see `predicted_nbytes`."""
        return self.batch_size * predicted_nbytes(self.shape, self.policy, num_tokens, prompt_tokens)

    def append(self, layer: int, k: Keys, v: Values | None, lengths: Sequence[int] | None = None) -> None:
        """Put one step's keys and values behind those that every layer has.

        A step that was interrupted between layers leaves nothing behind: the next one writes over it.

        Parameters
        ----------
        layer : int
        k : (B, G, T, D)
        v : (B, G, T, D) or None
            The values' D may be another; ``None`` where they are part of the keys.
        lengths : B integers, optional
            How many leading positions of each row are real; the rest is not stored.

        Raises
        ------
        ShapeError
            If the arrays are not of the cache's shape.
        CacheFull
            If the step does not fit into the pool's budget; then the cache is as it was.
        """
        check_rows(self.shape, self.batch_size, k, v)
        new = np.full(self.batch_size, k.shape[2]) if lengths is None else np.asarray(lengths)
        for one in self.sequences:
            self._forget_unfinished(one, layer)
        if layer == 0:
            check_room(self.sequences, new, self.budgets, self.policy)
        for row, one in enumerate(self.sequences):
            count = int(new[row])
            self._append_row(one, layer, k[row, :, :count], None if v is None else v[row, :, :count])

    def attend(
        self,
        layer: int,
        q: Queries,
        lengths: Sequence[int] | None = None,
        **rules: Unpack[LayerRules],
    ) -> Array:
        """Let the step's queries see what is held so far, each up to its own token; then drop what must go.

        Parameters
        ----------
        layer : int
        q : (B, H, T, D)
        lengths : B integers, optional
            As given to `append`.
        **rules
            The model's own for this layer: window, scale, softcap, sinks, as for `qkv.attend`.

        Returns
        -------
        (B, H, T, D)
            With the values' D.
        """
        new = np.full(self.batch_size, q.shape[2]) if lengths is None else np.asarray(lengths)
        weighing, window = _split(q.shape[-1], **rules)
        sight = self._sight(layer, new, window)
        output, lse = attend_tables(self.sequences, layer, q, sight, weighing)
        for row, one in enumerate(self.sequences):
            if one.closes_pages:
                drop_filled(one, layer)
            if self.policy.eviction is not None and new[row]:
                self._evict_row(row, layer, q[row], lse[row], sight, weighing)
        if window is not None:
            self._model_windows[layer] = window
        if layer == self.shape.num_layers - 1:
            self._drop_behind_windows()
        return output

    def trim(self, length: int) -> None:
        """Forget every token from position ``length`` on; sequences shorter than that keep all.

        Pages that hold only forgotten tokens go back to the pool.

        Raises
        ------
        OptionError
            If ``length`` is negative or beyond what is held.
        TrimError
            If tokens that would be seen again are gone; then nothing has changed.
        """
        if not 0 <= length <= self.length:
            raise OptionError(f"trim takes a length from 0 to the {self.length} tokens held, not {length}")
        longer = [one for one in self.sequences if one.length > length]
        for one in longer:
            check_trim(one, length, self._effective_windows(), self.policy)
        for one in longer:
            trim_sequence(one, length)

    def fork(self) -> "PagedCache":
        """Return a cache of the same tokens that shares every page until one of the two writes to it."""
        return self._with([one.fork() for one in self.sequences], [list(some) for some in self.drops])

    def rows(self, rows: Sequence[int]) -> "PagedCache":
        """Return a cache of some of the sequences, which belong to both: for a step of only these."""
        return self._with([self.sequences[row] for row in rows], [self.drops[row] for row in rows])

    def free(self) -> None:
        """Give every page back to the pool and hold nothing."""
        for one in self.sequences:
            one.free()
        self.drops = [[] for _ in self.sequences]

    def check_integrity(self) -> None:
        """Raise AssertionError if pages and tokens contradict each other, or the pool does itself."""
        self.pool.check_integrity()
        for one in self.sequences:
            one.check_integrity()

    def _with(self, sequences: list[SequenceTables], drops: list[list[Dropped]]) -> "PagedCache":
        other = PagedCache.__new__(PagedCache)
        vars(other).update(vars(self))
        other.sequences, other.drops = sequences, drops
        return other

    def _check_policy(self) -> None:
        policy, shape = self.policy, self.shape
        policy.check_fits(shape.num_layers, shape.num_kv_heads)
        if policy.latent and not shape.shares_values:
            raise OptionError("latent is for models with latent attention; this one has keys and values")
        needs_rotation = policy.rerotate or (policy.eviction and policy.eviction.name == "expected")
        if needs_rotation and self.rotation is None:
            asks = "rerotate" if policy.rerotate else "expected"
            raise OptionError(
                f"{asks} must know how the model turns whole keys by their position, and this one does not "
                f"(or not wholly); take another eviction, such as snapkv or streaming"
            )
        if policy.rerotate and policy.element not in ("float32", "fp16", "bf16"):
            raise OptionError(
                f"rerotate turns stored keys again, which would quantise {policy.element} twice; "
                f"leave one of the two out"
            )
        if policy.rerotate and policy.eviction and policy.eviction.name == "pyramidkv":
            raise OptionError(
                "rerotate needs as many tokens in each layer, and pyramidkv keeps more in lower ones"
            )

    def _layer_budgets(self) -> tuple[int, ...] | None:
        eviction = self.policy.eviction
        if eviction is None:
            return None
        return layer_budgets(eviction.name, eviction.budget, self.shape.num_layers, self.policy.sinks)

    def _head_rules(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each head's window by the policy, and how many first keys it exempts: (L, G)."""
        shape = self.shape.num_layers, self.shape.num_kv_heads
        windows, first_keys = np.full(shape, NO_WINDOW), np.zeros(shape, np.int64)
        for layer, head in np.ndindex(shape):
            window = self.policy.window_of(layer, head)
            if window is not None:
                windows[layer, head] = window
            if window is not None or self.policy.eviction is not None:
                first_keys[layer, head] = self.policy.sinks
        self._model_windows = np.full(self.shape.num_layers, NO_WINDOW)
        return windows, first_keys

    @property
    def _takes_at_once(self) -> bool:
        """Whether a step's pages are those of all its layers together, so that none is given back between."""
        return self.policy.eviction is None and not self.layout.codecs.closes_pages

    def _forget_unfinished(self, one: SequenceTables, layer: int) -> None:
        """Take back what a step left in this layer that did not come to the last one."""
        if one.tokens[layer] == one.length:
            return
        for head, count in enumerate(one.held[layer].tolist()):
            if self.layout.tracks:
                positions = positions_of(one, layer, head, count)
                one.held[layer, head] = np.searchsorted(positions, one.length)
            else:
                one.held[layer, head] = count - (int(one.tokens[layer]) - one.length)
        one.tokens[layer] = one.length

    def _append_row(self, one: SequenceTables, layer: int, k: NDArray[Any], v: NDArray[Any] | None) -> None:
        count = k.shape[1]
        layers = slice(None) if layer == 0 and self._takes_at_once else slice(layer, layer + 1)
        first, end = one.pages_for(count, layers)
        one.filling.take(layers, one.filling.missing(layers, first, end))
        pages = np.arange(one.filling.ids.shape[2])
        one.filling.make_own(layers, (first[..., None] <= pages) & (pages < end[..., None]))
        rows = one.filling.layout.encode(k, None if self.shape.shares_values else v)
        if self.layout.tracks:
            positions = np.arange(one.tokens[layer], one.tokens[layer] + count, dtype=np.int32)
            rows["positions"] = np.broadcast_to(positions, k.shape[:2])
        write_rows(one.filling, layer, one.held[layer], rows)
        one.held[layer] += count
        one.tokens[layer] += count
        if one.closes_pages:
            close_pages(one, layer)

    def _sight(self, layer: int, new: NDArray[np.int64], window: int | None) -> Sight:
        windows = self.windows[layer]
        if window is not None:
            windows = np.minimum(windows, window)
        first_keys = self.first_keys[layer]
        B, G = self.batch_size, self.shape.num_kv_heads
        sees_all = bool((windows == NO_WINDOW).all())
        return Sight(
            new=new,
            windows=None if sees_all else np.broadcast_to(windows, (B, G)),
            first_keys=np.broadcast_to(first_keys, (B, G)),
        )

    def _evict_row(
        self, row: int, layer: int, q: NDArray[Any], lse: NDArray[Any], sight: Sight, rules: Rules
    ) -> None:
        eviction, one = self.policy.eviction, self.sequences[row]
        assert eviction is not None and self.budgets is not None
        count = int(sight.new[row])
        windows = None if sight.windows is None else sight.windows[row : row + 1]
        alone = Sight(sight.new[row : row + 1], windows, sight.first_keys[row : row + 1])
        step = SeenStep(q[:, :count], lse[:, :count], alone, rules)
        note_attention(one, layer, step, eviction)
        budget = self.budgets[layer]
        if self.policy.exceeds(int(one.held[layer, 0]), budget, count):
            options = {"budget": budget, "sinks": self.policy.sinks, "rotation": self.rotation}
            dropped = evict(one, layer, step, eviction, rerotates=self.policy.rerotate, **options)
            self.drops[row].append(dropped)

    def _effective_windows(self) -> NDArray[np.int64]:
        """Return how far back each head's queries see: the policy's window or the model's, (L, G)."""
        return np.minimum(self.windows, self._model_windows[:, None])

    def _drop_behind_windows(self) -> None:
        """Give back the pages that no later query sees."""
        windows = self._effective_windows()
        if self.policy.eviction is not None or (windows == NO_WINDOW).all():
            return
        P = self.layout.P
        for one in self.sequences:
            pages = np.arange(one.pages.ids.shape[2])
            sink_pages = -(-self.first_keys[..., None] // P)
            behind = np.maximum(one.held - windows, 0)[..., None] // P
            one.pages.drop(slice(None), (sink_pages <= pages) & (pages < behind))


def _split(
    D: int,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
) -> tuple[Rules, int | None]:
    """Return how scores become weights, and the window."""
    return Rules(D**-0.5 if scale is None else scale, softcap, sinks), window
