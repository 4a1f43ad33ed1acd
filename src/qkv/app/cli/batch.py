"""`qkv generate --prompts FILE --out FILE`: a file of prompts through the engine, a line of JSON for each.

A line of prompts is an object with ``prompt``, a text or a list of token ids, and whatever of `FIELDS` is to
be other than on the command line. ``id`` names it in the output; where there is none the number of its line
does.

Lines are written as they are done, each whole and at once, so the order is that of the ends. What a line says
depends on its prompt and its options alone, not on what ran beside it. Begun again with the same files, the
command leaves out what is there and does the rest; a line that an interruption cut short is done anew.
``options`` of a line is a fingerprint of all that its text depends on but the prompt: where it is another
than now, the report says so.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qkv.app.cli.console import read_text
from qkv.app.cli.sampling import logprobs_record
from qkv.engine import Engine, Stream
from qkv.engine.bad_words import spell
from qkv.errors import OptionError, QKVError
from qkv.ops.sampling import Sampling

SAMPLING_FIELDS = frozenset(
    {"temperature", "top_k", "top_p", "min_p", "min_tokens", "seed", "logprobs", "logit_bias", "bad_words"}
    | {"repetition_penalty", "presence_penalty", "frequency_penalty"}
)
FIELDS = SAMPLING_FIELDS | {"id", "prompt", "max_tokens", "stop", "stop_ids", "ignore_eos", "cache"}
"""What a line of prompts may say."""


@dataclass(frozen=True)
class Line:
    """One prompt of a file.

    Attributes
    ----------
    id : str or int
    prompt : str or list of int
        As it is given; ``None`` where there is none.
    options : mapping
        Those of `FIELDS` that it gives.
    error : str
        Why it cannot be read; empty if it can.
    """

    id: str | int
    prompt: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def parse(cls, text: str, number: int) -> "Line":
        """Read a line; what is wrong with it is part of the result.

        Examples
        --------
        >>> Line.parse('{"prompt": "Once", "seed": 7}', number=3)
        Line(id=3, prompt='Once', options={'seed': 7}, error='')
        >>> Line.parse('{"prompt": "Once", "sed": 7}', number=3).error
        "line 3 has a field 'sed', and there is no such option"
        """
        try:
            said = json.loads(text)
        except ValueError as error:
            return cls(number, None, error=f"line {number} is no JSON: {error}")
        if not isinstance(said, dict) or "prompt" not in said:
            return cls(number, None, error=f'line {number} is no object with a "prompt"')
        name, prompt = said.get("id", number), said["prompt"]
        options = {key: value for key, value in said.items() if key not in ("id", "prompt")}
        if not isinstance(name, str | int) or isinstance(name, bool):
            return cls(
                number, prompt, error=f"line {number} has an id that is neither text nor a whole number"
            )
        wrong = _wrong(options)
        return cls(name, prompt, options, f"line {number} has {wrong}" if wrong else "")

    @property
    def key(self) -> str:
        """Tells 7 from "7"."""
        return json.dumps(self.id)


@dataclass(frozen=True)
class Ends:
    """What ends a text: these strings, these ids, and the model's own end ids unless they are ignored."""

    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Defaults:
    """What the command line says, for lines that say nothing of it."""

    sampling: Sampling
    max_tokens: int
    ends: Ends
    run: str = ""
    """Model, weights and cache, as text that another run can be told from."""

    def fingerprint(self, line: Line) -> str:
        """Return eight characters that are others where anything a line's text depends on is another.

        Examples
        --------
        >>> line, defaults = Line(1, "Once"), Defaults(Sampling(), 7, Ends())
        >>> defaults.fingerprint(line) == replace(defaults, max_tokens=8).fingerprint(line)
        False
        """
        said = repr((self, sorted(line.options.items())))
        return hashlib.sha256(said.encode()).hexdigest()[:8]


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """What a batch made and took; the fields are those of ``--json``.

    Of the ``done_before`` lines, which are kept, ``failed_before`` have an error, and ``others_before`` were
    answered with other options than now.
    ``kv_bytes_peak`` is the most that the texts of one step held, a shared page counted for each of them;
    ``kv_bytes_pool_peak`` the most that was allocated: each page once, those kept for later texts included.
    """

    lines: int
    done_before: int = 0
    failed_before: int = 0
    others_before: int = 0
    done: int
    failed: int
    interrupted: bool = False
    prompt_tokens: int
    prefix_hit_tokens: int
    new_tokens: int
    seconds: float
    tokens_per_second: float
    gigabytes_per_second: float
    preemptions: int
    kv_bytes_predicted: int
    kv_bytes_peak: int
    kv_bytes_pool_peak: int

    def text(self) -> str:
        """Return the lines shown behind the run."""
        failed = f", {self.failed:,} with an error" if self.failed else ""
        relation = "=" if self.kv_bytes_predicted == self.kv_bytes_peak else "is not"
        return (
            f"{self.done_before + self.done:,} of {self.lines:,} lines{failed} · "
            f"{self.new_tokens:,} new tokens, {self.tokens_per_second:,.0f} a second, "
            f"reading {self.gigabytes_per_second:.2g} GB/s\n"
            f"{self.prompt_tokens:,} prompt tokens, {self.prefix_hit_tokens:,} found in shared pages · "
            f"KV {self.kv_bytes_predicted:,} bytes predicted {relation} {self.kv_bytes_peak:,} held at most, "
            f"{self.kv_bytes_pool_peak:,} allocated · {self.preemptions:,} preemptions{self._before()}"
        )

    def _before(self) -> str:
        """Return a line on what was there, empty where nothing was."""
        if not self.done_before:
            return ""
        failed = f", {self.failed_before:,} of them with an error" if self.failed_before else ""
        others = f", {self.others_before:,} with other options than now" if self.others_before else ""
        anew = "; to have such lines anew, take them out of --out" if failed or others else ""
        are = (
            "lines were answered before and are"
            if self.done_before > 1
            else "line was answered before and is"
        )
        return f"\n{self.done_before:,} {are} kept{failed}{others}{anew}"

    @property
    def has_failed(self) -> bool:
        """Whether a line has an error, now or from before."""
        return self.failed + self.failed_before > 0


@dataclass(frozen=True)
class _Answered:
    """A line of the output: whether it has an error, and its fingerprint where it has one."""

    failed: bool
    options: str | None


def _wrong(options: Mapping[str, Any]) -> str:
    """Say which option is unknown or of another type than it must be; `Sampling` looks at its own."""
    for name, value in options.items():
        if name not in FIELDS:
            return f"a field {name!r}, and there is no such option"
        if name == "max_tokens" and type(value) is not int:
            return f"max_tokens {value!r}, which is no whole number"
        if name == "cache" and not isinstance(value, str):
            return f"cache {value!r}, which is no text"
        if name == "stop" and not _is_list_of(str, value):
            return f"stop {value!r}, which is no list of texts"
        if name == "stop_ids" and not _is_list_of(int, value):
            return f"stop_ids {value!r}, which is no list of token ids"
        if name == "ignore_eos" and type(value) is not bool:
            return f"ignore_eos {value!r}, which is neither true nor false"
        if name == "bad_words" and not isinstance(value, list):
            return f"bad_words {value!r}, which is no list of words"
    return ""


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is kind for one in value)


def run_batch(engine: Engine, prompts: Path, out: Path, defaults: Defaults) -> BatchReport:
    """Run what is in one file and not yet in the other.

    Raises
    ------
    OptionError
        If a file cannot be read or written, an id comes twice, or the output is that of other prompts.
    """
    lines = read_prompts(prompts)
    there = _done_before(out, lines)
    todo = [line for line in lines if line.key not in there]
    try:
        file = out.open("ab", buffering=0)
    except OSError as error:
        raise OptionError(f"--out: {out} cannot be written: {error.strerror}") from error
    with file, _progress() as progress:
        task = progress.add_task("", total=len(lines), completed=len(there), speed="")
        batch = _Batch(engine, file, defaults)
        interrupted = False
        try:
            for done in batch.run(todo):
                speed = f"{engine.statistics.tokens_per_second:,.0f} tokens/s"
                progress.update(task, completed=len(there) + done, speed=speed)
        except KeyboardInterrupt:
            interrupted = True
    return replace(
        batch.report(lines=len(lines)),
        done_before=len(there),
        failed_before=sum(answered.failed for answered in there.values()),
        others_before=_answered_otherwise(there, lines, defaults),
        interrupted=interrupted,
    )


def _answered_otherwise(there: Mapping[str, _Answered], lines: Sequence[Line], defaults: Defaults) -> int:
    """Return how many lines of the output are known to have been made with other options."""
    before = ((line, there[line.key].options) for line in lines if line.key in there)
    return sum(options not in (None, defaults.fingerprint(line)) for line, options in before)


def read_prompts(path: Path) -> list[Line]:
    """Return the prompts of a file; lines without anything are none.

    Raises
    ------
    OptionError
        If it cannot be read, or an id comes twice.
    """
    texts = read_text("--prompts", path).splitlines()
    lines = [Line.parse(text, number) for number, text in enumerate(texts, 1) if text.strip()]
    seen: set[str] = set()
    for line in lines:
        if line.key in seen:
            raise OptionError(f"--prompts: the id {line.key} comes twice, and it must tell one line")
        seen.add(line.key)
    return lines


def _done_before(out: Path, lines: Sequence[Line]) -> dict[str, _Answered]:
    """Return what the output has by its ids, and cut off a last line that is not whole."""
    if not out.exists():
        return {}
    content = out.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    prompt_of = {line.key: line.prompt for line in lines}
    done: dict[str, _Answered] = {}
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            said = json.loads(text)
            key, prompt = json.dumps(said["id"]), said["prompt"]
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(
                f"--out: line {number} of {out} is none of a batch; give another file"
            ) from error
        if key not in prompt_of or prompt_of[key] != prompt:
            raise OptionError(f"--out: {out} has an id {key} of other prompts; give another file")
        done[key] = _Answered("error" in said, said.get("options"))
    if len(whole) < len(content):
        with out.open("r+b") as file:
            file.truncate(len(whole))
    return done


class _Batch:
    """Keeps the engine's line short, so that a file of any length is read as it goes."""

    def __init__(self, engine: Engine, file: BinaryIO, defaults: Defaults) -> None:
        self.engine, self.file, self.defaults = engine, file, defaults
        self.done = self.failed = self.prompt_tokens = 0
        self._live: list[tuple[Line, Stream]] = []

    def run(self, todo: Sequence[Line]) -> Iterator[int]:
        """Yield, after each step, how many lines are written."""
        waiting = deque(todo)
        while waiting or self._live:
            while waiting and self.engine.num_waiting < self.engine.max_batch:
                self._submit(waiting.popleft())
            self.engine.step()
            for line, stream in self._live[:]:
                if stream.finish_reason is not None:
                    self._write(line, stream)
                    self._live.remove((line, stream))
            yield self.done

    def _submit(self, line: Line) -> None:
        try:
            self._live.append((line, _submitted(self.engine, line, self.defaults)))
        except QKVError as error:
            self._write_record(line, {"error": str(error)})

    def _write(self, line: Line, stream: Stream) -> None:
        pieces: list[str] = []
        with suppress(QKVError):  # it is in the record
            pieces.extend(stream)
        record: dict[str, Any] = {
            "text": "".join(pieces),
            "finish_reason": stream.finish_reason,
            "prompt_tokens": len(stream.prompt_ids),
            "new_tokens": len(stream.new_ids),
        }
        if stream.logprobs:
            record["logprobs"] = logprobs_record(stream.logprobs, self.engine.model.tokenizer)
        self.prompt_tokens += len(stream.prompt_ids)
        self._write_record(line, record if stream.error is None else record | {"error": str(stream.error)})

    def _write_record(self, line: Line, made: Mapping[str, Any]) -> None:
        record = {"id": line.id, "prompt": line.prompt, "options": self.defaults.fingerprint(line), **made}
        self.file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self.done += 1
        self.failed += "error" in record

    def report(self, *, lines: int) -> BatchReport:
        """Return what has been made, and what it took, as if nothing had been there before."""
        figures, pool = self.engine.statistics, self.engine.pool
        return BatchReport(
            lines=lines,
            done=self.done,
            failed=self.failed,
            prompt_tokens=self.prompt_tokens,
            prefix_hit_tokens=figures.cached_tokens,
            new_tokens=figures.new_tokens,
            seconds=figures.seconds,
            tokens_per_second=figures.tokens_per_second,
            gigabytes_per_second=figures.gigabytes_per_second,
            preemptions=figures.preemptions,
            kv_bytes_predicted=figures.peak.predicted_bytes,
            kv_bytes_peak=figures.peak.held_bytes,
            kv_bytes_pool_peak=pool.peak_nbytes,
        )


def _submitted(engine: Engine, line: Line, defaults: Defaults) -> Stream:
    if line.error:
        raise OptionError(line.error)
    given = dict(line.options)
    own = {name: given.pop(name) for name in SAMPLING_FIELDS & given.keys()}
    if "bad_words" in own:
        own["bad_words"] = spell(own["bad_words"], engine.model.tokenizer)
    if "logit_bias" in own:
        own["logit_bias"] = _bias(own["logit_bias"])
    ends = {name: given[name] for name in ("stop", "stop_ids", "ignore_eos") if name in given}
    return engine.submit(
        line.prompt,
        sampling=replace(defaults.sampling, **own),
        policy=given.get("cache"),
        max_tokens=given.get("max_tokens", defaults.max_tokens),
        **asdict(replace(defaults.ends, **ends)),
    )


def _bias(said: Any) -> Any:
    """Return a bias with ids for keys: in JSON a key is always text."""
    try:
        return {int(token_id): added for token_id, added in said.items()}
    except (AttributeError, ValueError):
        return said  # `Sampling` says what is wrong with it


def _progress() -> Progress:
    """Return a bar on the terminal; none where there is no terminal."""
    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
