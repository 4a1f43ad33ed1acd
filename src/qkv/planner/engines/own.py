"""How our own cache is laid out: pages of one key head each, as `qkv.cache` allocates them, to the byte.

A page belongs to one key head of one layer of one sequence. A page that is encoded when full is held in
float32 until then. Pages behind a window go back, whether the window is the policy's or the model's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.cache.contiguous import CacheShape
from qkv.cache.elements import element_named
from qkv.cache.fitting import check_fits_model
from qkv.cache.layout import PageLayout
from qkv.cache.policy import Policy
from qkv.cache.prediction import dropped_pages, held_tokens, page_layout, predicted_height, telling_lengths
from qkv.cache.retention import layer_budgets
from qkv.cache.windows import NO_WINDOW, head_windows
from qkv.errors import CheckpointError, OptionError, PlanError
from qkv.models.llama import Llama
from qkv.models.loading import family_of
from qkv.planner.engines.own_weights import with_loaded_weights
from qkv.planner.layers import ModelMemory
from qkv.planner.storage import Storage
from qkv.planner.strategies import Demand, Request, Strategy, unshared
from qkv.planner.term import Term

COMPARED = ("", "fp16", "int8", "fp8-e4m3", "int8-kivi", "int4")
"""Policies that keep every token, in the order in which to try them."""

LOSSLESS = ("float32",)
"""Elements that keep the numbers the model works with."""

LEAST_KEPT = 64
"""Tokens an eviction keeps in a comparison, at least: SnapKV's window of queries."""

Counts = NDArray[np.int64]
"""(L, G), one number per key head; (L,) where it is the same for all heads of a layer."""


@dataclass(frozen=True)
class Own:
    """Pages from a pool, taken when a token needs one."""

    name: str = "qkv"
    usable_share: float = 1.0

    def loaded(self, model: ModelMemory, form: str | None) -> ModelMemory:
        """Return the model with the bytes that its weights take in panels for the kernels."""
        return with_loaded_weights(model, form)

    def check(self, model: ModelMemory, request: Request) -> None:
        """Raise `PlanError` if several devices are asked for."""
        if request.tensor_parallel > 1:
            raise PlanError(
                f"qkv runs on one device, not on {request.tensor_parallel}; leave tensor_parallel out, "
                "or plan for engine 'vllm' or 'ideal'"
            )

    def read(self, cache: str, request: Request) -> Strategy:
        """Return the strategy of a policy such as ``int8,window=1024,sinks=4``."""
        policy = parse_policy(cache)
        if request.page_size is not None and policy.page is None:
            policy = parse_policy(f"{policy},page={request.page_size}")
        if request.page_size not in (None, policy.page_size):
            raise PlanError(
                f"page_size {request.page_size} and page={policy.page_size} of the cache contradict; give one"
            )
        shares = (
            request.shared_prefix >= policy.page_size and policy.eviction is None and policy.window is None
        )
        text = str(policy) or policy.element
        return Strategy(
            title=f"{text}{', prefix shared' if shares else ''}",
            text=text,
            storage=Storage(policy.element, policy.element, 0, is_lossless=policy.element in LOSSLESS),
            page_size=policy.page_size,
            shares_prefix=shares,
            budget=policy.eviction.budget if policy.eviction else None,
            window=policy.window,
            sinks=policy.sinks,
            keeps_generated=policy.eviction is not None and not policy.eviction.acts_every_step,
        )

    def candidates(self, model: ModelMemory, request: Request) -> tuple[Strategy, ...]:
        """Return what to compare."""
        texts = [*COMPARED, f"snapkv={max(LEAST_KEPT, request.context // 4)}"]
        if any(group.key_dim % 2 or group.value_dim % 2 for group in model.layers):
            texts.remove("int4")  # stores two numbers a byte
        return tuple(self.read(text, request) for text in texts)

    def demand(self, model: ModelMemory, strategy: Strategy, request: Request) -> Demand:
        """Return what one device needs, page by page."""
        policy = parse_policy(strategy.text)
        layout = _layout(policy, model)
        N, prompt = request.context, request.context - request.new_tokens
        full, filling, common = _pages(policy, model, request, N, shares=strategy.shares_prefix)
        closed, under_way = int((full - common).sum()), int(filling.sum())
        most = max(
            _own_height(policy, model, request, length, strategy.shares_prefix)
            for length in telling_lengths(policy, N, prompt)
        )
        per_user = closed * layout.nbytes + under_way * layout.while_filling.nbytes
        return Demand(int(common.sum()) * layout.nbytes, per_user, most)

    def terms(self, model: ModelMemory, strategy: Strategy) -> tuple[Term, ...]:
        """Return the products behind a page of tokens."""
        policy = parse_policy(strategy.text)
        P, nbytes = policy.page_size, _layout(policy, model).nbytes
        factor = (nbytes, f"bytes a page of {P} tokens")
        return tuple(
            Term(kept, ((count, "key heads of all layers"), factor), tokens=P)
            for kept, count in _reaches(policy, model).items()
        )

    def remarks(self, strategies: Sequence[Strategy], request: Request) -> tuple[str, ...]:
        """Return which evictions take more than is shown once tokens are generated, or share nothing."""
        generation = () if request.new_tokens else _unsaid_generation(strategies, request.context)
        return (*generation, *unshared(strategies, request))


def _unsaid_generation(strategies: Sequence[Strategy], N: int) -> tuple[str, ...]:
    """Return what is assumed of evictions where nobody says how many tokens are generated."""
    beside = {
        True: "every token generated after it is kept besides",
        False: "while tokens are generated up to a page more is held",
    }
    evicting = [strategy for strategy in strategies if strategy.budget is not None]
    found = []
    for keeps, more in beside.items():
        texts = dict.fromkeys(each.text for each in evicting if each.keeps_generated == keeps)
        if texts:
            found.append(
                f"{' and '.join(texts)}: bytes after a prompt of all {N:,} tokens; {more}; "
                "say how many of the tokens are generated with new_tokens="
            )
    return tuple(found)


def parse_policy(text: str) -> Policy:
    """Return the policy of a text, with the planner's own error where it has none."""
    try:
        return Policy.parse(text)
    except OptionError as error:
        raise PlanError(str(error)) from error


def cache_shape(model: ModelMemory) -> CacheShape:
    """Return the shape of the cache that a model would get.

    Raises
    ------
    PlanError
        If qkv has no cache for such a model.

    Examples
    --------
    >>> from qkv.planner.sources import find_model
    >>> cache_shape(find_model("deepseek-v2-lite")).shares_values
    True
    """
    sizes = {(group.num_kv_heads, group.key_dim, group.value_dim) for group in model.layers}
    other = model.states or any(group.reach == "cross" or group.index_dim for group in model.layers)
    if other or len(sizes) != 1:
        raise PlanError(
            f"{model.name} keeps more than keys and values of one size for all layers, "
            "for which qkv has no cache; plan for another engine"
        )
    ((G, key_dim, value_dim),) = sizes
    is_latent = value_dim == 0
    return CacheShape(model.num_layers, G, key_dim, value_dim=value_dim or key_dim, shares_values=is_latent)


def _own_height(policy: Policy, model: ModelMemory, request: Request, N: int, shares: bool) -> int:
    """Return what a user takes, in pages that no other shares, in the step that brings a text to N tokens."""
    prompt = request.context - request.new_tokens
    height = predicted_height(cache_shape(model), policy, N, prompt, _model_windows(model))
    *_, common = _pages(policy, model, request, N, shares=shares)
    return height - int(common.sum()) * _layout(policy, model).nbytes


def _pages(
    policy: Policy, model: ModelMemory, request: Request, N: int, *, shares: bool
) -> tuple[Counts, Counts, Counts]:
    """Return the pages of each key head: encoded or never to be, still filling, and shared by all users."""
    shape, P = cache_shape(model), policy.page_size
    held = held_tokens(shape, policy, N, request.context - request.new_tokens)
    part = (held % P > 0).astype(np.int64)
    filling = part if element_named(policy.element).closes_pages else np.zeros_like(part)
    behind = dropped_pages(shape, policy, N, _model_windows(model))
    full = held // P + part - filling - behind
    common = np.full_like(full, request.shared_prefix // P if shares else 0)
    return full, filling, np.clip(common - behind, 0, full)


def _model_windows(model: ModelMemory) -> Counts:
    """Return each layer's own window, (L,)."""
    return np.array([group.window or NO_WINDOW for group in model.layers for _ in range(group.count)])


def _layout(policy: Policy, model: ModelMemory) -> PageLayout:
    shape = cache_shape(model)
    try:
        check_fits_model(policy, shape, _turns_whole_keys(model))
        return page_layout(shape, policy)
    except OptionError as error:
        raise PlanError(str(error)) from error


def _turns_whole_keys(model: ModelMemory) -> bool:
    """Whether a model turns whole keys by their position; one that qkv does not run is taken to do so."""
    try:
        return family_of(model.config) is Llama
    except CheckpointError:
        return True


def _reaches(policy: Policy, model: ModelMemory) -> Counter[str]:
    """Return in words what key heads keep, and how many keep that."""
    G, eviction = cache_shape(model).num_kv_heads, policy.eviction
    if eviction is not None:
        budgets = layer_budgets(eviction.name, eviction.budget, model.num_layers, policy.sinks)
        return Counter({f"about {budget:,} tokens": G * count for budget, count in Counter(budgets).items()})
    windows, first_keys = head_windows(policy, model.num_layers, G)
    windows = np.minimum(windows, _model_windows(model)[:, None])
    sinks = f"the first {policy.sinks} tokens and " if policy.sinks else ""
    return Counter(
        "every token" if window == NO_WINDOW else f"{sinks if first else ''}the last {window:,} tokens"
        for window, first in zip(windows.ravel().tolist(), first_keys.ravel().tolist(), strict=True)
    )
