"""`qkv generate`: continue a prompt with a model from a folder, and say what the KV cache cost."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.app.cli.batch import Defaults, Ends, run_batch
from qkv.app.cli.console import note
from qkv.app.cli.loading import load_model, warm_up
from qkv.app.cli.sampling import logprobs_record, parse_bias
from qkv.app.cli.status import INTERRUPTED
from qkv.cache import PagedCache, PagePool, Policy
from qkv.engine import Engine, Generation
from qkv.engine.bad_words import spell
from qkv.engine.engine import MAX_BATCH
from qkv.engine.fitting import learn_windows, longest_text
from qkv.errors import CacheFull, OptionError, PlanError
from qkv.models import Model, new_cache
from qkv.models.shipped import folder_of
from qkv.models.weights import Weights
from qkv.ops.sampling import Sampling
from qkv.planner.units import parse_bytes


@dataclass(frozen=True)
class CacheChoice:
    """Which cache was asked for: what it keeps, and the bytes it may take.

    Examples
    --------
    >>> CacheChoice.parse("sinks=4,window=64,int8", "64KiB")
    CacheChoice(policy=Policy('int8,window=64,sinks=4'), budget_bytes=65536)
    """

    policy: Policy
    budget_bytes: int | None

    @classmethod
    def parse(cls, policy: str, budget: str | None) -> "CacheChoice":
        """Read what was typed.

        Raises
        ------
        OptionError
            That names the option whose text has no meaning.
        """
        try:
            kept = Policy.parse(policy)
        except OptionError as error:
            raise OptionError(f"--cache: {error}") from error
        try:
            return cls(kept, None if budget is None else parse_bytes(budget))
        except PlanError as error:
            raise OptionError(f"--cache-budget: {error}") from error

    def new_cache(self, model: Model) -> PagedCache:
        """Return an empty cache of this kind."""
        cache = new_cache(model, self.policy, pool=PagePool(self.budget_bytes))
        if self.budget_bytes is not None:
            learn_windows(model, cache)
        return cache


@dataclass(frozen=True)
class RunReport:
    """What one run made and what it took; the fields are those of ``--json``.

    ``logprobs`` is ``None`` unless they were asked for.
    """

    text: str
    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    prefill_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    cached_tokens: int
    policy: str | None
    kv_bytes_budget: int | None
    kv_bytes_predicted: int
    kv_bytes_allocated: int
    kv_bytes_peak: int
    context_length: int
    error: str | None
    logprobs: list[dict[str, Any]] | None = None

    @property
    def seconds(self) -> float:
        """Prefill and decode together."""
        return self.prefill_seconds + self.decode_seconds

    def record(self) -> dict[str, Any]:
        """Return the report for JSON, without logprobs that nobody asked for."""
        fields = asdict(self)
        return fields if self.logprobs is not None else {k: v for k, v in fields.items() if k != "logprobs"}

    def line(self) -> str:
        """Return the one line shown under the text."""
        speed = (
            f"prefill {self.prefill_tokens_per_second:,.0f} tokens/s, "
            f"decode {self.decode_tokens_per_second:,.0f} tokens/s"
        )
        return f"{self.prompt_tokens} + {self.new_tokens} tokens ({self._end()}) · {speed} · {self._kv()}"

    def _end(self) -> str:
        """Return why the text ended, and whether it was the model that had no room for more."""
        is_full = self.prompt_tokens + self.new_tokens >= self.context_length
        if self.finish_reason != "length" or not is_full:
            return self.finish_reason
        return f"length: the model's context of {self.context_length:,} tokens is full"

    def _kv(self) -> str:
        if self.policy is None:
            return "no KV cache"
        relation = "=" if self.kv_bytes_predicted == self.kv_bytes_allocated else "is not"
        policy = "" if self.policy == "float32" else f"{self.policy}: "
        budget = "" if self.kv_bytes_budget is None else f", of {self.kv_bytes_budget:,} allowed"
        return (
            f"KV {policy}{self.kv_bytes_predicted:,} bytes predicted {relation} "
            f"{self.kv_bytes_allocated:,} allocated for {self.cached_tokens} tokens{budget}"
        )


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The text to continue.")] = None,
    model: Annotated[
        str, typer.Option(help="A folder with config.json and safetensors; verse comes with qkv.")
    ] = "verse",
    prompts: Annotated[
        Path | None, typer.Option(help='In its place, a file of them: {"prompt": "Once"} on each line.')
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where their texts go; begun again, the rest is done.")
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option(help=f"How many prompts of a file run at once; {MAX_BATCH} if not given.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="How many new tokens at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token each time.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens that reach p together.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens this likely relative to the best.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 makes seen tokens less likely.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Taken off the logits of generated tokens.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, for each time they came.")] = 0.0,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="Added to a token's logit: 5=-2.5; repeatable.")
    ] = None,
    bad_word: Annotated[list[str] | None, typer.Option(help="A word not to be written; repeatable.")] = None,
    min_tokens: Annotated[int, typer.Option(help="So many tokens come before the text may end.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Makes random choices reproducible.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the generation; repeatable.")] = None,
    stop_id: Annotated[list[int] | None, typer.Option(help="Token id that does so; repeatable.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's own end.")] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="How likely each token was, and the k likeliest, in the JSON.")
    ] = None,
    weights: Annotated[Weights, typer.Option(help="How the weights are kept in memory.")] = "as stored",
    cache: Annotated[
        str, typer.Option(help="What the KV cache keeps, and how: int8,window=1024. Empty keeps all.")
    ] = "",
    cache_budget: Annotated[
        str | None, typer.Option(help="The most memory it may take, with its unit: 64MiB.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute every token anew each step.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Run with and without the KV cache.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue PROMPT, streaming text, then print what it took; or continue each prompt of a file."""
    choice = CacheChoice.parse(cache, cache_budget)
    _require_sense(choice, no_cache=no_cache, compare=compare)
    files = _batch_files(prompt, prompts, out, alone=no_cache or compare)
    if max_batch is not None and files is None:
        raise OptionError(
            "--max-batch is about the prompts of a file; leave it out, or add --prompts and --out"
        )
    if logprobs is not None and files is None and not as_json:
        raise OptionError("--logprobs are shown in JSON only; add --json")
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=parse_bias(logit_bias or ()),
        min_tokens=min_tokens,
        logprobs=logprobs,
    )
    ends = Ends(tuple(stop or ()), tuple(stop_id or ()), ignore_eos)
    loaded = load_model(model, weights)
    sampling = replace(sampling, bad_words=spell(bad_word or (), loaded.tokenizer))
    warm_up(loaded, None if no_cache else choice.policy)
    if files is not None:
        at_once = MAX_BATCH if max_batch is None else max_batch
        engine = Engine(loaded, choice.budget_bytes, choice.policy, max_batch=at_once)
        run = f"{folder_of(model).resolve()} {weights} {choice.policy}"
        _run_files(engine, *files, Defaults(sampling, max_tokens, ends, run), as_json)
        return
    assert prompt is not None, "without files there is a prompt"

    def begin(cached: bool) -> tuple[Generation, PagedCache | None]:
        new = choice.new_cache(loaded) if cached else None
        made = Generation(loaded, prompt, sampling, max_tokens=max_tokens, cache=new, **asdict(ends))
        if new is not None:
            num_prompt = len(made.prompt_ids)
            _require_room(new, num_prompt, min(max_tokens, loaded.context_length - num_prompt))
        return made, new

    if compare:
        warm_up(loaded, None)
        _compare(begin, prompt, as_json)
        return
    report = _run(*begin(not no_cache), prompt, stream=not as_json)
    _print_json({"prompt": prompt} | report.record()) if as_json else note(report.line())
    if report.error is not None:
        raise OptionError(report.error)
    if report.finish_reason == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _batch_files(
    prompt: str | None, prompts: Path | None, out: Path | None, *, alone: bool
) -> tuple[Path, Path] | None:
    """Return the two files of a batch, ``None`` where one prompt is given."""
    if prompt is not None and prompts is None and out is None:
        return None
    if prompt is not None or prompts is None or out is None:
        raise OptionError("expected either a PROMPT, or --prompts FILE and --out FILE")
    if alone:
        raise OptionError("--compare and --no-cache are for one PROMPT; leave them out with --prompts")
    return prompts, out


def _run_files(engine: Engine, prompts: Path, out: Path, defaults: Defaults, as_json: bool) -> None:
    report = run_batch(engine, prompts, out, defaults)
    _print_json(asdict(report)) if as_json else note(report.text())
    if report.interrupted:
        note("begin again with the same files, and the rest is done")
        raise typer.Exit(INTERRUPTED)
    if report.has_failed:
        raise typer.Exit(1)


def _require_sense(choice: CacheChoice, *, no_cache: bool, compare: bool) -> None:
    if compare and no_cache:
        raise OptionError("--compare runs with and without the cache already; leave --no-cache out")
    if no_cache and choice != CacheChoice(Policy(), None):
        raise OptionError("--cache and --cache-budget are about the cache that --no-cache does without")


def _require_room(cache: PagedCache, prompt_tokens: int, new_tokens: int) -> None:
    """Refuse a text that would outgrow the budget, before any of it is run."""
    budget, asked = cache.pool.budget_bytes, prompt_tokens + new_tokens
    longest = longest_text(cache, prompt_tokens, asked)
    if budget is None or longest == asked:
        return
    raise OptionError(
        f"--cache-budget of {budget:,} bytes is too small for the {prompt_tokens:,} tokens of the prompt and "
        f"{new_tokens:,} new ones: the longest text that fits has {longest:,} tokens, new ones included; "
        "raise it, take fewer --max-tokens, or let --cache keep less, as int8 and streaming=256 do"
    )


def _run(generation: Generation, cache: PagedCache | None, prompt: str, *, stream: bool) -> RunReport:
    """Generate to the end, to Ctrl-C or until the cache is full; what was made until then counts."""
    pieces: list[str] = []
    reason, error = "", None
    if stream:
        _show(prompt)
    try:
        for piece in generation:
            pieces.append(piece)
            if stream:
                _show(piece)
    except KeyboardInterrupt:
        reason = "interrupted"
    except CacheFull as full:
        reason, error = "cache full", _explain(full, generation)
        if not generation.new_ids:
            raise OptionError(error) from full
    finally:
        if stream:
            _show("\n")
    reason = reason or str(generation.finish_reason)
    return _report(generation, cache, "".join(pieces), reason, error)


def _explain(full: CacheFull, generation: Generation) -> str:
    """Say what did not fit, and what to try."""
    new = len(generation.new_ids)
    what = f"the {len(generation.prompt_ids)} tokens of the prompt" if not new else f"new token {new}"
    return (
        f"--cache-budget of {full.budget_bytes:,} bytes is too small for {what}: "
        f"{full.asked_pages * full.page_nbytes:,} bytes more were needed, {full.free_bytes:,} were free; "
        "raise it, or let --cache keep less, as int8 and streaming=256 do"
    )


def _report(
    generation: Generation, cache: PagedCache | None, text: str, reason: str, error: str | None
) -> RunReport:
    prompt_tokens = len(generation.prompt_ids)
    cached_tokens = 0 if cache is None else cache.length
    predicted = 0 if cache is None else cache.predict_nbytes(cached_tokens, min(prompt_tokens, cached_tokens))
    return RunReport(
        text=text,
        prompt_tokens=prompt_tokens,
        new_tokens=len(generation.new_ids),
        finish_reason=reason,
        prefill_seconds=generation.prefill_seconds,
        decode_seconds=generation.decode_seconds,
        prefill_tokens_per_second=generation.prefill_tokens_per_second,
        decode_tokens_per_second=generation.decode_tokens_per_second,
        cached_tokens=cached_tokens,
        policy=None if cache is None else str(cache.policy) or "float32",
        kv_bytes_budget=None if cache is None else cache.pool.budget_bytes,
        kv_bytes_predicted=predicted,
        kv_bytes_allocated=0 if cache is None else cache.nbytes,
        kv_bytes_peak=0 if cache is None else cache.pool.peak_nbytes,
        context_length=generation.context_length,
        error=error,
        logprobs=logprobs_record(generation.logprobs, generation.tokenizer)
        if generation.wants_logprobs
        else None,
    )


def _compare(
    begin: Callable[[bool], tuple[Generation, PagedCache | None]],
    prompt: str,
    as_json: bool,
) -> None:
    """Run with the cache, then without, and say how much faster the cache made it at this length."""
    cached = _run(*begin(True), prompt, stream=not as_json)
    if cached.error is not None:
        _print_json({"prompt": prompt, "cached": cached.record()}) if as_json else note(cached.line())
        raise OptionError(cached.error)
    uncached = _run(*begin(False), prompt, stream=False)
    speed_up = uncached.seconds / cached.seconds if cached.seconds else 0.0
    if as_json:
        runs = {"cached": cached.record(), "uncached": uncached.record()}
        _print_json(
            {"prompt": prompt, **runs, "speed_up": speed_up, "same_text": cached.text == uncached.text}
        )
        return
    note(f"with cache     {cached.line()}")
    note(f"without cache  {uncached.line()}")
    same = "the same text" if cached.text == uncached.text else "NOT the same text"
    total = cached.prompt_tokens + cached.new_tokens
    note(f"the cache made it {speed_up:.1f}x as fast at {total} tokens, with {same}")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_json(record: Mapping[str, object]) -> None:
    typer.echo(json.dumps(record, ensure_ascii=False, indent=2))
