"""What one arm did under one level of load: throughput, latency, acceptance, failures. Compares nothing.

All categories are mixed in a run, and prompts are not weighted: this is what the machine gave while it was loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_specplug.compare.asked import NOTHING_MORE, Asked
from vllm_specplug.compare.cost import cost_per_million_tokens
from vllm_specplug.compare.failed_requests import Failures, find_failures, without_failed
from vllm_specplug.compare.goodput import Slo, meets
from vllm_specplug.compare.measure import Answer, Block
from vllm_specplug.compare.statistics import PromptSpeed, acceptance, percentiles_ms, total_drafts


def level_result(runs: Sequence[Block], asked: Asked = NOTHING_MORE) -> dict[str, Any]:
    """The report's R of one arm under one level; counts are sums over its runs.

    Unlike the R of blocks: output_tokens_per_s is output tokens / seconds of the runs, whatever the category.
    requests_per_s counts answered requests. ttft_ms, tpot_ms and e2e_ms are of answered requests, from when each came.
    goodput counts failed ones as missed. in_flight: requests that had come and were not answered, the most and the mean
    over time. late_ms: from when a request came to when it was handed in.
    """
    requests = [answer for run in runs for answer in run.answers]
    answers = [answer for answer in requests if answer.error is None]
    output_tokens, seconds = sum(len(answer.token_ids) for answer in answers), sum(run.seconds for run in runs)
    # All failed where no time has passed.
    tokens_per_s, requests_per_s = (count / seconds if seconds else 0.0 for count in (output_tokens, len(answers)))
    cost = cost_per_million_tokens(tokens_per_s, asked.price) if tokens_per_s else None
    return {
        "prompts": len({answer.prompt_id for answer in answers}),
        "requests": len(requests),
        "failed": len(requests) - len(answers),
        "output_tokens": output_tokens,
        "seconds": seconds,
        "output_tokens_per_s": tokens_per_s,
        "requests_per_s": requests_per_s,
        "ttft_ms": percentiles_ms([answer.ttft_s for answer in answers]),
        "tpot_ms": percentiles_ms([answer.tpot_s for answer in answers if answer.tpot_s is not None]),
        "e2e_ms": percentiles_ms([answer.e2e_s for answer in answers]),
        "late_ms": percentiles_ms([answer.sent_s - answer.arrival_s for answer in answers]),
        "in_flight": _in_flight(runs),
        "finish_reasons": dict(Counter(str(answer.finish_reason) for answer in answers)),
        **_acceptance(answers, runs),
        "goodput": _goodput(requests, seconds, asked.slo),
        "cost_per_million_tokens": cost,
        "errors": load_failures(runs).as_dict(),
        "num_preemptions": _total([run.num_preemptions for run in runs]),
    }


def run_rows(runs: Sequence[Block]) -> list[dict[str, Any]]:
    """A row for each run: how much it varies from one to the next."""
    rows = []
    for run in runs:
        output_tokens = sum(len(answer.token_ids) for answer in run.answers)
        rows.append(
            {
                "pass": run.pass_index,
                "seconds": run.seconds,
                "output_tokens": output_tokens,
                "output_tokens_per_s": output_tokens / run.seconds if run.seconds else 0.0,
                "max_in_flight": max_in_flight(run.answers),
            }
        )
    return rows


def request_rows(runs: Sequence[Block]) -> list[dict[str, Any]]:
    """A row for each request, in the order they came: all that is needed to compute the rest again."""
    return [
        {
            "pass": run.pass_index,
            "id": answer.prompt_id,
            "arrival_s": answer.arrival_s,
            "sent_s": answer.sent_s,
            "ttft_s": answer.ttft_s,
            "e2e_s": answer.e2e_s,
            "output_tokens": len(answer.token_ids),
            "num_forwards": answer.num_forwards,
            "finish_reason": answer.finish_reason,
            "error": answer.error,
        }
        for run in runs
        for answer in run.answers
    ]


def max_in_flight(answers: Sequence[Answer]) -> int:
    """The most requests that had come and were not answered, at any time; failed ones do not count."""
    # At one time those that end go first: a request that comes because another was answered is not beside it.
    changes = [(answer.arrival_s, 1) for answer in answers if answer.error is None]
    changes += [(answer.arrival_s + answer.e2e_s, -1) for answer in answers if answer.error is None]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _in_flight(runs: Sequence[Block]) -> dict[str, float]:
    """Over time, that is the seconds of all requests / the seconds of the runs (Little's law)."""
    seconds = sum(run.seconds for run in runs)
    waited = sum(answer.e2e_s for run in runs for answer in run.answers if answer.error is None)
    return {
        "max": max((max_in_flight(run.answers) for run in runs), default=0),
        "mean": waited / seconds if seconds else 0.0,
    }


def _acceptance(answers: Sequence[Answer], runs: Sequence[Block]) -> dict[str, Any]:
    numbers = acceptance(answers, total_drafts(runs))
    accepted, emitted = numbers["num_accepted_tokens"], numbers["num_emitted_accepted_tokens"]
    if accepted is not None and emitted is not None and emitted > accepted:
        # A server's front-end that falls behind sends two steps as one chunk, so chunks are not steps.
        numbers |= {"tokens_per_forward": None, "num_emitted_accepted_tokens": None}
    return numbers


def _goodput(requests: Sequence[Answer], seconds: float, slo: Slo | None) -> dict[str, float] | None:
    if slo is None:
        return None
    good = [answer for answer in requests if meets(answer, slo)]
    tokens = sum(len(answer.token_ids) for answer in good)
    return {"share": len(good) / len(requests), "output_tokens_per_s": tokens / seconds if seconds else 0.0}


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def load_failures(runs: Sequence[Block]) -> Failures:
    """Count what failed; a request that fails spoils no other's time, as it would in a block."""
    return find_failures(_one_by_one(runs))


def answered(runs: Sequence[Block]) -> list[Block]:
    """A block for each request of the prompts that were answered in every run."""
    return without_failed(_one_by_one(runs), load_failures(runs))


def _one_by_one(runs: Sequence[Block]) -> list[Block]:
    return [replace(run, seconds=answer.e2e_s, answers=(answer,)) for run in runs for answer in run.answers]


def request_speeds(blocks: Sequence[Block], categories: Mapping[str, str]) -> dict[str, PromptSpeed]:
    """By prompt id: its output tokens and the seconds its requests took from when they came, over all runs.

    Args:
        blocks: of `answered`.
        categories: by prompt id.
    """
    speeds: dict[str, PromptSpeed] = {}
    for block in blocks:
        (answer,) = block.answers
        old = speeds.get(answer.prompt_id, PromptSpeed(categories[answer.prompt_id], 0, 0.0))
        tokens, seconds = old.output_tokens + len(answer.token_ids), old.seconds + answer.e2e_s
        speeds[answer.prompt_id] = PromptSpeed(old.category, tokens, seconds)
    return speeds
