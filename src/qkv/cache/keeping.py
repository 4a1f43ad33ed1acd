"""What a policy keeps of a text, in a model with windows of its own: who sees what, and what goes when."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.attending import Rules, Sight, held_positions
from qkv.cache.contiguous import CacheShape
from qkv.cache.evicting import Dropped, Rotation, SeenStep, evict, note_attention
from qkv.cache.policy import Policy
from qkv.cache.retention import layer_budgets
from qkv.cache.tables import Counts, SequenceTables, between
from qkv.cache.windows import NO_WINDOW, head_windows, pages_behind


class Keeping:
    """Budgets, and how far back each key head sees.

    Attributes
    ----------
    policy : Policy
    rotation : Rotation, optional
        How the model turns its keys.
    budgets : L integers, optional
        Tokens that an eviction leaves each key head of a layer; ``None`` without one.
    windows, first_keys : (L, G) int64
        By the policy: each head's window, and how many first keys it exempts.
    model_windows : list of L integers
        The model's own, as far as they are known: they come with its queries.
    """

    def __init__(
        self,
        policy: Policy,
        shape: CacheShape,
        rotation: Rotation | None,
        model_windows: list[int] | None = None,
    ) -> None:
        L, eviction = shape.num_layers, policy.eviction
        self.policy, self.rotation = policy, rotation
        self.budgets = eviction and layer_budgets(eviction.name, eviction.budget, L, policy.sinks)
        self.windows, self.first_keys = head_windows(policy, L, shape.num_kv_heads)
        self.model_windows = [NO_WINDOW] * L if model_windows is None else model_windows

    @property
    def effective_windows(self) -> Counts:
        """How far back each head's queries see: by the policy or the model, whichever is less, (L, G)."""
        return np.minimum(self.windows, np.array(self.model_windows)[:, None])

    @property
    def has_windows(self) -> bool:
        """Whether queries of some head do not see all that came before."""
        return self.policy.window is not None or min(self.model_windows) < NO_WINDOW

    def note_windows(self, windows: Sequence[int | None]) -> None:
        """Remember the model's own windows, of each layer."""
        for layer, window in enumerate(windows):
            if window is not None:
                self.model_windows[layer] = window

    def sight(self, sequences: list[SequenceTables], layer: int, new: Counts, window: int | None) -> Sight:
        """Return what the queries of a step see; ``window`` is the model's, which is remembered."""
        if window is not None:
            self.model_windows[layer] = window
        shape = len(sequences), self.windows.shape[1]
        first_keys = self.first_keys[layer : layer + 1]
        if len(sequences) > 1:
            first_keys = np.broadcast_to(first_keys, shape)
        if not self.has_windows:
            return Sight(new, None, first_keys)
        windows = np.minimum(self.windows[layer], self.model_windows[layer])
        if (windows == NO_WINDOW).all():
            return Sight(new, None, first_keys)
        stay = self.policy.eviction is None or self.policy.rerotate  # or their slots are not their positions
        positions = None if stay else held_positions(sequences, layer)
        return Sight(new, np.broadcast_to(windows, shape), first_keys, positions)

    def evict(
        self, one: SequenceTables, layer: int, q: NDArray[Any], lse: NDArray[Any], sight: Sight, rules: Rules
    ) -> Dropped | None:
        """Take note of a step of one sequence, and bring the layer down to its budget if that is exceeded.

        Parameters
        ----------
        one : SequenceTables
        layer : int
        q : (H, T, D)
        lse : (H, T)
        sight : Sight
            Of this sequence.
        rules : Rules

        Returns
        -------
        Dropped
            ``None`` if all stays.
        """
        count, eviction = int(sight.new[0]), self.policy.eviction
        if eviction is None or self.budgets is None or not count:
            return None
        step, budget = SeenStep(q[:, :count], lse[:, :count], sight, rules), self.budgets[layer]
        note_attention(one, layer, step, eviction)
        if not self.policy.exceeds(int(one.held[layer, 0]), budget, count):
            return None
        options = {"sinks": self.policy.sinks, "rotation": self.rotation, "rerotates": self.policy.rerotate}
        return evict(one, layer, step, eviction, budget=budget, **options)

    def drop_behind(self, one: SequenceTables) -> None:
        """Give back the pages that have fallen behind every window."""
        if self.policy.eviction is None and self.has_windows:
            first, end = pages_behind(one.held, self.effective_windows, self.first_keys, one.layout.P)
            one.pages.drop(slice(None), between(np.maximum(first, one.behind), end))
            one.behind = np.maximum(one.behind, end)
