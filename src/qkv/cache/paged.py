"""The cache of all policies: pages from a pool, in the form and for as long as a policy says.

A model sees two calls: `PagedCache.append` a layer's keys and values, `PagedCache.attend` with its
queries. Which tokens stay, in how many bits and in whose pages never shows there.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv.arguments import whole_number
from qkv.cache.appending import append_next, append_tokens
from qkv.cache.at_once import write_next
from qkv.cache.attending import Rules, attend_tables, check_queries
from qkv.cache.closing import drop_all_filled, drop_filled
from qkv.cache.contiguous import CacheShape, check_rows, real_counts
from qkv.cache.evicting import Dropped, Rotation
from qkv.cache.explanation import Explanation, explain
from qkv.cache.fitting import check_fits_model
from qkv.cache.identity import Identity
from qkv.cache.keeping import Keeping
from qkv.cache.policy import Policy
from qkv.cache.pool import PagePool
from qkv.cache.prediction import page_layout, predicted_nbytes
from qkv.cache.prefix import PrefixIndex
from qkv.cache.protocol import LayerRules
from qkv.cache.room import check_room, step_nbytes
from qkv.cache.saving import open_saved, save_sequences
from qkv.cache.sharing import adopt, check_shareable, namespace, remember
from qkv.cache.tables import SequenceTables
from qkv.cache.trimming import check_trim, check_unfinished, forget_unfinished, trim_sequence
from qkv.errors import OptionError
from qkv.ops.backend import is_compiled
from qkv.shapes import Array, Keys, Queries, Values

if TYPE_CHECKING:
    from qkv.kernels.next_tokens import NextTokens


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
        whole_number("batch_size", batch_size, least=1)
        self.shape = shape
        self.policy = policy if isinstance(policy, Policy) else Policy.parse(policy)
        self.pool = PagePool() if pool is None else pool
        self.rotation, self.fingerprint = rotation, fingerprint
        self.layout = page_layout(shape, self.policy)
        check_fits_model(self.policy, shape, rotation is not None)
        self.keeping = Keeping(self.policy, shape, rotation)
        sizes = shape.num_layers, shape.num_kv_heads
        self.sequences = [SequenceTables(self.pool, self.layout, *sizes) for _ in range(batch_size)]
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
    def nbytes(self) -> int:
        """Bytes of all pages that the sequences hold; one that several hold counts once."""
        tables = [table for one in self.sequences for table in one.tables]
        ids = np.unique(np.concatenate([table.ids[table.present] for table in tables]))
        return int(self.pool.sizes(ids).sum())

    def predict_nbytes(self, num_tokens: int, prompt_tokens: int | None = None) -> int:
        """Return what ``nbytes`` will be once each sequence has ``num_tokens``: see `predicted_nbytes`."""
        windows = np.array(self.keeping.model_windows) if self.keeping.has_windows else None
        return self.batch_size * predicted_nbytes(self.shape, self.policy, num_tokens, prompt_tokens, windows)

    def positions(self, num_tokens: int) -> NDArray[np.int64]:
        """Return at which rotary positions the next T tokens of each sequence stand: ``(B, T)``."""
        held = [int(one.finished[-1, 0]) if self.policy.rerotate else one.length for one in self.sequences]
        return np.array([range(first, first + num_tokens) for first in held], np.int64)

    def append(self, layer: int, k: Keys, v: Values | None, lengths: Sequence[int] | None = None) -> None:
        """Put one step's keys and values behind those that every layer has.

        Its tokens count when its queries have attended in the last layer. A step that was broken off before
        leaves nothing behind, unless it has evicted tokens, or added to the scores by which h2o evicts: the
        next one begins where it began.

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
            If the arrays are not of the cache's shape, or ``lengths`` not of theirs.
        CacheFull
            If the step does not fit into the pool's budget; then the cache is as it was.
        TrimError
            If an interrupted step has done that; `free` the cache, and compute the text anew.
        """
        check_rows(self.shape, self.batch_size, k, v)
        new = real_counts(self.batch_size, k.shape[2], lengths)
        self._begin(layer)
        if layer == 0:
            check_room(self.sequences, new, self.keeping.budgets, self.policy)
        if k.shape[2] == 1 and new.all() and self._takes_at_once and is_compiled():
            append_next(self.sequences, layer, k, None if self.shape.shares_values else v)
            return
        at_once = layer == 0 and self._takes_at_once
        for row, one in enumerate(self.sequences):
            tokens = slice(int(new[row]))
            values = None if v is None or self.shape.shares_values else v[row, :, tokens]
            append_tokens(one, layer, k[row, :, tokens], values, for_all_layers=at_once)

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

        Raises
        ------
        ShapeError
            If the queries are not of the cache's shape, or ``lengths`` not of theirs.
        OptionError
            If they have attended before, and their pages have been encoded since.
        """
        check_queries(self.shape, self.batch_size, q)
        new = real_counts(self.batch_size, q.shape[2], lengths)
        weighing, window = _split(q.shape[-1], **rules)
        sight = self.keeping.sight(self.sequences, layer, new, window)
        output, lse = attend_tables(self.sequences, layer, q, sight, weighing)
        for row, one in enumerate(self.sequences):
            if self.policy.eviction is not None and (
                dropped := self.keeping.evict(one, layer, q[row], lse[row], sight.of_row(row), weighing)
            ):
                self.drops[row].append(dropped)
            if one.closes_pages:
                drop_filled(one, layer)
        if layer == self.shape.num_layers - 1:
            self._finish_step()
        return output

    def at_once(
        self, num_tokens: int, windows: Sequence[int | None]
    ) -> "AbstractContextManager[NextTokens] | None":
        """Return a step of one token for each sequence, or ``None``: see `qkv.cache.at_once`.

        For policies under which all that a step writes is float32 and stays at least until its end.

        Raises
        ------
        CacheFull
            If the step does not fit into the pool's budget; then the cache is as it was.
        TrimError
            If an interrupted step has evicted tokens, or added to their scores.
        """
        plain = self._takes_at_once and self.policy.element == "float32" and not self.shape.shares_values
        # A class of its own may do more in `append` and `attend`, which would be passed over.
        if num_tokens != 1 or not plain or type(self) is not PagedCache or not is_compiled():
            return None
        return self._step(windows)

    @contextmanager
    def _step(self, windows: Sequence[int | None]) -> "Iterator[NextTokens]":
        self._begin(0)
        check_room(self.sequences, [1] * self.batch_size, self.keeping.budgets, self.policy)
        self.keeping.note_windows(windows)
        with write_next(self.sequences, self.keeping) as tokens:
            yield tokens
        self._finish_step()

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
        whole_number("a length to trim to", length, most=self.length)
        ends = [min(one.length, length) for one in self.sequences]
        longer = [pair for pair in zip(self.sequences, ends, strict=True) if pair[0].reaches_beyond(pair[1])]
        for one, end in longer:
            check_trim(one, end, self.keeping.effective_windows, self.policy)
        for one, end in longer:
            trim_sequence(one, end)
        self._forget_later_drops()

    def fork(self) -> "PagedCache":
        """Return a cache of the same tokens that shares every page until one of the two writes to it."""
        return self._with([one.fork() for one in self.sequences], [list(some) for some in self.drops])

    def rows(self, rows: Sequence[int]) -> "PagedCache":
        """Return a cache of some of the sequences, which belong to both: for a step of only these.

        Raises
        ------
        OptionError
            If there is none, one comes twice, or one is not there.
        """
        B = self.batch_size
        if len(set(rows)) < max(1, len(rows)) or not all(0 <= row < B for row in rows):
            raise OptionError(
                f"a step is of one sequence or more, from 0 to {B - 1}, each once, not of {list(rows)}"
            )
        return self._with([self.sequences[row] for row in rows], [self.drops[row] for row in rows])

    def adopt_prefix(
        self, index: PrefixIndex, tokens: ArrayLike, row: int = 0, *, salt: str = "", adapter: str = ""
    ) -> int:
        """Begin an empty sequence with the pages of the longest known beginning of its text.

        What is then computed is, to the bit, what it would have been without. At least the last token is
        left to compute; a page under way is copied, if there is room for that.

        Parameters
        ----------
        index : PrefixIndex
            Of this cache's pool and page size.
        tokens : (S,) integers
            The whole text.
        row : int
            Which sequence.
        salt, adapter : str
            As given to `remember_prefix`; pages of another model, policy or shape are never found.

        Returns
        -------
        int
            How many leading tokens need not be run.

        Raises
        ------
        OptionError
            If the sequence is not empty, the index is of other pages, or the policy's eviction goes by
            the queries of the whole text.

        Examples
        --------
        >>> pool = PagePool()
        >>> index = PrefixIndex(pool, page_size=16)
        >>> shape = CacheShape(num_layers=1, num_kv_heads=2, head_dim=4)
        >>> first, second = PagedCache(shape, pool=pool), PagedCache(shape, pool=pool)
        >>> k = v = np.ones((1, 2, 40, 4), np.float32)
        >>> first.append(0, k, v)
        >>> output = first.attend(0, k)
        >>> first.remember_prefix(index, range(40))
        32
        >>> second.adopt_prefix(index, [*range(20), 99, 98]), second.length
        (20, 20)
        """
        one = self.sequences[row]
        check_shareable(index, one, self.policy)
        num_tokens = adopt(one, index, tokens, namespace(self._identity, salt), adapter)
        self.keeping.drop_behind(one)
        return num_tokens

    def known_prefix(
        self, index: PrefixIndex, tokens: ArrayLike, *, salt: str = "", adapter: str = ""
    ) -> int:
        """Return with how many tokens in full pages `adopt_prefix` would begin a text; takes none of them.

        Parameters
        ----------
        index, tokens, salt, adapter
            As of `adopt_prefix`.
        """
        last = index.last_known(
            np.asarray(tokens)[:-1], salt=namespace(self._identity, salt), adapter=adapter
        )
        return last.depth * index.page_size

    def remember_prefix(
        self, index: PrefixIndex, tokens: ArrayLike, row: int = 0, *, salt: str = "", adapter: str = ""
    ) -> int:
        """Let an index keep the full pages of a sequence, for other texts that begin alike.

        Only pages before which nothing was dropped: see `qkv.cache.sharing`.

        Parameters
        ----------
        index : PrefixIndex
            Of this cache's pool and page size.
        tokens : (S,) integers
            The text that was run; ids behind what was run do not count.
        row : int
            Which sequence.
        salt, adapter : str
            Found only by those who give the same.

        Returns
        -------
        int
            How many leading tokens the index knows from now on, until it gives them back.

        Raises
        ------
        ShapeError
            If there are fewer tokens than were run.
        OptionError
            If the index is of other pages, or the policy's eviction goes by the queries of a whole text.
        """
        check_shareable(index, self.sequences[row], self.policy)
        return remember(self.sequences[row], index, tokens, namespace(self._identity, salt), adapter)

    def save(self, path: str | Path) -> None:
        """Write all that is held to a safetensors file, in the form in which it is held.

        Whatever interrupts it, a file that was there before stays until the new one is whole.

        Raises
        ------
        CacheFileError
            If the file cannot be written.
        """
        windows = np.array(self.keeping.model_windows)
        save_sequences(Path(path), self._identity, self.sequences, self.drops, windows)

    @classmethod
    def load(
        cls,
        path: str | Path,
        shape: CacheShape,
        policy: Policy | str | None = None,
        *,
        pool: PagePool | None = None,
        rotation: Rotation | None = None,
        fingerprint: str = "",
    ) -> "PagedCache":
        """Return a cache as `save` left it, which goes on with the same bits.

        Parameters
        ----------
        path : str or Path
        shape, pool, rotation, fingerprint
            As for a new cache.
        policy : Policy or str, optional
            What the file must have been saved under; whatever that was when left out.

        Raises
        ------
        CacheFileError
            If the file is missing, damaged, no saved cache, or one of another model, policy or shape.
        CacheFull
            If it does not fit into the pool's budget; then the pool is as it was.
        """
        with open_saved(Path(path)) as saved:
            policy = saved.policy if policy is None else policy
            policy = Policy.parse(policy) if isinstance(policy, str) else policy
            saved.check_identity(Identity.of(fingerprint, policy, shape))
            options = {"pool": pool, "rotation": rotation, "fingerprint": fingerprint}
            cache = cls(shape, policy, saved.batch_size, **options)
            cache.drops = saved.fill(cache.sequences)
        cache.keeping.model_windows = saved.windows.tolist()
        return cache

    def explain(self) -> Explanation:
        """Return which head holds what in which pages, and what was dropped when and by which score.

        Examples
        --------
        >>> cache = PagedCache(CacheShape(num_layers=1, num_kv_heads=3, head_dim=4), "streaming=10,page=4")
        >>> cache.append(0, *np.ones((2, 1, 3, 40, 4), np.float32))
        >>> output = cache.attend(0, np.ones((1, 3, 40, 4), np.float32))
        >>> print(cache.explain())
        streaming=10,page=4: 1,440 bytes, 0.312 times the 4,608 of all tokens in float32
        <BLANKLINE>
        sequence 0: 40 tokens
        layers  heads  tokens  pages  shared  bytes  window  sinks  positions
        0       0-2        10      3       0    480     all      4  0-3, 34-39
        <BLANKLINE>
        dropped by streaming=10 (score: how recent a token is; the lowest go)
        layers  heads  times  after  tokens  positions
        0       0-2        1     40      30  4-33
        >>> cache.explain().heads[0, 0, 2].positions  # row, layer, head
        array([ 0,  1,  2,  3, 34, 35, 36, 37, 38, 39], dtype=int32)
        """
        return explain(self, self.keeping.effective_windows)

    @classmethod
    def joined(cls, caches: Sequence["PagedCache"]) -> "PagedCache":
        """Return a cache of the sequences of several, which belong to both: for a step of all of them.

        Raises
        ------
        OptionError
            If there is none, one comes twice, or they differ in model, policy or pool.

        Examples
        --------
        >>> shape = CacheShape(num_layers=1, num_kv_heads=2, head_dim=4)
        >>> first = PagedCache(shape)
        >>> PagedCache.joined([first, first.beside()]).batch_size
        2
        """
        sequences = [one for cache in caches for one in cache.sequences]
        kinds = {(cache.policy, cache.shape, cache.fingerprint, id(cache.pool)) for cache in caches}
        if len(kinds) != 1 or len(set(map(id, sequences))) < len(sequences):
            raise OptionError("expected caches of one model, policy and pool, each once; join those that are")
        for cache in caches:  # what one learns of the model's windows the others are to know
            cache.keeping = caches[0].keeping
        return caches[0]._with(sequences, [drops for cache in caches for drops in cache.drops])

    def beside(self, policy: Policy | str | None = None, *, pool: PagePool | None = None) -> "PagedCache":
        """Return an empty cache of one sequence for the same model, with what is known of its windows.

        Parameters
        ----------
        policy : Policy or str, optional
            This cache's when left out.
        pool : PagePool, optional
            This cache's when left out.
        """
        other = PagedCache(
            self.shape,
            self.policy if policy is None else policy,
            pool=self.pool if pool is None else pool,
            rotation=self.rotation,
            fingerprint=self.fingerprint,
        )
        other.keeping.model_windows = self.keeping.model_windows
        return other

    def step_nbytes(self, num_tokens: int) -> int:
        """Return how many bytes a step of T tokens for each sequence takes from the pool at its height."""
        new = np.full(self.batch_size, num_tokens)
        return step_nbytes(self.sequences, new, self.keeping.budgets, self.policy)

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

    @property
    def _identity(self) -> Identity:
        return Identity.of(self.fingerprint, self.policy, self.shape)

    def _with(self, sequences: list[SequenceTables], drops: list[list[Dropped]]) -> "PagedCache":
        other = PagedCache.__new__(PagedCache)
        vars(other).update(vars(self))
        other.sequences, other.drops = sequences, drops
        return other

    def _begin(self, layer: int) -> None:
        """Go back to where the last finished step ended."""
        layers = slice(None) if layer == 0 else slice(layer, layer + 1)
        for one in self.sequences:
            check_unfinished(one, layers, self.policy)
        is_broken_off = layer == 0 and any(one.is_unfinished() for one in self.sequences)
        for one in self.sequences:
            forget_unfinished(one, layers)
        if is_broken_off:
            self._forget_later_drops()

    def _forget_later_drops(self) -> None:
        """Forget what was dropped by tokens that are forgotten."""
        for drops, one in zip(self.drops, self.sequences, strict=True):
            drops[:] = [dropped for dropped in drops if dropped.at <= one.length]

    @property
    def _takes_at_once(self) -> bool:
        """Whether a step's pages are those of all its layers together, so that none is given back between."""
        return self.policy.eviction is None and not self.layout.codecs.closes_pages

    def _finish_step(self) -> None:
        """Count its tokens; give back what was there for it alone, and the pages that no later query sees."""
        # First: until then the step may be taken back, by means of what is given back here.
        for one in self.sequences:
            one.finish_step()
        for one in self.sequences:
            if one.closes_pages:
                drop_all_filled(one)
            self.keeping.drop_behind(one)


def _split(
    D: int,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
) -> tuple[Rules, int | None]:
    """Return how scores become weights, and the window."""
    return Rules(D**-0.5 if scale is None else scale, softcap, sinks), window
