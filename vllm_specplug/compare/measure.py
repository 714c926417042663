"""Who runs when, and what is written down of it. Knows the protocol of `worker`, computes no statistics.

All engines are alive, one works at a time. For each block of prompts the arms run in order and then in reverse order
(A B B A, in the next block B A A B), so that a drift of the machine, linear over a block, falls on all arms alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.progress import Progress

MAX_WARM_UP_ROUNDS = 6
SETTLED = 0.9
"""Warm-up ends when a round takes more than this share of the fastest one before it."""
UNKNOWN_TOKEN = -1
"""Stands for each token of an answer whose ids an endpoint does not tell."""


class Engine(Protocol):
    """What is needed of `engine.EngineProcess`; tests bring their own."""

    def request(self, op: str, **args: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """vLLM's own counters of speculation, before it trims at a stop."""

    num_drafts: int
    """Draft rounds: request steps that held drafts."""
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    num_steps: int = 0
    """Steps in which a proposer of ours was asked; 0 for vLLM's own methods, which are not timed."""
    draft_s: float = 0.0
    """Time these steps waited for it."""

    def __add__(self, other: DraftCounts) -> DraftCounts:
        pairs = zip(self.accepted_per_position, other.accepted_per_position, strict=True)
        return DraftCounts(
            self.num_drafts + other.num_drafts,
            self.num_draft_tokens + other.num_draft_tokens,
            self.num_accepted_tokens + other.num_accepted_tokens,
            tuple(ours + theirs for ours, theirs in pairs),
            self.num_steps + other.num_steps,
            self.draft_s + other.draft_s,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """One request of one arm."""

    prompt_id: str
    pass_index: int
    token_ids: tuple[int, ...]
    """Output as the user gets it: trimmed at a stop, which it includes."""
    num_forwards: int | None
    """Steps of the target that gave tokens of this request, the one that read the prompt included; None: not known."""
    ttft_s: float
    """From when the request came to the end of the step that gave the first token; waiting is in it."""
    e2e_s: float
    finish_reason: str | None
    error: str | None = None
    """Why there is no answer, "kind: what"; the numbers above then say nothing (`failed_requests`)."""
    arrival_s: float = 0.0
    """When the request came, from the start of its block; both times above count from here."""
    sent_s: float = 0.0
    """When it was handed in; later than it came where the engine was in a step, or the client was late."""

    @property
    def num_emitted_accepted_tokens(self) -> int | None:
        """Accepted drafts that reached the output: each step gives one token of the target's own. None: not known.

        In a last step that a stop cuts within its drafts, the last one kept counts as the target's own token, which
        fell behind the stop: what matters is how many tokens came without a step.
        """
        return None if self.num_forwards is None else len(self.token_ids) - self.num_forwards

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token after the first; None for answers of one token."""
        return (self.e2e_s - self.ttft_s) / (len(self.token_ids) - 1) if len(self.token_ids) > 1 else None


@dataclass(frozen=True, slots=True)
class Block:
    """Prompts of one category sent at once to one arm, in one pass; or a whole run of an arm under a level of load."""

    category: str
    """"" under load, where all are mixed."""
    pass_index: int
    seconds: float
    """From handing in the first prompt to the end of the last answer."""
    answers: tuple[Answer, ...]
    """Under load in the order they came."""
    drafts: DraftCounts | None
    """None: the arm does not speculate."""
    level: str | None = None
    """Name of the level of load; None: a block."""
    num_preemptions: int | None = None
    """How often a request lost its KV cache to others; None: not known."""


class Record(Protocol):
    """Blocks that an interrupted run has measured, and where new ones are written down: `journal.Journal`."""

    recalled_s: float
    """Seconds of all blocks that `recall` gave."""

    def recall(
        self, arm: str, prompts: Sequence[Prompt], pass_index: int, level: str | None = None
    ) -> Block | None: ...

    def add(self, arm: str, block: Block) -> None: ...


def warm_up(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> int:
    """Answer the shortest and the longest prompt again and again until it takes no less time; results are thrown away.

    Returns:
        Rounds taken, 2 to MAX_WARM_UP_ROUNDS.
    """
    ordered = sorted(prompts, key=len)
    fastest, rounds = float("inf"), 0
    while rounds < MAX_WARM_UP_ROUNDS:
        rounds += 1
        seconds = sum(
            engine.request("generate", prompts=[prompt], max_tokens=[max_tokens])["seconds"]
            for prompt in (ordered[0], ordered[-1])
        )
        if seconds > SETTLED * fastest:
            break
        fastest = seconds
    return rounds


def measure(
    engines: Mapping[str, Engine],
    blocks: Sequence[Sequence[Prompt]],
    token_ids: Mapping[str, Sequence[int]],
    max_tokens: int,
    num_passes: int,
    progress: Progress,
    record: Record | None = None,
) -> dict[str, list[Block]]:
    """Run every block on every arm, `num_passes` times, the order of the arms turning round each time.

    The next block begins the other way round: so the first place falls to all arms alike with an odd number of passes,
    one above all.

    Args:
        engines: by arm name, in order.
        token_ids: by prompt id.
        max_tokens: output tokens of an answer at most, where the prompt has no limit of its own.
        record: what it knows is not measured again, what is new it gets as soon as it is measured.
    Returns:
        By arm name, in the order they ran.
    """
    results: dict[str, list[Block]] = {name: [] for name in engines}
    done, total = 0, len(blocks) * num_passes * len(engines)
    for block_index, prompts in enumerate(blocks):
        for pass_index in range(num_passes):
            names = list(engines)
            for name in names if (block_index + pass_index) % 2 == 0 else reversed(names):
                block = None if record is None else record.recall(name, prompts, pass_index)
                if block is None:
                    progress(f"{name} · {prompts[0].category}", done, total)
                    raw = engines[name].request(
                        "generate",
                        prompts=[list(token_ids[prompt.id]) for prompt in prompts],
                        max_tokens=[prompt.output_limit(max_tokens) for prompt in prompts],
                    )
                    block = block_of(raw, prompts, pass_index)
                    if record is not None:
                        record.add(name, block)
                results[name].append(block)
                done += 1
    progress("done", done, total)
    return results


def measure_within(
    budget_s: float,
    engines: Mapping[str, Engine],
    rounds: Sequence[Sequence[Sequence[Prompt]]],
    token_ids: Mapping[str, Sequence[int]],
    max_tokens: int,
    num_passes: int,
    progress: Progress,
    record: Record | None = None,
) -> dict[str, list[Block]]:
    """`measure` round by round, as many rounds as fit into `budget_s` seconds, at least one.

    A round is only begun when one as long as the longest so far would still fit: what is measured depends on the
    clock, never on a result. What `record` knows counts with the seconds it took when it was measured.
    """

    def clock() -> float:
        return time.perf_counter() + (0.0 if record is None else record.recalled_s)

    results: dict[str, list[Block]] = {name: [] for name in engines}
    start, longest, done = clock(), 0.0, 0
    for index, blocks in enumerate(rounds):
        begun = clock()
        if index and begun - start + longest > budget_s:
            break
        expected = len(rounds) if not index else min(len(rounds), index + int((budget_s - begun + start) / longest))
        total = sum(len(part) for part in rounds[:expected]) * num_passes * len(engines)
        before = done

        def shown(what: str, now: int, _: int, before: int = before, total: int = total) -> None:
            if what != "done":
                progress(what, before + now, total)

        part = measure(engines, blocks, token_ids, max_tokens, num_passes, shown, record)
        for name, found in part.items():
            results[name] += found
        done += len(blocks) * num_passes * len(engines)
        longest = max(longest, clock() - begun)
    progress("done", done, done)
    return results


def block_of(raw: Mapping[str, Any], prompts: Sequence[Prompt], pass_index: int, level: str | None = None) -> Block:
    """What `worker.Worker.generate` answered, of these prompts; `level` where it was under load."""
    answers = tuple(
        Answer(
            prompt.id,
            pass_index,
            tuple(output["token_ids"]),
            output["num_forwards"],
            output["ttft_s"],
            output["e2e_s"],
            output["finish_reason"],
            output.get("error"),
            output.get("arrival_s", 0.0),
            output.get("sent_s", 0.0),
        )
        for prompt, output in zip(prompts, raw["outputs"], strict=True)
    )
    counts = raw["counts"]
    drafts = None
    if counts is not None:
        drafts = DraftCounts(
            counts["num_drafts"],
            counts["num_draft_tokens"],
            counts["num_accepted_tokens"],
            tuple(counts["accepted_per_position"]),
            counts["num_steps"],
            counts["draft_s"],
        )
    category = prompts[0].category if level is None else ""
    return Block(category, pass_index, raw["seconds"], answers, drafts, level, raw.get("num_preemptions"))
