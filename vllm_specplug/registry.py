"""The catalogue of proposers: what is installed under the entry-point group `vllm_specplug.proposers`.

A name stands for one class. The catalogue is read once and never changes afterwards; two distributions that claim the
same name are refused by both their names, since which one served would depend on the order of directories. Classes are
imported only when asked for, so that one broken package does not take the others down. Knows nothing of vLLM.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from vllm_specplug.errors import ConfigError, UnknownProposerError
from vllm_specplug.proposer import Capabilities, Proposer, ProposerOptions

GROUP = "vllm_specplug.proposers"

#: Names that belong to proposers of this project, built or not, so that nobody else takes them.
SHIPPED = ("cascade", "draft_model", "medusa", "prompt_lookup")


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered proposer, not imported yet."""

    name: str
    target: str
    """'module:Class'."""
    distribution: str
    """Name and version of the distribution that brings it."""

    def load(self) -> type[Proposer]:
        """Import the class.

        Raises:
            ConfigError: it cannot be imported, or is no `Proposer`.
        """
        return load_class(self.target, f"proposer {self.name!r} of {self.distribution}")


class Registry(Mapping[str, Entry]):
    """Name -> entry, sorted by name, read only."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        found: dict[str, Entry] = {}
        for entry in sorted(entries, key=lambda entry: (entry.name, entry.distribution)):
            other = found.get(entry.name)
            if other is not None and other != entry:
                raise ConfigError(
                    f"proposer name {entry.name!r} is claimed by {other.distribution} ({other.target}) and by "
                    f"{entry.distribution} ({entry.target}); uninstall one of them"
                )
            found[entry.name] = entry
        self._entries = MappingProxyType(found)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> Entry:
        """The entry for `name`, or for a dotted path to a class that is not registered.

        Raises:
            UnknownProposerError: neither.
        """
        if name in self._entries:
            return self._entries[name]
        if "." in name or ":" in name:
            return Entry(name, _as_target(name), "a dotted path")
        known = ", ".join(self) or "none"
        if name in SHIPPED:
            raise UnknownProposerError(
                f"proposer {name!r} is not built in this version of vllm-specplug; installed: {known}. "
                "Choose one of these or upgrade"
            )
        close = difflib.get_close_matches(name, list(self), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownProposerError(
            f"unknown proposer {name!r}; installed: {known}.{hint} Others register under the entry point {GROUP!r}, "
            "or are named by a dotted path 'package.module.Class'"
        )


def load_class(target: str, label: str) -> type[Proposer]:
    """Import 'module:Class'.

    Args:
        target: what to import.
        label: how errors name it.
    Raises:
        ConfigError: it cannot be imported, or is no subclass of `Proposer`.
    """
    module_name, _, class_name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever an outsider's module raises at import
        raise ConfigError(
            f"{label} cannot be imported from {target!r}: {type(error).__name__}: {error}; "
            "check that it is installed in this environment, or name its folder in PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Proposer)):
        raise ConfigError(f"{label}: {target!r} is not a subclass of vllm_specplug.Proposer; derive it from that class")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"{label}: {target!r} does not implement {missing}; write it")
    options, capabilities = found.Options, found.capabilities
    if not (isinstance(options, type) and issubclass(options, ProposerOptions)):
        raise ConfigError(f"{label}: Options of {target!r} is {options!r}, expected a subclass of ProposerOptions")
    if not isinstance(capabilities, Capabilities):
        raise ConfigError(f"{label}: capabilities of {target!r} is {capabilities!r}, expected Capabilities(...)")
    return found


@functools.cache
def installed() -> Registry:
    """The proposers installed in this environment.

    Raises:
        ConfigError: a name is claimed twice.
    """
    return Registry(_entry(point) for point in entry_points(group=GROUP))


def _entry(point: EntryPoint) -> Entry:
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
    return Entry(point.name, point.value.replace(" ", ""), distribution)


def _as_target(path: str) -> str:
    if ":" in path:
        return path
    module_name, _, class_name = path.rpartition(".")
    return f"{module_name}:{class_name}"
