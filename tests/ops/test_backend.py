"""Which code runs: the kernels for NumPy float32, NumPy for the rest or where it is asked for."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attention_paths import bits, normal
from qkv import OptionError, attend, use_backend
from qkv.ops import attention
from qkv.ops.backend import can_compile, is_compiled

needs_kernels = pytest.mark.skipif(not can_compile(), reason="this machine has no fused multiply-add")


@pytest.fixture
def paths_taken(monkeypatch):
    taken = []

    def watched(name):
        path = getattr(attention, name)
        return lambda *args, **rules: taken.append(name) or path(*args, **rules)

    for name in ("attend_plainly", "compiled_path", "dense_path", "tiled_path"):
        monkeypatch.setattr(attention, name, watched(name))
    return taken


@needs_kernels
def test_kernels_take_numpy_float32_and_what_is_summed_in_it(paths_taken):
    with use_backend("compiled"):
        for dtype in (np.float32, np.float16, np.float64):
            x = normal(1, 1, 2, 5, 4, dtype=dtype)
            attend(x, x, x)
            attend(x, x, x, q_lengths=[3])
    assert paths_taken == ["attend_plainly", *["compiled_path"] * 3, *["dense_path"] * 2]


def test_numpy_runs_everything_where_it_is_asked_for(paths_taken):
    x = normal(1, 1, 2, 5, 4, dtype=np.float32)
    with use_backend("numpy"):
        attend(x, x, x)
    assert paths_taken == ["dense_path"]


@needs_kernels
def test_a_choice_ends_with_its_block_and_the_inner_one_wins():
    before = is_compiled()
    with use_backend("numpy"):
        with use_backend("compiled"):
            assert is_compiled()
        assert not is_compiled()
    assert is_compiled() == before


def test_a_backend_of_another_name_is_refused():
    with pytest.raises(OptionError, match="'numpy' or 'compiled', not 'gpu'"), use_backend("gpu"):  # pyright: ignore[reportArgumentType]
        pass


def run_python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_a_variable_turns_the_kernels_off_and_the_compiler_is_not_loaded():
    code = (
        "import sys, numpy, qkv; x = numpy.ones((3, 2), 'f'); qkv.attend(x, x, x);"
        "print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    )
    assert run_python(code, QKV_DISABLE_COMPILED="1") == "False False"


def test_importing_the_package_does_not_load_the_compiler():
    assert run_python("import sys, qkv; print('numba' in sys.modules)") == "False"


@needs_kernels
def test_several_python_threads_get_the_bits_that_one_gets():
    q, k, v = (normal(seed, 2, 4, 190, 16, dtype=np.float32) for seed in range(3))
    with use_backend("compiled"):
        expected = attend(q, k, v, causal=True)

    def call(_):
        with use_backend("compiled"):
            return attend(q, k, v, causal=True)

    with ThreadPoolExecutor(4) as pool:
        assert all((bits(got) == bits(expected)).all() for got in pool.map(call, range(24)))
