"""What speculation gains by the book: formulas on numbers. Knows no engine, no report and no file.

Letters of the papers: α is the chance that a draft is accepted, given that those before it were; γ the number of drafts
a round; c the time of one draft and v the time of a step that checks them, in units of a step without speculation.

Source: Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8; there v is 1, as hardware bound by memory has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_specplug.errors import ConfigError

#: More drafts must gain more than rounding to count as better.
_TIE = 1e-12
#: Halvings of [0, 1]: more than a float can tell apart.
_NUM_HALVINGS = 64


def expected_tokens(alpha: float, drafts: float) -> float:
    """Tokens a round gives on average: the accepted drafts and one of the target's own.

    (1 - alpha^(gamma + 1)) / (1 - alpha), and gamma + 1 at alpha = 1

    Args:
        alpha: in [0, 1], the same for every draft and independent of the others.
        drafts: gamma, 0 or more; a mean that is no whole number is taken as an exponent like any other.
    Raises:
        ConfigError: a number is out of range.
    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1.
    """
    _check_acceptance(alpha)
    _check_drafts(drafts)
    if alpha == 0:
        return 1.0
    if alpha == 1:
        return drafts + 1.0
    return -math.expm1((drafts + 1) * math.log(alpha)) / (1 - alpha)  # 1 - alpha^n would cancel near 1


def acceptance_of(tokens: float, drafts: float) -> float:
    """The alpha that `expected_tokens` needs to give `tokens`: its inverse, by bisection.

    A report's acceptance rate, accepted / drafted, is no alpha: a draft after a rejected one counts as not accepted
    there, whatever it was.

    Args:
        tokens: mean tokens a round, in [1, drafts + 1].
        drafts: mean drafts a round, above 0. Where rounds differ in length their mean stands for all; the formula bends
            downwards in gamma, so alpha comes out too low then.
    Raises:
        ConfigError: a number is out of range.
    """
    _check_drafts(drafts)
    if drafts == 0:
        raise _refusal("drafts", drafts, "a number above 0", "rounds without drafts say nothing about acceptance")
    _within("tokens", tokens, 1, drafts + 1, "give 1 + accepted drafts a round")
    low, high = 0.0, 1.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if expected_tokens(middle, drafts) < tokens:
            low = middle
        else:
            high = middle
    return high


def tokens_per_step(alpha: float, drafts: float, share: float = 1.0) -> float:
    """Tokens a step gives on average where a share of the steps hold drafts: 1 + share (expected_tokens - 1).

    Raises:
        ConfigError: a number is out of range.
    """
    _within("share", share, 0, 1, "give steps that hold drafts / all steps")
    return 1 + share * (expected_tokens(alpha, drafts) - 1)


def step_speedup(tokens: float, draft_cost: float, verify_cost: float) -> float:
    """Speed-up of steps that give `tokens` and cost what drafting and checking cost, both in plain steps.

    tokens / (draft_cost + verify_cost); the numbers are taken as measured and not checked.
    """
    return tokens / (draft_cost + verify_cost)


def speedup(alpha: float, drafts: float, draft_cost: float, verify_cost: float = 1.0, share: float = 1.0) -> float:
    """How many times as fast as no speculation.

    expected_tokens / (gamma c + v); with a share s < 1, (1 + s (expected_tokens - 1)) / (1 + s (gamma c + v - 1));
    1 for no drafts, as then there is nothing to check

    Args:
        alpha, drafts: as in `expected_tokens`.
        draft_cost: c, time of one draft / time of a plain step, 0 or more.
        verify_cost: v, time of a step that checks the drafts / time of a plain step.
        share: s in [0, 1], of steps that hold drafts: those of a drafter that finds nothing are plain.
    Raises:
        ConfigError: a number is out of range.
    Source: Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8, for v = s = 1.
    """
    tokens = tokens_per_step(alpha, drafts, share)
    _within("draft_cost", draft_cost, 0, 1e6, "give seconds of one draft / seconds of one step of the target")
    _within("verify_cost", verify_cost, 0.01, 1e6, "give seconds of a step with drafts / seconds of one without")
    if drafts == 0:
        return 1.0
    return step_speedup(tokens, share * drafts * draft_cost, 1 + share * (verify_cost - 1))


def best_drafts(alpha: float, limit: int, draft_cost: float, verify_cost: float = 1.0, share: float = 1.0) -> int:
    """The number of drafts from 0 (do not speculate) to `limit` with the greatest `speedup`, of equals the smallest.

    Raises:
        ConfigError: a number is out of range.
    """
    _within("limit", limit, 0, 1e6, "give the largest number of drafts to consider")
    best, greatest = 0, speedup(alpha, 0, draft_cost, verify_cost, share)
    for drafts in range(1, limit + 1):
        found = speedup(alpha, drafts, draft_cost, verify_cost, share)
        if found > greatest * (1 + _TIE):
            best, greatest = drafts, found
    return best


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of one step of decoding: the longer of the two, were they to overlap fully."""

    memory_s: float
    """To read the weights and the KV cache once."""
    compute_s: float
    """For the multiply-adds of all tokens of the step."""
    balance: float
    """Tokens a step may hold before computing takes longer than reading."""

    @property
    def bound(self) -> str:
        """'memory' or 'compute': what a step waits for."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


def roofline(
    params: float, bytes_per_param: float, bandwidth: float, flops: float, tokens: int = 1, kv_bytes: float = 0.0
) -> Roofline:
    """A step that reads every weight once and does one multiply-add (2 FLOPs) per weight and token.

    memory = (params bytes_per_param + kv_bytes) / bandwidth, compute = 2 params tokens / flops

    Args:
        params: weights a step reads; of a mixture of experts, those of the experts that its tokens go to.
        bytes_per_param: 2 for bfloat16.
        bandwidth: of the memory, bytes a second.
        flops: FLOP/s of dense matrix products in the type computed in.
        tokens: in the step, over all requests, drafts included.
        kv_bytes: of the KV cache read in the step, over all requests. Attention's own FLOPs are left out.
    Raises:
        ConfigError: a number is out of range.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    _within("params", params, 1e3, 1e18, "give a count, as 70e9 for 70 billion")
    _within("bytes_per_param", bytes_per_param, 0.01, 1e3, "give bytes of one weight, as 2 for bfloat16")
    _within("bandwidth", bandwidth, 1e6, 1e24, "give bytes a second, as 3.35e12 for 3.35 TB/s")
    _within("flops", flops, 1e6, 1e24, "give FLOP/s, as 989e12 for 989 TFLOP/s")
    _within("tokens", tokens, 1, 1e9, "give tokens in one step")
    _within("kv_bytes", kv_bytes, 0, 1e18, "give bytes of the KV cache read in one step")
    memory_s = (params * bytes_per_param + kv_bytes) / bandwidth
    token_s = 2 * params / flops
    return Roofline(memory_s, token_s * tokens, memory_s / token_s)


def _check_acceptance(alpha: float) -> None:
    _within("alpha", alpha, 0, 1, "give the chance that one draft is accepted")


def _check_drafts(drafts: float) -> None:
    _within("drafts", drafts, 0, 1e6, "give drafts a round")


def _within(name: str, value: float, low: float, high: float, remedy: str) -> None:
    if not low <= value <= high:  # neither holds for NaN
        raise _refusal(name, value, f"{low:g} to {high:g}", remedy)


def _refusal(name: str, value: float, expected: str, remedy: str) -> ConfigError:
    try:
        text = f"{value:.10g}"  # 1.0000001 is not 1
    except OverflowError:
        text = f"a number of {len(str(value))} digits"
    return ConfigError(f"{name} is {text}; expected {expected}; {remedy}")
