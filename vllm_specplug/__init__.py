"""Bring a drafting strategy to vLLM, prove that it is lossless and faster, and serve it."""

from vllm_specplug.errors import (
    CompareError,
    ConfigError,
    ContractError,
    ModelError,
    OptionsError,
    ProposerError,
    ShapeError,
    SpecplugError,
    UnknownProposerError,
    UnsupportedVersionError,
)
from vllm_specplug.proposer import (
    Capabilities,
    DraftBatch,
    Drafts,
    EngineInfo,
    Proposer,
    ProposerOptions,
    Target,
    sample_rows,
)

__version__ = "0.1.0"

__all__ = [
    "Capabilities",
    "CompareError",
    "ConfigError",
    "ContractError",
    "DraftBatch",
    "Drafts",
    "EngineInfo",
    "ModelError",
    "OptionsError",
    "Proposer",
    "ProposerError",
    "ProposerOptions",
    "ShapeError",
    "SpecplugError",
    "Target",
    "UnknownProposerError",
    "UnsupportedVersionError",
    "sample_rows",
]
