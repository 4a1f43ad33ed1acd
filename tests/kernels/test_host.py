import os
import subprocess
import sys

import pytest

from qkv.errors import OptionError
from qkv.kernels import host
from qkv.kernels.host import ThreadChoice, Tile, choose_threads, read_quotas, tile_for

AVX2 = {"avx2": True, "fma": True}


@pytest.mark.parametrize(
    ("features", "machine", "tile"),
    [
        (AVX2 | {"avx512f": True}, "x86_64", Tile(rows=8, vectors=2, width=16)),
        (AVX2 | {"avx512f": False}, "AMD64", Tile(rows=6, vectors=2, width=8)),
        (AVX2, "x86_64", Tile(rows=6, vectors=2, width=8)),
        ({"neon": True}, "aarch64", Tile(rows=8, vectors=2, width=4)),
        ({}, "arm64", Tile(rows=8, vectors=2, width=4)),
        ({"fma": True, "avx": True}, "x86_64", Tile(rows=6, vectors=2, width=4)),
        (
            {"avx2": True, "avx512f": True, "fma": False},
            "x86_64",
            Tile(rows=6, vectors=2, width=4, fused=False),
        ),
        ({}, "riscv64", Tile(rows=6, vectors=2, width=4, fused=False)),
    ],
)
def test_tile_follows_the_registers(features, machine, tile):
    assert tile_for(features, machine) == tile


@pytest.mark.parametrize("features", [AVX2 | {"avx512f": True}, AVX2, {"fma": True}])
def test_a_tile_leaves_registers_for_its_operands(features):
    tile = tile_for(features, "x86_64")
    registers = 32 if tile.width == 16 else 16
    assert tile.rows * tile.vectors + tile.vectors + 1 <= registers
    assert tile.columns == 2 * tile.width


def test_kernels_are_supported_where_multiply_and_add_are_fused(monkeypatch):
    tile = Tile(
        rows=host.TILE_ROWS, vectors=host.TILE_VECTORS, width=host.VECTOR_WIDTH, fused=host.is_supported()
    )
    assert tile == host.HOST_TILE
    monkeypatch.setattr(host, "HOST_TILE", tile_for(AVX2, "x86_64"))
    assert host.is_supported()
    monkeypatch.setattr(host, "HOST_TILE", tile_for({}, "x86_64"))
    assert not host.is_supported()


@pytest.mark.parametrize(
    ("given", "count", "reason"),
    [
        ({}, 8, "cores of the machine"),
        ({"quotas": ["400000 100000"]}, 4, "CPU quota of 4 cores"),
        ({"quotas": ["150000 100000"]}, 1, "CPU quota of 1.5 cores"),
        ({"quotas": ["299000 100000"]}, 2, "CPU quota of 2.99 cores"),
        ({"quotas": ["50000 100000"]}, 1, "CPU quota of 0.5 cores"),
        ({"quotas": ["max 100000"]}, 8, "cores of the machine"),
        ({"quotas": ["-1 100000"]}, 8, "cores of the machine"),
        ({"quotas": ["1600000 100000"]}, 8, "cores of the machine"),
        (
            {"quotas": ["max 100000", "600000 100000", "300000 50000", "250000 50000"]},
            5,
            "CPU quota of 5 cores",
        ),
        ({"quotas": ["", "5", "x y", "0 0", "100000 0", "-3 5"]}, 8, "cores of the machine"),
        ({"affinity": range(4)}, 4, "affinity to 4 cores"),
        ({"affinity": {5}, "quotas": ["400000 100000"]}, 1, "affinity to 1 cores"),
        ({"environment": {"OMP_NUM_THREADS": "2"}}, 2, "OMP_NUM_THREADS"),
        ({"environment": {"OMP_NUM_THREADS": "3,2"}}, 3, "OMP_NUM_THREADS"),
        ({"environment": {"OMP_NUM_THREADS": "64"}}, 8, "cores of the machine"),
        ({"environment": {"NUMBA_NUM_THREADS": "3"}}, 3, "NUMBA_NUM_THREADS"),
        ({"environment": {"OMP_NUM_THREADS": "2", "QKV_NUM_THREADS": "5"}}, 5, "QKV_NUM_THREADS"),
        ({"environment": {"QKV_NUM_THREADS": ""}}, 8, "cores of the machine"),
        ({"environment": {"QKV_NUM_THREADS": "11"}, "quotas": ["400000 100000"]}, 11, "QKV_NUM_THREADS"),
        ({"environment": {"QKV_NUM_THREADS": "5"}, "argument": 13, "affinity": {0}}, 13, "asked for"),
    ],
)
def test_threads_stay_within_the_budget(given, count, reason):
    assert choose_threads(host_cores=8, **given) == ThreadChoice(count, reason)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize(
    "given", [{}, {"quotas": ["700000 100000"]}, {"environment": {"OMP_NUM_THREADS": "7"}}]
)
def test_workers_share_the_budget(given, workers):
    budget = choose_threads(host_cores=8, **given).count
    threads = choose_threads(host_cores=8, workers=workers, **given).count
    assert workers * threads <= budget < workers * (threads + 1)


def test_two_workers_have_half_each():
    choice = choose_threads(host_cores=8, quotas=["400000 100000"], workers=2)
    assert choice == ThreadChoice(2, "CPU quota of 4 cores, shared by 2 workers")
    assert choose_threads(host_cores=2, workers=5).count == 1


@pytest.mark.parametrize("name", ["QKV_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"])
@pytest.mark.parametrize("value", ["many", "0", "-2", "1.5", " ", "2;3"])
def test_a_variable_that_is_no_count_is_refused_in_one_line(name, value):
    with pytest.raises(
        OptionError, match=f"^{name} must be a whole number of at least 1, got {value!r}; try .*$"
    ):
        choose_threads(host_cores=8, environment={name: value})


@pytest.mark.parametrize("argument", [0, -1])
def test_an_argument_below_one_is_refused(argument):
    with pytest.raises(
        OptionError, match=f"^num_threads must be a whole number of at least 1, got {argument};"
    ):
        choose_threads(host_cores=8, argument=argument)
    with pytest.raises(OptionError, match=f"^workers must be a whole number of at least 1, got {argument};"):
        choose_threads(host_cores=8, workers=argument)


def lay(root, **texts):
    """Write files below a root; ``__`` in a name stands for a folder's end."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_quotas_of_all_groups_around_a_process_are_read(tmp_path):
    group = tmp_path / "sys/fs/cgroup/outer/inner"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("200000 100000\n")
    lay(tmp_path, proc__self__cgroup="0::/outer/inner")
    assert read_quotas(tmp_path) == ["max 100000", "200000 100000"]


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    lay(tmp_path, proc__self__cgroup="0::/", sys__fs__cgroup__cpu_dot_max="150000 100000")
    assert read_quotas(tmp_path) == ["150000 100000"]
    lay(tmp_path, proc__self__cgroup="0::/../../unseen")
    assert read_quotas(tmp_path) == ["150000 100000"]


def test_quotas_of_version_1_read_like_those_of_version_2(tmp_path):
    lay(tmp_path, proc__self__cgroup="5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n3:cpuset:/\n0::/")
    group = tmp_path / "sys/fs/cgroup/cpu,cpuacct"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert read_quotas(tmp_path) == ["300000 100000"]
    assert choose_threads(host_cores=8, quotas=read_quotas(tmp_path)).count == 3


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert read_quotas(tmp_path) == []


def test_setting_threads_holds_until_it_is_undone():
    before = host.num_threads()
    try:
        assert host.set_num_threads(1) == ThreadChoice(1, "asked for")
        assert host.num_threads() == 1
        with pytest.raises(OptionError):
            host.set_num_threads(0)
        assert host.num_threads() == 1
    finally:
        assert host.set_num_threads(None).count == before


def test_threads_can_be_set_before_the_compiler_is_imported():
    code = (
        "from qkv.kernels import host; host.set_num_threads(37);"
        "from qkv.kernels import compiler; import numba; print(host.num_threads(), numba.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert printed == "37 37\n"
