"""Lines of a staging deployment's routers, made up by hand or drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

EQUAL = {"baseline": 1.0, "medusa": 1.0}


def exposure(request_id: str, arm: str, by: str = "sticky", unit: str | None = "u", **more: Any) -> dict[str, Any]:
    line = {
        "schema": "specplug.staging/1",
        "event": "exposure",
        "request_id": request_id,
        "time_s": 1_800_000_000.0,
        "model": "chat",
        "arm": arm,
        "by": by,
        "unit": unit,
        "weights": EQUAL,
        "stream": True,
        "call": "chat",
        "router": "r",
    }
    return line | more


def outcome(request_id: str, arm: str, e2e_s: float = 2.0, tokens: int | None = 11, **more: Any) -> dict[str, Any]:
    line = {
        "schema": "specplug.staging/1",
        "event": "outcome",
        "request_id": request_id,
        "time_s": 1_800_000_010.0,
        "arm": arm,
        "status": 200,
        "error": None,
        "ttft_s": 0.5,
        "e2e_s": e2e_s,
        "num_prompt_tokens": 20,
        "num_output_tokens": tokens,
        "num_moves": 0,
    }
    return line | more


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def drawn_lines(
    rng: np.random.Generator,
    num_users: int,
    *,
    per_user: float = 4.0,
    spread: float = 1.0,
    slowdown: float = 1.0,
    error_share: float = 0.02,
    more_errors: float = 1.0,
    weight: float = 0.5,
    sort_out: float = 0.0,
) -> list[dict[str, Any]]:
    """Requests of users who differ in speed (log-normal, sigma 0.4), in how many they send and in how often they fail.

    Args:
        per_user: mean number of requests.
        spread: sigma of its logarithm, and of the users' shares of errors.
        slowdown: of the arm 'medusa', in all times.
        more_errors: factor on its errors.
        weight: its share.
        sort_out: share of its requests that never reach the log.
    """
    lines = []
    weights = {"baseline": 1 - weight, "medusa": weight}
    for user in range(num_users):
        arm = "medusa" if rng.random() < weight else "baseline"
        ours = arm == "medusa"
        effect = rng.normal(0, 0.4)
        activity, failing = np.exp(rng.normal(-(spread**2) / 2, spread, 2))
        for number in range(rng.poisson(per_user * activity)):
            if ours and rng.random() < sort_out:
                continue
            request_id = f"{user}-{number}"
            tokens = int(rng.integers(20, 200))
            factor = float(np.exp(effect + rng.normal(0, 0.3)) * (slowdown if ours else 1.0))
            fails = rng.random() < error_share * failing * (more_errors if ours else 1.0)
            end = {"status": 500, "error": "arm_failed"} if fails else {}
            began = 1_800_000_000.0 + user
            lines.append(exposure(request_id, arm, unit=f"user-{user}", weights=weights, time_s=began))
            times = {"e2e_s": factor * (0.2 + 0.02 * tokens), "ttft_s": 0.2 * factor}
            lines.append(outcome(request_id, arm, tokens=tokens, **times, **end))
    return lines
