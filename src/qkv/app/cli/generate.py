"""`qkv generate`: continue a prompt with a model from a folder, and say what the KV cache cost."""

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from qkv.cache import Cache
from qkv.engine import Generation
from qkv.errors import OptionError
from qkv.models import Model, load, new_cache
from qkv.ops.sampling import Sampling

WARM_UP_TOKENS = 16

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells count it."""


@dataclass(frozen=True)
class RunReport:
    """What one run made and what it took; the fields are those of ``--json``."""

    text: str
    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    prefill_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    cached_tokens: int
    kv_bytes_predicted: int
    kv_bytes_allocated: int

    @property
    def seconds(self) -> float:
        """Prefill and decode together."""
        return self.prefill_seconds + self.decode_seconds

    def line(self) -> str:
        """Return the one line shown under the text."""
        speed = (
            f"prefill {self.prefill_tokens_per_second:,.0f} tokens/s, "
            f"decode {self.decode_tokens_per_second:,.0f} tokens/s"
        )
        return (
            f"{self.prompt_tokens} + {self.new_tokens} tokens ({self.finish_reason}) · {speed} · {self._kv()}"
        )

    def _kv(self) -> str:
        if not self.kv_bytes_allocated:
            return "no KV cache"
        relation = "=" if self.kv_bytes_predicted == self.kv_bytes_allocated else "is not"
        return (
            f"KV {self.kv_bytes_predicted:,} bytes predicted {relation} "
            f"{self.kv_bytes_allocated:,} allocated for {self.cached_tokens} tokens"
        )


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")],
    model: Annotated[Path, typer.Option(help="A model folder: config.json, safetensors, tokenizer.json.")],
    max_tokens: Annotated[int, typer.Option(help="How many new tokens at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token each time.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens that reach p together.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens this likely relative to the best.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 makes seen tokens less likely.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes random choices reproducible.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the generation; repeatable.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute every token anew each step.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Run with and without the KV cache.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue PROMPT, streaming text, then print what it took."""
    if compare and no_cache:
        raise OptionError("--compare runs with and without the cache already; leave --no-cache out")
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    loaded = _load(model)
    _warm_up(loaded)

    def begin(cached: bool) -> tuple[Generation, Cache | None]:
        cache = new_cache(loaded) if cached else None
        made = Generation(loaded, prompt, sampling, max_tokens=max_tokens, stop=stop or (), cache=cache)
        return made, cache

    if compare:
        _compare(begin, prompt, as_json)
        return
    report = _run(*begin(not no_cache), prompt, stream=not as_json)
    _print_json({"prompt": prompt} | asdict(report)) if as_json else _note(report.line())
    if report.finish_reason == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _load(folder: Path) -> Model:
    """Load a model, saying what was odd about it in one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(folder)
    for warning in caught:
        _note(f"warning: {warning.message}")
    return model


def _warm_up(model: Model) -> None:
    """Load, or the very first time compile, the code for many tokens and for one: no figure shall hold it."""
    for num_tokens in (min(WARM_UP_TOKENS, model.context_length), 1):
        model.next_logits([0] * num_tokens)


def _run(generation: Generation, cache: Cache | None, prompt: str, *, stream: bool) -> RunReport:
    """Generate to the end or to Ctrl-C; what was made until then counts."""
    pieces: list[str] = []
    reason = ""
    if stream:
        _show(prompt)
    try:
        for piece in generation:
            pieces.append(piece)
            if stream:
                _show(piece)
    except KeyboardInterrupt:
        reason = "interrupted"
    if stream:
        _show("\n")
    cached_tokens = 0 if cache is None else cache.length
    return RunReport(
        text="".join(pieces),
        prompt_tokens=len(generation.prompt_ids),
        new_tokens=len(generation.new_ids),
        finish_reason=reason or str(generation.finish_reason),
        prefill_seconds=generation.prefill_seconds,
        decode_seconds=generation.decode_seconds,
        prefill_tokens_per_second=generation.prefill_tokens_per_second,
        decode_tokens_per_second=generation.decode_tokens_per_second,
        cached_tokens=cached_tokens,
        kv_bytes_predicted=0 if cache is None else cache.predict_nbytes(cached_tokens),
        kv_bytes_allocated=0 if cache is None else cache.nbytes,
    )


def _compare(
    begin: Callable[[bool], tuple[Generation, Cache | None]],
    prompt: str,
    as_json: bool,
) -> None:
    """Run with the cache, then without, and say how much faster the cache made it at this length."""
    cached = _run(*begin(True), prompt, stream=not as_json)
    uncached = _run(*begin(False), prompt, stream=False)
    speed_up = uncached.seconds / cached.seconds if cached.seconds else 0.0
    if as_json:
        runs = {"cached": asdict(cached), "uncached": asdict(uncached)}
        _print_json(
            {"prompt": prompt, **runs, "speed_up": speed_up, "same_text": cached.text == uncached.text}
        )
        return
    _note(f"with cache     {cached.line()}")
    _note(f"without cache  {uncached.line()}")
    same = "the same text" if cached.text == uncached.text else "NOT the same text"
    total = cached.prompt_tokens + cached.new_tokens
    _note(f"the cache made it {speed_up:.1f}x as fast at {total} tokens, with {same}")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(line: str) -> None:
    """Write a line about the run beside the text, not into it."""
    typer.secho(line, err=True, dim=True)


def _print_json(record: Mapping[str, object]) -> None:
    typer.echo(json.dumps(record, ensure_ascii=False, indent=2))
