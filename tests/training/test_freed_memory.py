"""Memory that is kept between steps: counted by the pages that the system hands out."""

import ctypes
import subprocess
import sys

import pytest

from qkv.training import freed_memory

COUNT = """
import resource
import numpy as np
from qkv.training.freed_memory import keep_freed_memory

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {keep}:
    assert keep_freed_memory()
np.ones(10_000_019, np.float32)  # 40 MB, freed at once
before = pages()
for _ in range(3):
    np.ones(10_000_019, np.float32)
print(pages() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_the_same_arrays_again_cost_no_new_pages():
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("another C library")
    kept, returned = (
        int(
            subprocess.run(
                [sys.executable, "-c", COUNT.format(keep=keep)], check=True, capture_output=True
            ).stdout
        )
        for keep in (True, False)
    )
    assert kept < 10  # a huge page counts as one, so that 3 x 40 MB may be as few as 60
    assert returned > 40


def test_where_the_c_library_has_no_such_setting_nothing_happens(monkeypatch: pytest.MonkeyPatch):
    def without(name: None) -> object:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", without)
    assert not freed_memory.keep_freed_memory()
