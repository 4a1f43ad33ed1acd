"""What this machine offers: vector registers, and processor cores that this process may really use.

The core count of the host is not the answer to "how many threads": a container's quota, an affinity
mask or the neighbours' processes make it less, and threads beyond the budget wait for each other.
"""

import os
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from qkv.errors import OptionError

THREADS_VARIABLE = "QKV_NUM_THREADS"
"""Sets the threads of each process; only the explicit argument is stronger."""

LIMIT_VARIABLE = "NUMBA_NUM_THREADS"
"""Says how many threads the compiler can ever start in a process."""


@dataclass(frozen=True)
class Tile:
    """A rectangle of results that fits into the vector registers, beside its operands.

    Parameters
    ----------
    rows, vectors : int
        Rows, and vectors in each.
    width : int
        Float32 lanes of one vector.
    fused : bool
        Whether the machine multiplies and adds with one rounding.
    """

    rows: int
    vectors: int
    width: int
    fused: bool = True

    @property
    def columns(self) -> int:
        """Numbers in each row."""
        return self.vectors * self.width


def tile_for(features: Mapping[str, bool], machine: str) -> Tile:
    """Choose vector width and tile for a processor.

    32 registers hold 8 x 2 results with their operands, 16 registers 6 x 2.

    Parameters
    ----------
    features : mapping of str to bool
        Features by LLVM's names, such as "avx2".
    machine : str
        The architecture, as `platform.machine` names it.

    Returns
    -------
    Tile

    Examples
    --------
    >>> tile_for({"avx2": True, "fma": True}, "x86_64")
    Tile(rows=6, vectors=2, width=8, fused=True)
    """
    if machine.lower() in ("aarch64", "arm64"):
        return Tile(rows=8, vectors=2, width=4)
    fused = features.get("fma", False)
    if fused and features.get("avx512f"):
        return Tile(rows=8, vectors=2, width=16)
    if fused and features.get("avx2"):
        return Tile(rows=6, vectors=2, width=8)
    return Tile(rows=6, vectors=2, width=4, fused=fused)


@cache
def host_features() -> Mapping[str, bool]:
    """Return the processor's features by LLVM's names; none where LLVM cannot tell."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return {}


HOST_TILE = tile_for(host_features(), platform.machine())
VECTOR_WIDTH = HOST_TILE.width
TILE_ROWS = HOST_TILE.rows
TILE_VECTORS = HOST_TILE.vectors


def is_supported() -> bool:
    """Return whether kernels run here: they need fused multiply-add in the processor."""
    return HOST_TILE.fused


@dataclass(frozen=True)
class ThreadChoice:
    """How many threads each process takes, and why.

    Parameters
    ----------
    count : int
        Threads, at least 1.
    reason : str
        What decided, in words.
    """

    count: int
    reason: str


def choose_threads(
    *,
    host_cores: int,
    affinity: Collection[int] | None = None,
    quotas: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    argument: int | None = None,
    workers: int = 1,
) -> ThreadChoice:
    """Choose the number of threads of each worker process.

    The argument wins, then ``QKV_NUM_THREADS``. Otherwise the budget is the least of the cores, the
    affinity mask, the quotas, ``OMP_NUM_THREADS`` and ``NUMBA_NUM_THREADS``, and the workers share it.

    Parameters
    ----------
    host_cores : int
        Cores of the machine.
    affinity : collection of int, optional
        Cores that this process may run on.
    quotas : sequence of str
        Limits of the control groups around this process, as in ``cpu.max``: ``"quota period"`` in
        microseconds, where a quota of ``max`` or ``-1`` is none. What does not read so is no limit.
    environment : mapping of str to str, optional
    argument : int, optional
        What the caller asks for.
    workers : int
        Processes that share the machine.

    Returns
    -------
    ThreadChoice

    Raises
    ------
    OptionError
        For a count that is not a whole number of at least 1.

    Examples
    --------
    >>> choose_threads(host_cores=8, quotas=["400000 100000"])
    ThreadChoice(count=4, reason='CPU quota of 4 cores')
    """
    variables = environment or {}
    if argument is not None:
        return ThreadChoice(_whole(argument, "num_threads"), "asked for")
    if variables.get(THREADS_VARIABLE):
        return ThreadChoice(_whole(variables[THREADS_VARIABLE], THREADS_VARIABLE), THREADS_VARIABLE)
    limits = [(host_cores, "cores of the machine")]
    if affinity is not None:
        limits.append((len(affinity), f"affinity to {len(affinity)} cores"))
    limits += [(max(1, int(cores)), f"CPU quota of {cores:g} cores") for cores in _quota_cores(quotas)]
    for name in ("OMP_NUM_THREADS", LIMIT_VARIABLE):
        if variables.get(name):
            outermost = variables[name].split(",")[0]  # OpenMP has one number for each nesting level
            limits.append((_whole(outermost, name), name))
    budget, reason = min(limits, key=lambda limit: limit[0])
    if _whole(workers, "workers") == 1:
        return ThreadChoice(max(1, budget), reason)
    return ThreadChoice(max(1, budget // workers), f"{reason}, shared by {workers} workers")


def _whole(value: int | str, name: str) -> int:
    try:
        count = int(value)
    except ValueError:
        count = 0
    if count < 1:
        raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}; try {name}=1")
    return count


def _quota_cores(quotas: Sequence[str]) -> list[float]:
    cores = []
    for text in quotas:
        quota, _, period = text.strip().partition(" ")
        if quota.isdigit() and period.isdigit() and int(quota) > 0 < int(period):
            cores.append(int(quota) / int(period))
    return cores


def read_quotas(root: Path = Path("/")) -> list[str]:
    """Read the CPU quotas of the control groups around this process, innermost first.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.

    Returns
    -------
    list of str
        ``"quota period"`` each, empty where the system has no control groups.
    """
    quotas = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounts = [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"] if controllers else ["sys/fs/cgroup"]
        for mount in mounts:
            for folder in _up(root / mount, path):
                quotas.append(_text(folder / "cpu.max"))
                quotas.append(f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}")
    return [quota for quota in quotas if quota.strip()]


def _up(mount: Path, path: str) -> list[Path]:
    """Return a group's folder and those above it, up to the mount; a limit anywhere holds."""
    inner = mount / path.lstrip("/")
    return [inner, *(folder for folder in inner.parents if folder.is_relative_to(mount))]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


_chosen: ThreadChoice | None = None


def thread_choice() -> ThreadChoice:
    """Return how many threads kernels use here, and why; read from the machine once."""
    return _chosen or set_num_threads(None)


def num_threads() -> int:
    """Return how many threads kernels use."""
    return thread_choice().count


def set_num_threads(count: int | None, *, workers: int = 1) -> ThreadChoice:
    """Set how many threads kernels use from now on.

    Parameters
    ----------
    count : int or None
        Threads; None chooses from the machine anew.
    workers : int
        Processes that share the machine.

    Returns
    -------
    ThreadChoice

    Raises
    ------
    OptionError
        For a count below 1.

    Notes
    -----
    The compiler fixes how many threads it can ever start when it is imported: by
    ``NUMBA_NUM_THREADS``, or the cores it sees. More are not taken, and the reason says so.
    """
    global _chosen
    choice = choose_threads(
        host_cores=os.cpu_count() or 1,
        affinity=_affinity(),
        quotas=read_quotas(),
        environment=os.environ,
        argument=count,
        workers=workers,
    )
    limit = _reserve(choice.count)
    if limit < choice.count:
        choice = ThreadChoice(limit, f"{choice.reason}: {choice.count}, but the compiler can start {limit}")
    _chosen = choice
    return choice


def _affinity() -> Collection[int] | None:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _reserve(count: int) -> int:
    """Have the compiler able to start ``count`` threads, and return how many it can."""
    if "numba" in sys.modules:
        return sys.modules["numba"].config.NUMBA_NUM_THREADS
    if count > len(_affinity() or range(os.cpu_count() or 1)):
        os.environ.setdefault(LIMIT_VARIABLE, str(count))
    return _whole(os.environ.get(LIMIT_VARIABLE) or count, LIMIT_VARIABLE)
