"""Compile kernels once, keep them on disk, and run them from any thread.

Four things a bare ``numba.njit(cache=True)`` does not give:

- Its cache knows a function by its own file only. A kernel here is made from several, so the folder
  of the cache is named by all that machine code depends on: `cache_folder`.
- A damaged cache file is a traceback there. Here each file carries its checksum and is replaced.
- It makes wrappers and files for every function, though most are called by other kernels only, and their
  code is part of those: `KernelDispatcher`.
- Its threads may be entered by one Python thread at a time, and not at all after a fork, where the
  process is ended. Here calls take turns, and a forked child computes alone: `ParallelKernel`.
"""

import contextlib
import hashlib
import os
import pickle
import platform
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, update_wrapper
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.extending import is_jitted
from numba.np.ufunc import parallel as numba_threads

from qkv.kernels.host import host_features, num_threads

SPIN_COUNT = 10_000
"""How often an idle OpenMP thread looks for work before it sleeps: long enough for the next kernel of a
step, some hundred microseconds, and far from the 15 ms that were seen with none set."""

KEPT_FOLDERS = 4
"""Caches of other versions that stay when a new one begins, itself counted."""


def compiled(*, parallel: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function when it is first called, for each combination of argument types.

    The function runs without the interpreter's lock. It may call other functions compiled with
    ``parallel=False``, and close over numbers, text and functions.

    Parameters
    ----------
    parallel : bool
        Spread ``numba.prange`` over threads. Such a function is called from Python only.

    Returns
    -------
    callable
        A decorator.
    """
    return ParallelKernel if parallel else _dispatcher


def _dispatcher(function: Callable[..., Any], *, parallel: bool = False) -> Any:
    compile_lazily: Any = numba.njit(
        parallel=parallel, nogil=True, error_model="numpy", boundscheck=False, fastmath=False
    )
    # Machine code is linked by name. Functions that a factory makes for two tiles have one name, and
    # code of one process may meet code of another on the disk: the tile must be part of the name.
    function.__qualname__ += f"_{_digest(*_identity(function), repr(parallel))}"
    dispatcher = compile_lazily(function)
    dispatcher.__class__ = KernelDispatcher
    dispatcher.kept = KernelCache(function, parallel=parallel)
    dispatcher.parts = set()
    return dispatcher


class KernelDispatcher(CPUDispatcher):
    """Gives a way in from Python, and a place on the disk, only to what is called from Python.

    Most kernels are parts of others: their code is copied into the callers', and lies on the disk there.
    Without wrappers and files of their own a first start takes about a sixth less. A part that is called
    from Python after all is compiled once more.

    Attributes
    ----------
    kept : KernelCache
    parts : set of tuples of types
        The signatures that were compiled as parts of others only.
    """

    kept: "KernelCache"
    parts: set[Any]
    depth = 0
    """How many kernels are being compiled, each for the one before it."""

    def compile(self, sig: Any) -> Any:
        """Compile the function for a signature, or take it from the disk."""
        with global_compiler_lock:
            is_part, types = KernelDispatcher.depth > 0, tuple(normalize_signature(sig)[0])
            if types in self.parts and not is_part:
                self.parts.remove(types)
                del self.overloads[types]
            self._cache = NullCache() if is_part else self.kept
            self.targetoptions |= {"no_cpython_wrapper": is_part, "no_cfunc_wrapper": is_part}
            KernelDispatcher.depth += 1
            try:
                return super().compile(sig)
            finally:
                KernelDispatcher.depth -= 1

    def add_overload(self, result: Any) -> None:
        """Take in what was compiled; what has no way in from Python must not be found from there."""
        if not self.targetoptions["no_cpython_wrapper"]:
            super().add_overload(result)
            return
        types = tuple(result.signature.args)
        self.parts.add(types)
        self.overloads[types] = result


class ParallelKernel:
    """A function whose ``prange`` loops run on `num_threads` threads, callable from any Python thread.

    Parameters
    ----------
    function : callable
        What to compile. With one thread its serial form runs, which takes no turn and starts no threads.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.together = _dispatcher(function, parallel=True)
        self.alone = _dispatcher(function)
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel."""
        count = min(num_threads(), numba_threads.NUM_THREADS)
        if count == 1 or _without_threads:
            return self.alone(*arguments)
        with _turn:
            _start_threads()
            # Each Python thread has its own number. The public setter first takes a lock that forked
            # processes share, and one that is killed there would keep it.
            numba_threads._set_num_threads(count)
            return self.together(*arguments)


_turn = threading.RLock()
_without_threads = False


@cache
def _start_threads() -> None:
    """Start the compiler's threads, and have those of GNU OpenMP wait for work only briefly.

    By default they wait in a loop for many milliseconds, which on a busy machine costs the time slice
    in which the work would have been done. The setting is read once, when OpenMP is loaded.
    """
    settings = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    untouched = not any(name in os.environ for name in settings)
    if untouched:
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    numba.set_num_threads(1)
    if untouched:
        del os.environ["GOMP_SPINCOUNT"]


def _before_fork() -> None:
    _turn.acquire()
    global_compiler_lock.acquire()


def _after_fork() -> None:
    global_compiler_lock.release()
    _turn.release()


def _in_child() -> None:
    """Give up threads where the parent had started them: they did not come along."""
    global _without_threads
    with contextlib.suppress(ValueError):
        numba_threads.threading_layer()
        _without_threads = True
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


class KernelCache:
    """Machine code of one function on disk, a file for each combination of argument types.

    Answers what a Numba dispatcher asks of its cache. Nothing on the disk, or missing from it, is ever
    an error: what cannot be read is compiled, what cannot be written stays in memory.

    Parameters
    ----------
    function : callable
    parallel : bool
        Which of the two forms of the function this is.
    """

    def __init__(self, function: Callable[..., Any], *, parallel: bool) -> None:
        self.function = function
        self.parallel = parallel

    @property
    def cache_path(self) -> str | None:
        """The folder, or None where there is none."""
        return str(cache_folder()) if cache_folder() else None

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the machine code for a signature, or None and say that compiling begins."""
        target_context.refresh()
        found = None
        path = self._path(signature, target_context.codegen())
        if path:
            with contextlib.suppress(Exception):  # whatever a damaged file makes of itself
                found = CompileResult._rebuild(target_context, *pickle.loads(_read_sealed(path)))
        if found is None:
            _announce()
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep the machine code for a signature."""
        path = self._path(signature, result.library.codegen)
        if path and not result.library.has_dynamic_globals and not result.lifted:
            with contextlib.suppress(OSError):
                _write_sealed(path, dumps(result._reduce()))

    def enable(self) -> None:
        """Do nothing: the cache is always in use."""

    disable = flush = enable

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        folder, source = cache_folder(), _source(self.function)
        if folder is None or source is None:
            return None
        parts = [source, repr(signature), repr(codegen.magic_tuple()), repr(self.parallel)]
        name = re.sub(r"\W+", ".", f"{self.function.__module__}.{self.function.__qualname__}")
        return folder / f"{name}-{_digest(*parts, *_identity(self.function))}.bin"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _source(function: Callable[..., Any]) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(function.__code__.co_filename).read_text(encoding="utf-8")
    return None


def _identity(value: Any) -> Iterator[str]:
    """Describe a function, or a value that one closes over, the same in every process."""
    value = getattr(value, "_defn", value)  # an intrinsic
    value = value.py_func if is_jitted(value) else value
    if isinstance(value, FunctionType):
        yield f"{value.__module__}.{value.__qualname__}:{value.__code__.co_firstlineno}"
        for cell in value.__closure__ or ():
            yield from _identity(cell.cell_contents)
    elif isinstance(value, tuple):
        for item in value:
            yield from _identity(item)
    else:
        assert " at 0x" not in repr(value), f"a kernel closes over {value!r}, which is new in every process"
        yield repr(value)


_announced = False


def _announce() -> None:
    global _announced
    if not _announced:
        _announced = True
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr closed, or none
            sys.stderr.write("qkv: compiling kernels, once\n")


def seal(data: bytes) -> bytes:
    """Put a checksum before the data of a file."""
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def _read_sealed(path: Path) -> bytes:
    content = path.read_bytes()
    data = content.partition(b"\n")[2]
    if seal(data) != content:
        raise ValueError(f"{path} is damaged")
    return data


def _write_sealed(path: Path, data: bytes) -> None:
    """Write a file that other processes see whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix="partial-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(seal(data))
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


@cache
def cache_folder() -> Path | None:
    """Return where this version of the kernels keeps machine code for this processor.

    The name has all that the code depends on: sources of the package, versions, processor.

    Returns
    -------
    Path or None
        None where the user has no home.
    """
    root = cache_root(os.environ, sys.platform)
    if root is None:
        return None
    sources = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))]
    features = [name for name, present in sorted(host_features().items()) if present]
    versions = [_package_version(), numba.__version__, llvmlite.__version__, sys.version, platform.machine()]
    folder = root / f"kernels-{_digest(*sources, *versions, llvm.get_host_cpu_name(), *features)}"
    with contextlib.suppress(OSError):
        prune(root, folder)
    return folder


def cache_root(environment: Mapping[str, str], system: str) -> Path | None:
    """Return the platform's place for caches of this program.

    Parameters
    ----------
    environment : mapping of str to str
        ``QKV_CACHE_DIR`` names another place.
    system : str
        As `sys.platform` names it.

    Returns
    -------
    Path or None
        None where the user has no home.
    """
    if environment.get("QKV_CACHE_DIR"):
        return Path(environment["QKV_CACHE_DIR"]).absolute() / "qkv"
    try:
        if system == "win32":
            return Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "qkv"
        if system == "darwin":
            return Path.home() / "Library" / "Caches" / "qkv"
        given = Path(environment.get("XDG_CACHE_HOME", ""))
        return (given if given.is_absolute() else Path.home() / ".cache") / "qkv"
    except RuntimeError:
        return None


def _package_version() -> str:
    try:
        return version("qkv")
    except PackageNotFoundError:
        return "unknown"


def prune(root: Path, current: Path) -> None:
    """Remove the caches longest unused, so that upgrades do not pile up."""
    if current.exists():
        os.utime(current)
        return
    others = [path for path in root.glob("kernels-*") if re.fullmatch(r"kernels-[0-9a-f]{24}", path.name)]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT_FOLDERS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
