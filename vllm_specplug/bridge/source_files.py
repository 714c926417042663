"""The Python files of a vLLM that is not installed: a folder, a wheel, a source distribution, or a release by number.

Knows how to get at their text, not what is in it (`source_symbols` does). Nothing is imported and nothing unpacked.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_specplug import atomic
from vllm_specplug.demo_model import cache_home
from vllm_specplug.errors import ConfigError

_VERSION_LINE = re.compile(r"^__version__ = (?:version = )?['\"]([^'\"+]+)", re.MULTILINE)


@dataclass(frozen=True)
class SourceFiles:
    """Python files of one vLLM."""

    label: str
    paths: frozenset[str]
    """Such as 'vllm/config/__init__.py'."""
    read: Callable[[str], bytes]
    """The bytes of one of `paths`."""

    def version(self) -> str | None:
        """What the sources say of themselves; None where they were not built, as in a checkout."""
        name = "vllm/_version.py"
        found = _VERSION_LINE.search(self.read(name).decode()) if name in self.paths else None
        return found[1] if found else None


def open_sources(path: Path) -> SourceFiles:
    """The sources at `path`.

    Args:
        path: the folder `vllm`, one that holds it (a checkout, site-packages), a wheel, or a source distribution.
    Raises:
        ConfigError: there is no vLLM in it, or it cannot be read.
    """
    try:
        if path.is_dir():
            files = _folder(path.parent if path.name == "vllm" and (path / "__init__.py").is_file() else path)
        elif path.suffix in (".whl", ".zip"):
            files = _zip(path)
        else:
            files = _tar(path)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise ConfigError(
            f"{path} cannot be read as sources of vLLM: {error}; name a folder, wheel or sdist"
        ) from error
    if "vllm/__init__.py" not in files.paths:
        raise ConfigError(
            f"{path} holds no package vllm; name the folder vllm, one that holds it, a wheel or a source distribution"
        )
    return files


def release(version: str) -> Path:
    """The Python files of a release as one zip, in the user's cache.

    Comes out of the wheel that pip finds. (The source distribution is a seventh of its size, but pip does not hand one
    over without building its metadata, for which vLLM wants torch.)

    Raises:
        ConfigError: `version` is no version, or pip has no wheel of it.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9a-z]+)*", version):
        raise ConfigError(f"{version!r} is no release of vLLM; expected something like 0.33.0")
    kept = cache_home() / "vllm-sources" / f"vllm-{version}.zip"
    if kept.is_file():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=f".vllm-{version}-") as folder:
            _keep_python(_download(version, Path(folder)), kept)
    except OSError as error:
        raise ConfigError(
            f"cannot keep the sources of vLLM {version} in {kept.parent}: {error}; "
            "set XDG_CACHE_HOME to a directory with 500 MB to write"
        ) from error
    return kept


def _download(version: str, folder: Path) -> Path:
    print(f"downloading the wheel of vllm {version}, some 300 MB, to read its sources ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), f"vllm=={version}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if run.returncode or not wheels:
        said = [line for line in run.stderr.splitlines() if line.startswith("ERROR:")] or run.stderr.splitlines()
        why = said[0].removeprefix("ERROR: ") if said else f"it ended with {run.returncode}"
        why = why.partition(" (from versions")[0]
        raise ConfigError(
            f"pip gives no wheel of vllm {version}: {why}; check the number and pip's configuration, or name a folder, "
            "wheel or source distribution with --sources"
        )
    return wheels[0]


def _keep_python(wheel: Path, place: Path) -> None:
    with (
        zipfile.ZipFile(wheel) as found,
        atomic.replacing(place) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as kept,
    ):
        for name in found.namelist():
            if _is_ours(name):
                kept.writestr(name, found.read(name))


def _is_ours(name: str) -> bool:
    return name.startswith("vllm/") and name.endswith(".py")


def _folder(root: Path) -> SourceFiles:
    paths = frozenset(path.relative_to(root).as_posix() for path in (root / "vllm").rglob("*.py"))
    return SourceFiles(str(root), paths, lambda name: (root / name).read_bytes())


def _zip(path: Path) -> SourceFiles:
    archive = zipfile.ZipFile(path)
    return SourceFiles(str(path), frozenset(filter(_is_ours, archive.namelist())), archive.read)


def _tar(path: Path) -> SourceFiles:
    """Read in one go, since a compressed tar has no index; members lie under a folder such as vllm-0.33.0."""
    contents: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            file = archive.extractfile(member) if _is_ours(name) else None
            if file is not None:
                contents[name] = file.read()
    return SourceFiles(str(path), frozenset(contents), contents.__getitem__)
