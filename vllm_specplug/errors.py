"""Every error this package raises on purpose.

SpecplugError
├── ConfigError           the configuration asks for something that cannot be done
│   ├── UnknownProposerError
│   └── OptionsError      an option is unknown, has the wrong type or is out of range
├── ContractError         the installed vLLM lacks something the bridge relies on
│   └── UnsupportedVersionError
├── ProposerError         a proposer broke its side of the interface
│   └── ShapeError
├── ModelError            a model or checkpoint is missing, unreadable or does not fit
├── CompareError          an experiment cannot be run or read
│   └── EndpointError     a running endpoint that is to be compared did not answer as it should
└── DeployError           a staging file is wrong, or what it asks for cannot be served on Ray

`ConfigError` is also a `ValueError`, because vLLM's callers treat a bad engine argument as one.
Every message is one line: what, which value, what was expected, what to do.
"""

from __future__ import annotations


class SpecplugError(Exception):
    """Root of all errors raised by this package."""


class ConfigError(SpecplugError, ValueError):
    """The configuration asks for something that cannot be done."""


class UnknownProposerError(ConfigError):
    """No proposer of that name is installed."""


class OptionsError(ConfigError):
    """An option of a proposer is unknown, has the wrong type or is out of range."""


class ContractError(SpecplugError):
    """The installed vLLM lacks a symbol or parameter the bridge relies on."""


class UnsupportedVersionError(ContractError):
    """The installed vLLM is not one the bridge was tested with."""


class ProposerError(SpecplugError):
    """A proposer broke its side of the interface."""


class ShapeError(ProposerError):
    """An array does not have the shape that was promised."""


class ModelError(SpecplugError):
    """A model or checkpoint is missing, unreadable or does not fit the target."""


class CompareError(SpecplugError):
    """An experiment cannot be run, or its result cannot be read."""


class EndpointError(CompareError):
    """A running endpoint that is to be compared did not answer as it should.

    Attributes:
        kind: what errors are counted by, such as "timeout" or "http_500".
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class DeployError(SpecplugError):
    """A staging file is wrong, or what it asks for cannot be served on Ray."""
