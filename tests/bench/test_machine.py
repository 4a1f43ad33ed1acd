"""The machine is described as its own files say, and what spoils a comparison is named."""

from dataclasses import replace

import pytest

from qkv.bench import machine
from qkv.bench.machine import (
    available_bytes,
    cache_bytes,
    cpu_name,
    is_installed,
    notes_on,
    this_machine,
)


@pytest.fixture
def root(tmp_path):
    """A machine of two cores that share a last level of caches, and one that has its own."""
    for core, shared in enumerate(("0-1", "0-1", "2")):
        for level, size, cores in ((1, "32K", str(core)), (3, "8192K", shared)):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/cache/index{level}"
            folder.mkdir(parents=True)
            for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", cores)):
                (folder / name).write_text(text + "\n")
    write(
        tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU: 3 GHz\nmodel name\t: Some CPU\n"
    )
    write(tmp_path / "proc/meminfo", "MemTotal:  7 kB\nMemFree:  2 kB\nMemAvailable:  5 kB\n")
    return tmp_path


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_cache_that_cores_share_counts_once(root):
    assert cache_bytes(root) == 2 * 8192 * 1024


def test_the_processor_has_the_name_that_the_system_gives_it(root):
    assert cpu_name(root) == "Some CPU: 3 GHz"


def test_memory_that_can_be_had_is_more_than_what_is_unused(root):
    assert available_bytes(root) == 5 * 1024


@pytest.mark.parametrize(
    ("limit", "free"), [("4096", 4096 - 1024), ("1000", 0), ("max", 5120), ("99999", 5120)]
)
def test_a_limit_of_the_container_bounds_the_memory(root, limit, free):
    write(root / "sys/fs/cgroup/memory.max", limit + "\n")
    write(root / "sys/fs/cgroup/memory.current", "1024\n")
    assert available_bytes(root) == free


def test_where_the_system_does_not_tell_nothing_is_made_up(tmp_path):
    assert cache_bytes(tmp_path) is None
    assert available_bytes(tmp_path) is None
    assert cpu_name(tmp_path)


def test_this_machine_is_described_in_one_line_with_its_threads():
    described = this_machine()
    assert f"{described.threads} threads" in described.line()
    assert described.versions["numpy"] in described.software()
    assert "\n" not in described.line() + described.software()


@pytest.fixture
def quiet(monkeypatch):
    """A machine about which there is nothing to say."""
    monkeypatch.setattr(machine, "is_installed", lambda package: True)
    return replace(this_machine(), cores=3, threads=3)


def test_an_ordinary_machine_needs_no_note(quiet):
    assert notes_on(quiet, {"PATH": "/bin", "OMP_NUM_THREADS": "3"}) == ()


@pytest.mark.parametrize("name", ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS"])
def test_a_setting_of_numpys_products_is_named_in_one_line(quiet, name):
    (note,) = notes_on(quiet, {name: "1"})
    assert note.startswith(f"{name} is set") and "unset it" in note


def test_other_numbers_of_threads_than_cores_are_named(quiet):
    (note,) = notes_on(replace(quiet, threads=2, threads_reason="asked for"), {})
    assert "2 threads (asked for) on 3 cores" in note


def test_a_peer_that_is_missing_is_named_with_what_installs_it(quiet, monkeypatch):
    monkeypatch.setattr(machine, "is_installed", lambda package: package != "torch")
    (note,) = notes_on(quiet, {})
    assert "PyTorch" in note and "onnxruntime" not in note and "pip install 'qkv[peers]'" in note


def test_a_package_is_found_without_being_imported():
    assert is_installed("numpy")
    assert not is_installed("no_such_package_at_all")
