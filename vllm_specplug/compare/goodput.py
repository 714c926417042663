"""What of an arm's work was fast enough: goodput under a service-level objective (SLO). Pure arithmetic.

Source: Zhong et al. 2024, DistServe, arXiv:2401.09670 (goodput: work that meets its latency targets).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specplug.compare.measure import Answer, Block
from vllm_specplug.compare.statistics import overall_speed, prompt_speeds
from vllm_specplug.errors import CompareError

METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
EXAMPLE = "ttft_ms<200,tpot_ms<30,e2e_ms<5000"
_LIMIT = re.compile(r"\s*(\w+)\s*<\s*(\d+(?:\.\d+)?|\.\d+)\s*")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in milliseconds that one request has to stay below, all of them; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    """An answer of one token has no time per further token and stays below any."""
    e2e_ms: float | None = None

    def __str__(self) -> str:
        limits = {name: getattr(self, name) for name in METRICS}
        return ",".join(f"{name}<{limit:g}" for name, limit in limits.items() if limit is not None)

    def met_by(self, ttft_s: float, tpot_s: float | None, e2e_s: float) -> bool:
        """Whether a request with these times, in seconds, stays below all limits."""
        found = {"ttft_ms": ttft_s, "tpot_ms": tpot_s, "e2e_ms": e2e_s}
        for name, seconds in found.items():
            limit = getattr(self, name)
            if limit is not None and seconds is not None and not 1000 * seconds < limit:
                return False
        return True


def parse_slo(text: str) -> Slo:
    """Read '--slo', limits with commas between them.

    Raises:
        CompareError: it reads otherwise, a limit is 0, or a time is limited twice.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if match is None:
            raise CompareError(f"SLO {text!r}: {part!r} is not NAME<MILLISECONDS; expected for example '{EXAMPLE}'")
        name, limit = match[1], float(match[2])
        if name not in METRICS:
            raise CompareError(f"SLO {text!r}: unknown time {name!r}; there are: {', '.join(METRICS)}")
        if name in limits:
            raise CompareError(f"SLO {text!r}: {name} is limited twice; keep one of them")
        if not limit:
            raise CompareError(f"SLO {text!r}: nothing is below 0 ms; give {name} a limit above 0")
        limits[name] = limit
    return Slo(**limits)


def goodput(blocks: Sequence[Block], slo: Slo | None) -> dict[str, float] | None:
    """The report's `goodput` of one arm over some blocks; None when no SLO was asked for.

    Args:
        blocks: with the requests that failed, which missed any SLO, and what was asked at once with them. Their seconds
            end with the last answer, so that only shares know what was not answered.
    Returns:
        share: of the requests, those that meet the SLO. output_tokens_per_s: the arm's speed times the share of its
        output tokens that are theirs; within a category that is their tokens / seconds of all blocks. Both shares are
        means over the categories, which weigh the same, as in the speed itself; one of which nothing was answered has
        no speed, and shares of 0.
    """
    if slo is None:
        return None
    by_category: dict[str, list[Answer]] = {}
    for block in blocks:
        by_category.setdefault(block.category, []).extend(block.answers)
    shares = [_shares(answers, slo) for answers in by_category.values()]
    of_requests, of_tokens = (sum(column) / len(shares) for column in zip(*shares, strict=True))
    answered = {name for name, answers in by_category.items() if any(answer.token_ids for answer in answers)}
    speed = overall_speed(prompt_speeds([block for block in blocks if block.category in answered])) if answered else 0.0
    return {"share": of_requests, "output_tokens_per_s": speed * of_tokens}


def _shares(answers: Sequence[Answer], slo: Slo) -> tuple[float, float]:
    """Of requests and of output tokens."""
    good = [answer for answer in answers if meets(answer, slo)]
    tokens = [sum(len(answer.token_ids) for answer in part) for part in (good, answers)]
    return len(good) / len(answers), tokens[0] / tokens[1] if tokens[1] else 0.0


def meets(answer: Answer, slo: Slo) -> bool:
    """Whether a request was answered and stayed below all limits."""
    return answer.error is None and slo.met_by(answer.ttft_s, answer.tpot_s, answer.e2e_s)


def goodput_note(slo: str) -> str:
    """What the column means, for people."""
    return (
        f"Goodput: requests that stay below all of {slo} (none that failed does), and output tokens a second of theirs."
    )


def goodput_text(value: Any) -> str:
    """A cell for people, for example '83 % · 41.2/s', '-' for null."""
    return "-" if value is None else f"{100 * value['share']:.0f} % · {value['output_tokens_per_s']:,.1f}/s"
