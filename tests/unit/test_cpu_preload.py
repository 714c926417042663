"""LD_PRELOAD for vLLM on a CPU: what is found goes in, once, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_specplug import cpu_preload

TCMALLOC = "/usr/lib/somewhere/libtcmalloc_minimal.so.4"
IOMP = "/venv/lib/libiomp5.so"


@pytest.fixture
def found(monkeypatch):
    """Sets which libraries this machine has."""

    def set_found(*paths):
        monkeypatch.setattr(cpu_preload, "preload_libraries", lambda: list(paths))

    return set_found


def test_libraries_are_put_into_an_environment_without_ld_preload(found):
    found(TCMALLOC, IOMP)
    env = {"PATH": "/bin"}
    assert cpu_preload.cpu_environment(env) == {"PATH": "/bin", "LD_PRELOAD": f"{TCMALLOC}:{IOMP}"}
    assert env == {"PATH": "/bin"}, "the caller's mapping is left alone"


def test_nothing_found_sets_nothing(found):
    found()
    assert cpu_preload.cpu_environment({"PATH": "/bin"}) == {"PATH": "/bin"}


def test_own_entries_come_first_and_stay(found):
    found(TCMALLOC, IOMP)
    env = cpu_preload.cpu_environment({"LD_PRELOAD": "/lib/mine.so"})
    assert env["LD_PRELOAD"] == f"/lib/mine.so:{TCMALLOC}:{IOMP}"


def test_applying_twice_is_applying_once(found):
    found(TCMALLOC, IOMP)
    once = cpu_preload.cpu_environment({})
    assert cpu_preload.cpu_environment(once) == once


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a/libtcmalloc.so.4", f"/a/libtcmalloc.so.4:{IOMP}"),
        ("/torch/lib/libgomp-abc.so.1", f"/torch/lib/libgomp-abc.so.1:{TCMALLOC}"),
        ("/a/libiomp5.so /b/libtcmalloc_minimal.so.4", "/a/libiomp5.so:/b/libtcmalloc_minimal.so.4"),
    ],
)
def test_no_second_allocator_or_openmp_from_another_directory(found, given, expected):
    found(TCMALLOC, IOMP)
    assert cpu_preload.cpu_environment({"LD_PRELOAD": given})["LD_PRELOAD"] == expected


def test_openmp_is_found_in_the_environment_of_this_python(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(cpu_preload, "_find_tcmalloc", lambda: None)
    assert cpu_preload.preload_libraries() == []
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert cpu_preload.preload_libraries() == [str(tmp_path / "lib" / "libiomp5.so")]


def test_tcmalloc_is_taken_from_the_linker_cache_and_the_minimal_one_first(monkeypatch, tmp_path):
    full, minimal, foreign = (tmp_path / name for name in ("full.so", "minimal.so", "32-bit.so"))
    for path in (full, minimal, foreign):
        path.touch()
    listing = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        f"\tlibtcmalloc.so.4 (libc6,x86-64) => {full}\n"
        f"\tlibtcmalloc_minimal.so.4 (libc6) => {foreign}\n"
        f"\tlibtcmalloc_minimal.so.4 (libc6,x86-64) => {minimal}\n"
    )
    monkeypatch.setattr(cpu_preload.shutil, "which", lambda *_args, **_kwargs: "ldconfig")
    monkeypatch.setattr(
        cpu_preload.subprocess, "run", lambda *_args, **_kwargs: subprocess.CompletedProcess([], 0, listing, "")
    )
    assert cpu_preload._find_tcmalloc() == str(minimal)
    minimal.unlink()
    monkeypatch.setattr(cpu_preload, "_LIBRARY_DIRECTORIES", ())
    assert cpu_preload._find_tcmalloc() == str(full)


def test_a_machine_without_ldconfig_has_no_tcmalloc_and_no_error(monkeypatch):
    monkeypatch.setattr(cpu_preload.shutil, "which", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(cpu_preload, "_LIBRARY_DIRECTORIES", ())
    assert cpu_preload._find_tcmalloc() is None


def test_what_is_found_here_exists():
    assert all(Path(path).is_file() for path in cpu_preload.preload_libraries())
