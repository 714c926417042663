"""`specplug doctor`: can this environment serve our proposers, and if not, why not?

Prints what the bridge found: vLLM's version and runner, each hook point, the CPU sampling kernels, the proposers
installed, and the things that silently keep a plugin from being loaded. Exit code 1 when something is missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path
from typing import Literal, TypeAlias

from rich.table import Table
from rich.text import Text

from vllm_specplug import plugin, registry
from vllm_specplug.bridge import contract, runner_choice, sampling
from vllm_specplug.bridge.hook_points import INSTALLED
from vllm_specplug.bridge.source_files import SourceFiles, open_sources
from vllm_specplug.bridge.source_symbols import SourceSymbols
from vllm_specplug.bridge.symbols import Vllm
from vllm_specplug.console import Console
from vllm_specplug.errors import SpecplugError

Status: TypeAlias = Literal["ok", "note", "missing"]
_STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}

#: Top-level packages of our wheel, which another distribution might own too.
_OUR_PACKAGES = ("vllm_specplug", "proposers", "deploy")
_OUR_DISTRIBUTION = "vllm-specplug"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination."""

    what: str
    status: Status
    detail: str


def examine() -> Iterator[Finding]:
    """All findings of this environment, in the order a reader wants them."""
    yield from _version()
    yield from _plugin_loading()
    yield from _package_names()
    if contract.installed_version() is not None:
        yield from _hook_points(contract.installed_version(), INSTALLED)
        yield _runner()
        yield _sampling()
    yield from _proposers()


def examine_sources(files: SourceFiles) -> Iterator[Finding]:
    """The contract with a vLLM of which there are only sources."""
    version = files.version()
    tested = contract.TESTED.get(version or "")
    said = (
        f"tested on {' and '.join(tested).upper()}" if tested else "not tested: the contract is checked, nothing is run"
    )
    yield Finding("vLLM", "ok" if tested else "note", f"{version or 'of unknown version'}, {said}")
    yield from _hook_points(version, SourceSymbols(files))


def main(as_json: bool = False, sources: Path | None = None) -> int:
    """Print the findings; 1 if something is missing, else 0.

    Args:
        sources: a folder, wheel or source distribution of vLLM to examine in place of this environment.
    Raises:
        ConfigError: there is no vLLM in it.
    """
    findings = list(examine() if sources is None else examine_sources(open_sources(sources)))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    return 1 if any(finding.status == "missing" for finding in findings) else 0


def _print(findings: Iterable[Finding]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("what", "status", "detail"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.what), Text(finding.status, _STYLES[finding.status]), Text(finding.detail))
    Console().print(table)


def _version() -> Iterator[Finding]:
    version = contract.installed_version()
    if version in contract.TESTED:
        yield Finding("vLLM", "ok", f"{version}, tested on {' and '.join(contract.TESTED[version]).upper()}")
        return
    allowed = version is not None and os.environ.get(contract.ANY_VERSION_VARIABLE) == "1"
    yield Finding("vLLM", "note" if allowed else "missing", next(contract.problems()))


def _plugin_loading() -> Iterator[Finding]:
    problem = plugin.why_not_loaded()
    if problem is not None:
        yield Finding("plugin", "missing", problem)
        return
    (point,) = (point for point in entry_points(group=plugin.GROUP) if point.name == plugin.NAME)
    yield Finding("plugin", "ok", f"loaded by vLLM in every process ({point.value})")


def _package_names() -> Iterator[Finding]:
    owners = packages_distributions()
    for package in _OUR_PACKAGES:
        others = sorted({owner for owner in owners.get(package, ()) if owner.lower() != _OUR_DISTRIBUTION})
        if others:
            yield Finding(
                f"package {package}",
                "missing",
                f"{', '.join(others)} installs a package of the same name, so imports may find the wrong one; "
                "uninstall it or use an environment of its own",
            )


def _hook_points(version: str | None, vllm: Vllm) -> Iterator[Finding]:
    for point in contract.needed(version):
        problem = point.problem(vllm)
        name = point.path.partition(":")[2]
        if problem is None:
            yield Finding(name, "ok", point.why)
        else:
            yield Finding(name, "missing", f"{problem} ({point.why})")
    if "v2" not in contract.runners(version):
        yield Finding("V2 model runner", "note", f"not driven in vLLM {version}: specplug: methods run on V1")
    elif "v2" not in contract.runners(version, runs_draft_model=True):
        yield Finding("V2 model runner", "note", f"vLLM {version}: proposers that run a draft model have V1")


def _runner() -> Finding:
    choice = runner_choice.choice_here()
    if choice.problem is not None:
        return Finding("model runner", "missing", choice.problem)
    left = [entry.name for entry in _loadable() if choice.runner not in entry.load().capabilities.runners]
    but = f"; not supported by {', '.join(left)}" if left else ""
    return Finding("model runner", "note" if left else "ok", f"{choice.runner.upper()} ({choice.why}){but}")


def _loadable() -> Iterator[registry.Entry]:
    """The proposers that can be imported; `_proposers` reports the others."""
    with suppress(SpecplugError):
        for entry in registry.installed().values():
            with suppress(SpecplugError):
                entry.load()
                yield entry


def _sampling() -> Finding:
    try:
        device, state = sampling.probe_installed()
    except Exception as error:  # no device, a broken installation: doctor is there to say so
        return Finding("sampling", "missing", f"vLLM's sampler cannot be tried here: {type(error).__name__}: {error}")
    what = f"sampling on {device}"
    if state.is_right:
        return Finding(what, "ok", "the installed rejection sampler is right, nothing is replaced")
    for_all = sampling.mend_all_asked_for()
    scope = "all speculative methods" if for_all else "specplug: methods"
    more = "" if for_all else f"; {sampling.MEND_ALL_VARIABLE}=1 mends vLLM's own methods too"
    return Finding(what, "note", f"wrong in this vLLM: {state}; mended at start-up for {scope}{more}")


def _proposers() -> Iterator[Finding]:
    try:
        installed = registry.installed()
    except SpecplugError as error:
        yield Finding("proposers", "missing", str(error))
        return
    for entry in installed.values():
        try:
            entry.load()
        except SpecplugError as error:
            yield Finding(f"proposer {entry.name}", "missing", str(error))
        else:
            yield Finding(f"proposer {entry.name}", "ok", f"{entry.target} of {entry.distribution}")
