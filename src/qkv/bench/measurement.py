"""What was measured, as values; tables and files are views of them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from qkv.bench.machine import Machine
from qkv.bench.stopwatch import Spread

Sizes = Mapping[str, int | str]


@dataclass(frozen=True)
class Workload:
    """A piece of work, whoever does it.

    Parameters
    ----------
    name : str
        The kind of work: one table each.
    sizes : mapping of str to int or str
        What tells this work from others of its kind, in the letters of the dimension key.
    flops : int or None
        Multiplications and additions of the products; None where they are not counted.
    num_bytes : int or None
        Operands and results, each once: what has to pass through memory at least.
    """

    name: str
    sizes: Sizes
    flops: int | None = None
    num_bytes: int | None = None


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as a peer.

    Parameters
    ----------
    peer : str
        The library, or another way of our own.
    spread : Spread
        Of the ratios of each round; above 1 where we are faster.
    form : str
        Which of the peer's ways to do it; the fastest was taken.
    """

    peer: str
    spread: Spread
    form: str = ""


@dataclass(frozen=True)
class Share:
    """Which part of what the machine can do was reached.

    Parameters
    ----------
    limit : str
        One of the names in `qkv.bench.limits`.
    spread : Spread
        Of the shares of each round; 1 is the limit.
    rate : float
        The limit itself: operations or bytes per second, the median of the rounds.
    """

    limit: str
    spread: Spread
    rate: float


@dataclass(frozen=True)
class Measurement:
    """One piece of work, measured beside its peers and the machine's limits.

    Parameters
    ----------
    work : Workload
    seconds : Spread
        Of one call.
    ratios : tuple of Ratio
    shares : tuple of Share
    peak_bytes : mapping of str to int
        The most memory that each way held at once, where that was measured.
    notes : tuple of str
        What a reader has to know.

    Examples
    --------
    >>> work = Workload("product", {"n": 1000}, flops=2 * 1000**3, num_bytes=12 * 1000**2)
    >>> measured = Measurement(work, Spread(0.01, 0.01, 0.02))
    >>> measured.flops_per_second / 1e9, measured.bytes_per_second / 1e9
    (200.0, 1.2)
    """

    work: Workload
    seconds: Spread
    ratios: tuple[Ratio, ...] = ()
    shares: tuple[Share, ...] = ()
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def flops_per_second(self) -> float | None:
        """Operations per second, at the median time."""
        return None if self.work.flops is None else self.work.flops / self.seconds.median

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes per second, at the median time."""
        return None if self.work.num_bytes is None else self.work.num_bytes / self.seconds.median

    def ratio(self, peer: str) -> Ratio | None:
        """Return the ratio to a peer, if it was compared."""
        return next((ratio for ratio in self.ratios if ratio.peer == peer), None)

    def share(self, limit: str) -> Share | None:
        """Return the share of a limit, if it was compared."""
        return next((share for share in self.shares if share.limit == limit), None)

    def record(self) -> dict[str, Any]:
        """Return the figure for JSON: one flat object."""
        return {
            "name": self.work.name,
            "sizes": dict(self.work.sizes),
            "seconds": asdict(self.seconds),
            "flops": self.work.flops,
            "bytes": self.work.num_bytes,
            "flops_per_second": self.flops_per_second,
            "bytes_per_second": self.bytes_per_second,
            "ratios": [{"peer": r.peer, "form": r.form, **asdict(r.spread)} for r in self.ratios],
            "shares": [{"limit": s.limit, "limit_rate": s.rate, **asdict(s.spread)} for s in self.shares],
            "peak_bytes": dict(self.peak_bytes),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Skipped:
    """A piece of work that was not measured, and why."""

    work: Workload
    reason: str

    def record(self) -> dict[str, Any]:
        """Return the entry for JSON."""
        return {"name": self.work.name, "sizes": dict(self.work.sizes), "reason": self.reason}


Result = Measurement | Skipped


@dataclass(frozen=True)
class Report:
    """Everything one run found out.

    Parameters
    ----------
    machine : Machine
    pairs : int
        Rounds that each figure comes from.
    notes : tuple of str
        What a reader has to know about the whole run.
    results : tuple of Measurement or Skipped
    """

    machine: Machine
    pairs: int
    notes: tuple[str, ...]
    results: tuple[Result, ...]

    def record(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "machine": asdict(self.machine),
            "pairs": self.pairs,
            "notes": list(self.notes),
            "measurements": [result.record() for result in measured(self.results)],
            "skipped": [result.record() for result in self.results if isinstance(result, Skipped)],
        }


def measured(results: Iterable[Result]) -> list[Measurement]:
    """Return the results without what was skipped."""
    return [result for result in results if isinstance(result, Measurement)]
