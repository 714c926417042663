"""Numbers of a report as the texts that tables and sentences show. Knows no table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ratio_text(comparison: Mapping[str, Any] | None) -> str:
    """For example '1.42x (1.31 to 1.55)'."""
    if comparison is None:
        return "-"
    interval = comparison["ci95"]
    spread = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval is not None else " (no interval)"
    return f"{comparison['ratio']:.2f}x{spread}"


def number(value: float | None, digits: int = 2) -> str:
    """A number, '-' for null."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share as per cent, '-' for null."""
    return "-" if value is None else f"{100 * value:.0f} %"
