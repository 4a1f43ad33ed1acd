"""The machine and the libraries a figure belongs to."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from qkv.ops.backend import is_compiled

LIBRARIES = ("qkv", "numpy", "numba", "torch", "onnxruntime")

PEERS = {
    "torch": "PyTorch",
    "onnxruntime": "onnxruntime",
    "onnx": "onnxruntime (its models are built by onnx)",
}
"""Packages that join the comparison where they are installed, and what they stand for."""


@dataclass(frozen=True)
class Machine:
    """What the figures were measured on.

    Parameters
    ----------
    cpu, system : str
    cores : int
        That this process may run on.
    threads : int
        That qkv uses, and that the peers are told to use.
    threads_reason : str
        What decided their number.
    cache_bytes, memory_bytes : int or None
        Of the last level of caches together, and of the memory; None where the system does not tell.
    backend : str
        "compiled" or "numpy": what runs `qkv.attend`.
    blas : str
        What multiplies NumPy's matrices.
    versions : mapping of str to str
        Of Python and of those of `LIBRARIES` that are installed.
    """

    cpu: str
    system: str
    cores: int
    threads: int
    threads_reason: str
    cache_bytes: int | None
    memory_bytes: int | None
    backend: str
    blas: str
    versions: Mapping[str, str]

    def line(self) -> str:
        """Return the machine in one line."""
        sizes = [(self.cache_bytes, 2**20, "MiB cache"), (self.memory_bytes, 2**30, "GiB memory")]
        known = [f"{count / unit:.0f} {name}" for count, unit, name in sizes if count]
        return ", ".join([self.cpu, f"{self.cores} cores", *known, f"{self.threads} threads", self.system])

    def software(self) -> str:
        """Return the versions in one line."""
        return ", ".join([*(f"{name} {number}" for name, number in self.versions.items()), self.blas])


def this_machine() -> Machine:
    """Describe the machine this process runs on."""
    from qkv.kernels.host import thread_choice  # the compiler is loaded when it is first needed

    choice = thread_choice()
    return Machine(
        cpu=cpu_name(),
        system=f"{platform.system()} {platform.machine()}",
        cores=_cores(),
        threads=choice.count,
        threads_reason=choice.reason,
        cache_bytes=cache_bytes(),
        memory_bytes=_memory("MemTotal"),
        backend="compiled" if is_compiled() else "numpy",
        blas=_blas(),
        versions=_versions(),
    )


def notes_on(machine: Machine, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what keeps figures from being what they seem, a line each.

    Parameters
    ----------
    machine : Machine
    environment : mapping of str to str
        The environment variables.

    Examples
    --------
    >>> from dataclasses import replace
    >>> two = replace(this_machine(), cores=2, threads=2)
    >>> notes_on(two, {"OPENBLAS_CORETYPE": "Haswell"})[0]
    "OPENBLAS_CORETYPE is set: NumPy's figures are not its own; unset it to compare with NumPy"
    """
    settings = sorted(name for name in environment if name.startswith("OPENBLAS_"))
    verb = "is" if len(settings) == 1 else "are"
    them = "it" if len(settings) == 1 else "them"
    notes = []
    if settings:
        names = ", ".join(settings)
        notes.append(
            f"{names} {verb} set: NumPy's figures are not its own; unset {them} to compare with NumPy"
        )
    if machine.threads != machine.cores:
        notes.append(
            f"qkv, PyTorch and onnxruntime use {machine.threads} threads ({machine.threads_reason}) on "
            f"{machine.cores} cores; NumPy's products choose for themselves"
        )
    missing = [peer for package, peer in PEERS.items() if not is_installed(package)]
    if missing:
        notes.append(f"not compared, as not installed: {', '.join(missing)}; pip install 'qkv[peers]'")
    return tuple(notes)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def cpu_name(root: Path = Path("/")) -> str:
    """Return the processor's name, as Linux or Python knows it.

    Parameters
    ----------
    root : Path
        Where ``proc`` is.
    """
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def cache_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of all caches of the last level; None where the system does not tell.

    Parameters
    ----------
    root : Path
        Where ``sys`` is.
    """
    levels: dict[int, dict[str, int]] = {}
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size, shared = (_lines(folder / name) for name in ("level", "size", "shared_cpu_list"))
        if level and size and shared and size[0].endswith("K"):
            levels.setdefault(int(level[0]), {})[shared[0]] = int(size[0][:-1]) * 1024
    return sum(levels[max(levels)].values()) if levels else None


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory can still be taken; None where the system does not tell.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    free = _memory("MemAvailable", root)
    group = root / "sys/fs/cgroup"
    limit, used = (_lines(group / name) for name in ("memory.max", "memory.current"))
    if free is None or not (limit and used and limit[0].isdigit()):
        return free
    return min(free, max(0, int(limit[0]) - int(used[0])))


def _memory(name: str, root: Path = Path("/")) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _blas() -> str:
    config = np.show_config(mode="dicts") or {}
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _versions() -> dict[str, str]:
    versions = {"Python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
