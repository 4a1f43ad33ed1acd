import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.kernels import compiler

PROGRAM = Path(__file__).with_name("small_kernels.py")
LINE = "qkv: compiling kernels, once\n"
DOUBLES, TRIPLES = [[float(factor * i) for i in range(11)] for factor in (2, 3)]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def start(what, cache, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", PROGRAM, what],
        env=kept | {"QKV_NUM_THREADS": "3", "QKV_CACHE_DIR": str(cache)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Return what a process printed, as values, and what it wrote to stderr."""
    with process:
        try:
            out, err = process.communicate(timeout=90)
        finally:
            process.kill()
    assert process.returncode == 0, err
    return json.loads(out), err


def run(what, cache, **environment):
    return finish(start(what, cache, **environment))


def assert_right(found):
    doubles, triples, products = found
    assert doubles == DOUBLES
    assert triples == TRIPLES
    rng = np.random.default_rng(3)
    expected = rng.normal(size=(7, 5)).astype(np.float32) @ rng.normal(size=(5, 8)).astype(np.float32)
    np.testing.assert_allclose(products, expected, rtol=1e-5)


def files(cache):
    return {path: path.read_bytes() for path in cache.rglob("*.bin")}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache that one process has filled."""
    cache = tmp_path_factory.mktemp("warm")
    found, err = run("results", cache)
    assert_right(found)
    assert err == LINE
    return cache


def test_import_qkv_does_not_import_the_compiler():
    code = "import sys, qkv; print(*{'numba', 'llvmlite'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"


def test_second_process_compiles_nothing(warm):
    before = files(warm)
    found, err = run("results", warm)
    assert_right(found)
    assert err == ""
    assert files(warm) == before
    assert len(before) == 3  # what they are made of lies in them


def test_one_thread_and_many_are_kept_side_by_side(warm, tmp_path):
    cache = shutil.copytree(warm, tmp_path / "cache")
    assert run("results", cache, QKV_NUM_THREADS="1")[1] == LINE
    assert run("results", cache, QKV_NUM_THREADS="1")[1] == ""
    assert run("results", cache)[1] == ""


def test_damaged_files_are_compiled_again_and_replaced(warm, tmp_path):
    damages = [
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"del", b"dEl"),  # in a comment: it would load
        lambda data: b"",
        lambda data: b"\xff" * 97,
        lambda data: compiler.seal(b"\x80\x05N."),  # whole, but the pickle of None
    ]
    for number, some in enumerate((damages[:3], damages[2:])):
        cache = shutil.copytree(warm, tmp_path / str(number))
        damaged = {path: harm(data) for (path, data), harm in zip(files(cache).items(), some, strict=True)}
        for path, data in damaged.items():
            path.write_bytes(data)
        found, err = run("results", cache)
        assert_right(found)
        assert err == LINE
        assert not damaged.items() & files(cache).items()
        assert run("results", cache)[1] == ""


def test_a_part_of_other_kernels_may_be_called_from_python_too():
    @compiler.compiled()
    def half(x):
        return x / 2

    @compiler.compiled()
    def quarter(x):
        return half(half(x))

    assert quarter(6.0) == 1.5
    assert half.parts == set(half.overloads)
    assert half(7.0) == 3.5 and half(3.0) == 1.5
    assert half.parts == set() and len(half.overloads) == 1
    assert quarter(2.0) == 0.5


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    found, err = run("results", occupied)
    assert_right(found)
    assert err == LINE


def test_a_filled_cache_is_read_where_it_cannot_be_written(warm, tmp_path):
    cache = shutil.copytree(warm, tmp_path / "cache")
    for path in [*cache.rglob("*"), cache]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    found, err = run("results", cache)
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o700)
    assert_right(found)
    assert err == ""


def test_two_processes_compiling_at_once_are_both_right(tmp_path):
    for process in [start("results", tmp_path) for _ in range(2)]:
        assert_right(finish(process)[0])
    assert run("results", tmp_path)[1] == ""
    assert not list(tmp_path.rglob("partial-*"))


def test_a_change_in_any_kernel_file_takes_another_folder(tmp_path):
    package = shutil.copytree(Path(qkv.__file__).parent, tmp_path / "qkv")
    first, _ = run("folder", tmp_path, PYTHONPATH=str(tmp_path))
    again, _ = run("folder", tmp_path, PYTHONPATH=str(tmp_path))
    with (package / "kernels" / "vectors.py").open("a") as file:
        file.write("# changed\n")
    changed, _ = run("folder", tmp_path, PYTHONPATH=str(tmp_path))
    assert first == again != changed
    assert Path(first).parent == tmp_path / "qkv"


def test_old_folders_are_pruned_and_nothing_else(tmp_path):
    names = [f"kernels-{number:024x}" for number in range(6)]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (number, number))
    (tmp_path / "kernels-of-mine").mkdir()
    compiler.prune(tmp_path, tmp_path / f"kernels-{9:024x}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names[3:], "kernels-of-mine"]


def test_the_folder_in_use_is_not_the_oldest(tmp_path):
    current = tmp_path / f"kernels-{7:024x}"
    current.mkdir()
    os.utime(current, (1, 1))
    compiler.prune(tmp_path, current)
    assert current.stat().st_mtime > 1


@pytest.mark.parametrize(
    ("environment", "system", "expected"),
    [
        ({"QKV_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}, "linux", Path("/c/qkv")),
        ({"XDG_CACHE_HOME": "/x"}, "linux", Path("/x/qkv")),
        ({"XDG_CACHE_HOME": "not/absolute"}, "linux", Path("/home/me/.cache/qkv")),
        ({}, "linux", Path("/home/me/.cache/qkv")),
        ({"XDG_CACHE_HOME": "/x"}, "darwin", Path("/home/me/Library/Caches/qkv")),
        ({"LOCALAPPDATA": "/local"}, "win32", Path("/local/qkv")),
        ({}, "win32", Path("/home/me/AppData/Local/qkv")),
    ],
)
def test_cache_stands_where_the_platform_keeps_caches(monkeypatch, environment, system, expected):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert compiler.cache_root(environment, system) == expected


def test_a_user_without_home_has_no_cache(monkeypatch):
    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert compiler.cache_root({}, "linux") is None


def test_kernels_use_the_chosen_number_of_threads(tmp_path):
    found, _ = run("count", tmp_path)
    assert found == {"chosen": 3, "used": [3] * 13}
    found, _ = run("count", tmp_path, QKV_NUM_THREADS="2")
    assert found == {"chosen": 2, "used": [2] * 13}


def test_threads_beyond_what_the_compiler_can_start_are_not_taken(tmp_path):
    code = "import numba; from qkv.kernels.host import thread_choice; print(thread_choice())"
    environment = os.environ | {"QKV_NUM_THREADS": "3", "NUMBA_NUM_THREADS": "2"}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert printed == ("ThreadChoice(count=2, reason='QKV_NUM_THREADS: 3, but the compiler can start 2')\n")


def test_bits_do_not_depend_on_the_number_of_threads(warm):
    found, _ = run("same_bits", warm)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_kernels_run_from_several_python_threads(warm, layer):
    found, _ = run("from_threads", warm, NUMBA_THREADING_LAYER=layer)
    assert len(found) == 200
    assert all(one == found[0] for one in found)
    assert_right(found[0])


@needs_fork
@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_a_forked_child_computes_alone_and_right(warm, layer):
    found, _ = run("forked", warm, NUMBA_THREADING_LAYER=layer)
    assert len(found) == 4
    for several in found:
        assert several
        for one in several:
            assert_right(one)


@needs_fork
def test_a_child_forked_before_any_kernel_has_all_its_threads(warm):
    child, parent = run("forked_first", warm)[0]
    assert child is not None
    assert_right(child[0])
    assert_right(parent)
    assert child[1]["used"] == [3] * 13
