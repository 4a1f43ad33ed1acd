"""Many requests at once: what comes out is, to the bit, what each would get alone.

A step runs one row of tokens through the model (`qkv.engine.batch`): a token of every text that is past its
prompt, and as much of the prompts behind them as a chunk holds. Which, the scheduler decides
(`qkv.engine.scheduler`).

Source of the idea: Yu et al. 2022 (Orca) for batches that change at every step, Kwon et al. 2023 (vLLM) for
pages and for giving way, Agrawal et al. 2024 (Sarathi-Serve) for prompts in chunks beside decoding.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from qkv.arguments import shown, whole_number
from qkv.cache import PagedCache, PagePool, Policy
from qkv.engine.fitting import learn_windows, longest_text, most_nbytes
from qkv.engine.generation import read_end_ids, room_behind
from qkv.engine.intake import check_request, read_prompt, read_stop
from qkv.engine.planning import Event, Run, cannot_fit
from qkv.engine.requests import Choice, FinishReason, Request
from qkv.engine.running import run_texts
from qkv.engine.scheduler import Scheduler
from qkv.engine.statistics import EngineStatistics, StepStatistics, weight_nbytes
from qkv.engine.stream import Stream
from qkv.engine.text import NewText
from qkv.errors import OptionError, QKVError
from qkv.models import Model, new_cache
from qkv.models.model import check_model
from qkv.ops.sampling import Sampling
from qkv.shapes import Logits

MAX_BATCH = 8
"""How many texts run at once where no number is given."""

CHUNK_TOKENS = 512
"""How many tokens of prompts are read in a step where no number is given."""


class Engine:
    """Runs requests together: each gets the tokens and logprobs, bit for bit, that it would get alone.

    Whatever runs beside it, in whatever chunks its prompt is read, whether its beginning was found in pages
    of another text, and however often it had to give way. There are no threads inside: `step` takes a step,
    and so does whoever iterates over a `Stream`.

    Parameters
    ----------
    model : Model
        From `qkv.load`.
    pool_bytes : int, optional
        The most bytes that all caches together may take; no limit when left out.
    policy : Policy or str
        Of the caches of requests that name none.
    max_batch : int
        How many texts run at once.
    chunk_tokens : int
        How many tokens of prompts are read in a step. Only a prompt under an eviction is read in one step
        whatever its length, because what is evicted depends on the step.
    prefix_sharing : bool
        Whether full pages are kept, as long as there is room, for requests that begin alike.
    clock : callable
        Seconds; for measuring.
    on_step : callable, optional
        Is given the `StepStatistics` of each step.

    Raises
    ------
    OptionError
        If the policy does not fit the model, or a number is too small.

    Examples
    --------
    ::

        engine = qkv.Engine(model, pool_bytes=2**30)
        streams = [engine.submit(prompt, max_tokens=64) for prompt in prompts]
        for piece in streams[0]:  # the others go on meanwhile
            print(piece, end="")
        engine.run()
    """

    def __init__(
        self,
        model: Model,
        pool_bytes: int | None = None,
        policy: Policy | str = "",
        *,
        max_batch: int = MAX_BATCH,
        chunk_tokens: int = CHUNK_TOKENS,
        prefix_sharing: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        on_step: Callable[[StepStatistics], object] | None = None,
    ) -> None:
        check_model(model)
        for name, number in (("max_batch", max_batch), ("chunk_tokens", chunk_tokens)):
            whole_number(name, number, least=1)
        self.model, self.pool, self.policy = model, PagePool(pool_bytes), _policy(policy)
        self._empty = new_cache(model, self.policy, pool=self.pool)
        if pool_bytes is not None:
            learn_windows(model, self._empty)
        self._scheduler = Scheduler(
            self.pool,
            self._new_cache,
            max_batch=max_batch,
            chunk_tokens=chunk_tokens,
            prefix_sharing=prefix_sharing,
        )
        self._clock, self._on_step = clock, on_step
        self._num_requests = 0
        self._weight_nbytes = weight_nbytes(model)
        self.statistics = EngineStatistics()

    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        policy: Policy | str | None = None,
        max_tokens: int = 128,
        stop: Sequence[str] = (),
        stop_ids: Iterable[int] = (),
        ignore_eos: bool = False,
        n: int = 1,
        prompt_logprobs: int | None = None,
        salt: str = "",
    ) -> Stream:
        """Put a request at the end of the line; nothing runs yet.

        Parameters
        ----------
        prompt : str or sequence of int
            Text, or ids that are taken as they are.
        sampling : Sampling, optional
            The most likely token each time when left out. It also says how long a text must at least be,
            and whether logprobs are wanted.
        policy : Policy or str, optional
            Of its cache; the engine's when left out.
        max_tokens : int
            How many new tokens at most; fewer where the model's context ends.
        stop : sequence of str
            Texts that end it and are no part of it.
        stop_ids : iterable of int
            Ids that do so, beside those of the model.
        ignore_eos : bool
            Whether the model's own end ids are tokens like others.
        n : int
            How many texts to make of the prompt, which is read once. They are the stream's ``choices``;
            the first is what one alone would be.
        prompt_logprobs : int, optional
            Report how likely each token of the prompt was, and so many of the most likely beside it.
        salt : str
            Pages are shared only with requests of the same.

        Returns
        -------
        Stream
            Of the first text. It has failed already, with `CacheFull`, if it could not fit into the pool
            even if nothing else were there.

        Raises
        ------
        PromptError
            If the prompt gives no token, one the model does not have, or as many as the context holds.
        OptionError
            If a value has no meaning, or the policy does not fit the model. No other request notices.
        """
        whole_number("max_tokens", max_tokens, least=1)
        prompt_ids = read_prompt(self.model, prompt)
        request = Request(
            number=self._num_requests,
            prompt_ids=prompt_ids,
            sampling=Sampling() if sampling is None else sampling,
            policy=self.policy if policy is None else _policy(policy),
            max_tokens=min(max_tokens, room_behind(prompt_ids, 0, self.model.context_length)),
            stop=read_stop(self.model, stop),
            end_ids=read_end_ids(self.model, stop_ids, ignore_eos=ignore_eos),
            n=n,
            prompt_logprobs=prompt_logprobs,
            salt=salt,
        )
        check_request(request, self.model.vocab_size, self._scheduler.max_batch)
        cache = self._new_cache(request.policy)
        texts = [NewText(self.model.tokenizer, prompt_ids, request.stop) for _ in range(n)]
        now = self._clock()
        choices = [Choice(request, index, list(prompt_ids), text, now) for index, text in enumerate(texts)]
        self._num_requests += 1
        self._scheduler.submit(choices)
        longest = longest_text(cache, len(prompt_ids), request.longest + 1)
        if longest <= request.longest:
            needed = most_nbytes(cache, request.longest, len(prompt_ids))
            for choice in choices:
                self._end(choice, "error", cannot_fit(cache, needed, longest))
        return Stream(choices, 0, self.step, self._clock)

    def step(self) -> StepStatistics | None:
        """Take one step; return what it did, or ``None`` if there is nothing to do.

        Whatever interrupts a step, no text is lost: all are read anew, and go on.
        """
        started, before = self._clock(), self._scheduler.counts
        try:
            plan = self._scheduler.plan()
            for choice, error in plan.failed:
                choice.end("error", self._clock(), error)
            runs = plan.runs
            if not runs:
                return None
            for run in runs:
                run.choice.begin(started)
            rows = run_texts(self.model, runs)
            memory = self._scheduler.memory
            num_new = self._go_on(runs, rows)
        except BaseException:
            self._scheduler.preempt_all()
            raise
        done = StepStatistics(
            step=self._scheduler.step,
            read_tokens=sum(len(run.ids) for run in runs if run.reads),
            decoded_tokens=sum(not run.reads for run in runs),
            new_tokens=num_new,
            cached_tokens=self._scheduler.counts.cached_tokens - before.cached_tokens,
            preemptions=self._scheduler.counts.preemptions - before.preemptions,
            running=self.num_running,
            waiting=self.num_waiting,
            memory=memory,
            weight_bytes=self._weight_nbytes,
            seconds=self._clock() - started,
        )
        self.statistics = self.statistics.after(done)
        if self._on_step is not None:
            self._on_step(done)
        return done

    def run(self) -> None:
        """Take steps until no request is left; streams keep the text that nobody has fetched."""
        while self.step() is not None:
            pass

    def abort(self, stream: Stream) -> None:
        """End one text now and give its pages back; the others of its request go on.

        What it has made stays in its stream. Nothing happens if it has ended.
        """
        if not isinstance(stream, Stream):
            raise OptionError(f"abort takes the stream that submit returned, not {shown(stream)}")
        if stream.choice.finish_reason is None:
            self._end(stream.choice, "abort")

    @property
    def max_batch(self) -> int:
        """How many texts run at once."""
        return self._scheduler.max_batch

    @property
    def log(self) -> Sequence[Event]:
        """The latest decisions of the scheduler."""
        return self._scheduler.log

    @property
    def num_running(self) -> int:
        """How many texts run."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """How many texts wait for their turn."""
        return self._scheduler.num_waiting

    def forget_prefixes(self) -> None:
        """Give back every page that is kept for later requests only."""
        self._scheduler.forget_prefixes()

    def check_integrity(self) -> None:
        """Raise AssertionError if queues, caches and pages contradict each other."""
        self._scheduler.check_integrity()

    def _go_on(self, runs: Sequence[Run], rows: Sequence[Logits | None]) -> int:
        """Let every text whose next token is due choose it; return how many were chosen."""
        num_new = 0
        for run, row in zip(runs, rows, strict=True):
            self._scheduler.has_run(run)
            if row is not None:
                for choice in (run.choice, *self._scheduler.fork(run.choice)):
                    num_new += self._say(choice, row)
        return num_new

    def _say(self, choice: Choice, logits: Logits) -> bool:
        """Let a text choose its next token; one that cannot fails alone. Return whether it has one more."""
        num_new = choice.num_new
        try:
            reason = choice.say(logits)
        except QKVError as error:
            self._end(choice, "error", error)
            return False
        if choice.first_token is None:
            choice.first_token = self._clock()
        if reason is not None:
            self._end(choice, reason)
        return choice.num_new > num_new

    def _end(self, choice: Choice, reason: FinishReason, error: QKVError | None = None) -> None:
        self._scheduler.remove(choice, choice.end(reason, self._clock(), error))

    def _new_cache(self, policy: Policy) -> PagedCache:
        return self._empty.beside(policy)


def _policy(policy: Policy | str) -> Policy:
    return policy if isinstance(policy, Policy) else Policy.parse(policy)
