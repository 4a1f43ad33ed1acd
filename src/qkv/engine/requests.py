"""What is asked of an engine, and how far each text has come.

A `Request` never changes. Each of its n texts is a `Choice`, which one owner changes: the scheduler what
is run and remembered, the engine what is said.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

from qkv.cache import PagedCache, Policy
from qkv.engine.text import NewText
from qkv.errors import QKVError
from qkv.ops.logprobs import TokenLogprobs, token_logprobs
from qkv.ops.sampling import Sampling, sample
from qkv.shapes import Logits

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Request:
    """One prompt, and what to make of it.

    Attributes
    ----------
    number : int
        The place in the order of arrival.
    prompt_ids : tuple of int
    sampling : Sampling
    policy : Policy
        Of the texts' caches.
    max_tokens : int
        At least 1, and no more than the model's context has room for.
    stop : tuple of str
        Texts that end a text, and are no part of it.
    end_ids : frozenset of int
        Ids that end a text, and are no part of it.
    n : int
        How many texts.
    prompt_logprobs : int, optional
        How many of the most likely tokens to report beside each token of the prompt; ``None`` reports none.
    salt : str
        Beginnings are shared only with requests of the same.
    """

    number: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    policy: Policy
    max_tokens: int
    stop: tuple[str, ...] = ()
    end_ids: frozenset[int] = frozenset()
    n: int = 1
    prompt_logprobs: int | None = None
    salt: str = ""

    @property
    def longest(self) -> int:
        """Tokens that a cache comes to hold: of the last one nobody asks what comes behind it."""
        return len(self.prompt_ids) + self.max_tokens - 1

    @property
    def repeats_steps(self) -> bool:
        """Whether what is kept of a text depends on the steps it came in.

        Evictions look at what a step leaves behind. Such a prompt is read in one step, and a text that is
        computed anew goes through the same steps again: its prompt, then token by token.
        """
        return self.policy.eviction is not None

    def most_steps(self, chunk_tokens: int) -> int:
        """Return in how many steps it is through at the latest, once no earlier request is left.

        The prompt's chunks, of which the last gives the first token, and a step for each other token. A text
        that has to be read anew with what it has made needs no more: it has those tokens already.

        Examples
        --------
        Chunks of 32, 32, 32 and 4 tokens, and 19 steps behind them:

        >>> Request(0, (5,) * 100, Sampling(), Policy(), max_tokens=20).most_steps(chunk_tokens=32)
        23
        """
        chunks = 1 if self.repeats_steps else -(-len(self.prompt_ids) // chunk_tokens)
        return self.n * (chunks + self.max_tokens - 1)


@dataclass(eq=False)
class Choice:
    """One text in the making.

    Attributes
    ----------
    request : Request
    index : int
        Which of the request's n texts.
    ids : list of int
        Prompt and new tokens.
    text : NewText
    cache : PagedCache or None
        ``None`` while it waits, and when it has ended.
    followers : list of Choice
        Those of the same request that will begin from this one's cache when the prompt has been read.
    pieces : deque of str
        Text that nobody has fetched yet.
    logprobs, prompt_logprobs : list of TokenLogprobs
        Of the new tokens and of the prompt's from the second on, where they were asked for.
    finish_reason : FinishReason or None
        ``None`` while it goes on.
    error : QKVError or None
        Why it failed.
    """

    request: Request
    index: int
    ids: list[int]
    text: NewText
    submitted: float
    cache: PagedCache | None = None

    def __post_init__(self) -> None:
        self.generator = self.request.sampling.generator(self.index)
        self.followers: list[Choice] = []
        self.pieces: deque[str] = deque()
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.error: QKVError | None = None
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.finished: float | None = None
        self.cached_tokens = 0
        self.preemptions = 0
        self.past_evicted_tokens = 0
        self.peak_nbytes = 0

    @property
    def order(self) -> tuple[int, int]:
        """Who is earlier in line."""
        return self.request.number, self.index

    @property
    def num_new(self) -> int:
        """How many tokens it has made."""
        return len(self.ids) - len(self.request.prompt_ids)

    @property
    def num_texts(self) -> int:
        """How many texts go on with it: itself, and those that follow."""
        return 1 + len(self.followers)

    @property
    def num_held(self) -> int:
        """How many tokens have been run, whether their keys are still there or not."""
        return 0 if self.cache is None else self.cache.length

    @property
    def num_unread(self) -> int:
        """How many tokens have not been run."""
        return len(self.ids) - self.num_held

    @property
    def is_reading(self) -> bool:
        """Whether it is still at its prompt, or at what it has to read anew."""
        return self.num_new == 0 or self.num_unread > 1

    @property
    def evicted_tokens(self) -> int:
        """What its policy has evicted, over layers and key heads; what it had, where the cache is gone."""
        if self.cache is None:
            return self.past_evicted_tokens
        return sum(dropped.positions.size for dropped in self.cache.drops[0])

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether there are tokens of the prompt of which it is yet to be said how likely they were."""
        request = self.request
        return request.prompt_logprobs is not None and len(self.prompt_logprobs) < len(request.prompt_ids) - 1

    def begin(self, now: float) -> None:
        """Note when its first step began."""
        if self.admitted is None:
            self.admitted = now

    def say(self, logits: Logits) -> FinishReason | None:
        """Choose the next token, and show what text it gives; return why the text ends with it, if it does.

        Parameters
        ----------
        logits : (V,)

        Raises
        ------
        QKVError
            If no token can be chosen; then nothing has changed.
        """
        request, sampling = self.request, self.request.sampling
        token_id = sample(
            logits, sampling, self.generator, self.ids, num_new=self.num_new, end_ids=request.end_ids
        )
        if token_id in request.end_ids:
            return "stop"
        if sampling.logprobs is not None:
            self.logprobs.append(token_logprobs(logits, token_id, sampling.logprobs))
        self.ids.append(token_id)
        self._show(self.text.push(token_id))
        if self.text.stopped:
            return "stop"
        return "length" if self.num_new == request.max_tokens else None

    def end(self, reason: FinishReason, now: float, error: QKVError | None = None) -> FinishReason:
        """Show what was withheld, as no more is to come, and return why the text has ended.

        In what was withheld a stop string may be found; then that was why.
        """
        self._show(self.text.finish())
        self.finish_reason = "stop" if self.text.stopped and reason == "length" else reason
        self.error, self.finished = error, now
        return self.finish_reason

    def _show(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)

    def next_ids(self, chunk_tokens: int, *, may_exceed: bool) -> tuple[int, ...]:
        """Return the tokens to run next, at most ``chunk_tokens`` of them; none if that will not do.

        Parameters
        ----------
        chunk_tokens : int
        may_exceed : bool
            Whether what must be read in one step may be more than that.
        """
        held, prompt = self.num_held, len(self.request.prompt_ids)
        if not self.request.repeats_steps:
            return tuple(self.ids[held : held + chunk_tokens])
        end = max(prompt, held + 1)
        return tuple(self.ids[held:end]) if may_exceed or end - held <= chunk_tokens else ()
