"""Engines of real vLLM, in this process, shared by all tests that want the same one.

An engine is never thrown away before the end: tearing one down destroys process groups that the others use.

All engines of a process run on one of vLLM's model runners, and the ids of its tests say which: V1, or with
SPECPLUG_TEST_RUNNER=v2 V2 (`v2_on_cpu`). `test_v2.py` starts a process of the other kind for the bodies marked `v2`.
"""

from __future__ import annotations

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
# One thread: models this small gain nothing from a second, and threads that wait for each other on a busy machine make
# a step twenty times as long.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when triton is imported, which torch may do before anything of ours is.
os.environ["TRITON_INTERPRET"] = str(int(os.environ.get("SPECPLUG_TEST_RUNNER") == "v2"))

import gc
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import small_target
from models import tiny_llama
from prometheus_client import REGISTRY
from runners import RUNNER
from tiny_draft import tiny_draft
from tiny_heads import tiny_heads
from training import train

from vllm_specplug.bridge import contract, kernel_scan
from vllm_specplug.guard import Guard
from vllm_specplug.metrics import Counts
from vllm_specplug.proposer import Proposer
from vllm_specplug.testing import Scripted

SCRIPTED = "specplug:vllm_specplug.testing.Scripted"
KNOWN = "specplug:vllm_specplug.testing.KnownDistribution"
LOOKUP = "specplug:prompt_lookup"
MEDUSA = "specplug:medusa"
DRAFT = "specplug:draft_model"

METHODS = pytest.mark.parametrize("method", ["scripted", "lookup", "medusa", "draft"])
#: The same, of which one is enough where time is short.
METHODS_ONE_ON_V2 = pytest.mark.parametrize(
    "method", [pytest.param("scripted", marks=pytest.mark.v2), "lookup", "medusa", "draft"]
)

T = TypeVar("T")


def few(items: Sequence[T], on_v2: int) -> Sequence[T]:
    """All of them on V1; on V2, where the interpreter takes 10 ms for a token, the first ones."""
    return items if RUNNER == "v1" else items[:on_v2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    other = "v2_only" if RUNNER == "v1" else "v1_only"
    version = contract.installed_version()
    without_drafts = RUNNER not in contract.runners(version, runs_draft_model=True)
    for item in items:
        if item.get_closest_marker(other):
            item.add_marker(pytest.mark.skip(reason=f"{other}: see the marker"))
        elif without_drafts and _runs_draft_model(item):
            item.add_marker(pytest.mark.skip(reason=f"vLLM {version} runs draft models on V1"))


def _runs_draft_model(item: pytest.Item) -> bool:
    parameters = (
        item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
    return item.get_closest_marker("draft_model") is not None or not {"draft", "draft_model", DRAFT}.isdisjoint(
        value for value in parameters if isinstance(value, str)
    )


@dataclass
class SpecCounts:
    """What vLLM counted between two looks."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def num_rejected_tokens(self) -> int:
        return self.num_draft_tokens - self.num_accepted_tokens

    def assert_enough(self, accepted: int = 50, rejected: int = 50) -> None:
        """A test of losslessness that drafted nothing proves nothing."""
        assert self.num_accepted_tokens >= accepted, f"only {self.num_accepted_tokens} drafts were accepted"
        assert self.num_rejected_tokens >= rejected, f"only {self.num_rejected_tokens} drafts were rejected"


@dataclass
class Engine:
    """An LLM with the questions tests ask."""

    llm: Any
    _seen: SpecCounts = field(default_factory=SpecCounts)
    _counters: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        # Of this engine: the next one takes them out of the registry, and LLM.get_metrics() shows that one's then.
        self._counters = {
            collector._name: collector for collector in REGISTRY._collector_to_names if hasattr(collector, "_name")
        }

    def generate(self, prompts: Sequence[Sequence[int]], params: Any) -> list[Any]:
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs: list[Any] = self.llm.generate(inputs, params, use_tqdm=False)
        return outputs

    def tokens(self, prompts: Sequence[Sequence[int]], params: Any) -> list[list[int]]:
        """Token ids of the first answer to each prompt."""
        return [list(output.outputs[0].token_ids) for output in self.generate(prompts, params)]

    def new_counts(self) -> SpecCounts:
        """What was counted since the last call."""
        now = SpecCounts(**{name: self.metric(f"spec_decode_{name}") for name in vars(self._seen)})
        new = SpecCounts(*(getattr(now, name) - getattr(self._seen, name) for name in vars(now)))
        self._seen = now
        return new

    def metric(self, name: str) -> int:
        """A counter of vLLM's; 0 where this engine has none of that name."""
        counter = self._counters.get(f"vllm:{name}")
        families = [] if counter is None else counter.collect()
        return sum(int(one.value) for family in families for one in family.samples if one.name.endswith("_total"))

    def staggered(self, prompts: Sequence[Sequence[int]], params: Any, every: int = 2) -> list[Any]:
        """Answers to prompts of which one arrives every so many steps, so that the batch changes all the time."""
        engine = self.llm.llm_engine
        waiting = {str(number): {"prompt_token_ids": list(prompt)} for number, prompt in enumerate(prompts)}
        answers: dict[str, Any] = {}
        step = 0
        while waiting or engine.has_unfinished_requests():
            if waiting and step % every == 0:
                req_id = next(iter(waiting))
                engine.add_request(req_id, waiting.pop(req_id), params)
            answers |= {output.request_id: output for output in engine.step() if output.finished}
            step += 1
        return [answers[str(number)] for number in range(len(prompts))]

    def settle(self) -> None:
        """Finish what runs and tell the worker that it ended, which vLLM does in the step after."""
        engine = self.llm.llm_engine
        while engine.engine_core.engine_core.scheduler.has_requests():
            engine.step()

    def use(self, proposer_class: type[Proposer], **options: Any) -> Any:
        """Let a new proposer draft from now on, with a guard and counts of its own; saves an engine for each script."""
        drafter = self.drafter
        proposer = proposer_class(proposer_class.Options(**options), drafter.engine)
        drafter.capabilities = proposer.capabilities
        drafter.guard = Guard(proposer_class.__name__, proposer, drafter.engine, Counts(proposer_class.__name__))
        drafter.load(self.runner.model)
        self.new_counts()
        return proposer

    def count(self, slot: str) -> int:
        """What the guard of our proposer counted."""
        return int(self.drafter.guard.counts.value(slot))

    @property
    def runner(self) -> Any:
        """vLLM's model runner."""
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    @property
    def drafter(self) -> Any:
        """Our drafter in it; behind vLLM's where that stands in front."""
        theirs = self.runner.drafter if RUNNER == "v1" else self.runner.speculator
        return getattr(theirs, "specplug", theirs)


MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session", autouse=True, params=[RUNNER])
def runner(request: pytest.FixtureRequest) -> str:
    """The model runner of this process, in the id of every test."""
    return str(request.param)


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny(models_folder: Path) -> str:
    """A float32 target with 32 tokens and no tokenizer."""
    return str(tiny_llama(models_folder / "tiny"))


@pytest.fixture(scope="session")
def tiny_text(models_folder: Path) -> str:
    """A float32 target with 128 tokens, most of them characters, and a tokenizer; token 127 ends a text."""
    return str(tiny_llama(models_folder / "tiny-text", vocab_size=128, eos_token_id=127, with_tokenizer=True))


@pytest.fixture(scope="session")
def eight(models_folder: Path) -> str:
    """A float32 target with 8 tokens, each of them possible nearly everywhere."""
    return str(tiny_llama(models_folder / "eight", vocab_size=small_target.VOCAB_SIZE, seed=3, spread=0.15))


@pytest.fixture(scope="session")
def target(eight: str) -> Any:
    """The exact distribution of its answers."""
    from statistics_of_samples import ExactTarget  # which imports this module

    return ExactTarget(eight, small_target.PROMPT, small_target.NUM_TOKENS)


@pytest.fixture(scope="session")
def trained(tiny_text: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of heads and what the command that trained them printed; its answers are in `heads.work` beside it."""
    out = tmp_path_factory.mktemp("trained") / "heads"
    done = train("train-medusa", tiny_text, out)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return out, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def make_engine(tiny: str) -> MakeEngine:
    """make_engine(speculative_config, model=..., **engine arguments) -> Engine, the same one for the same question."""
    made: dict[str, Engine] = {}

    def make(speculative_config: dict[str, Any] | None = None, model: str = tiny, **arguments: Any) -> Engine:
        from vllm import LLM

        settings: dict[str, Any] = {
            "dtype": "float32",
            "max_model_len": 256,
            "max_num_seqs": 16,
            "enforce_eager": True,
            "num_gpu_blocks_override": 512,  # 32 MiB; vllm-cpu would take a GiB for each engine
            "disable_log_stats": False,
            "skip_tokenizer_init": not (Path(model) / "tokenizer.json").exists(),
            "seed": 0,
            **arguments,
        }
        key = json.dumps([model, speculative_config, settings], sort_keys=True, default=str)
        if key not in made:
            kernel_scan.survive()  # a test may have loaded numba
            made[key] = Engine(LLM(model, speculative_config=speculative_config, **settings))
            made[key].new_counts()
            gc.freeze()  # it stays to the end, so no collection need look at it again
        return made[key]

    return make


@pytest.fixture
def log() -> Iterator[list[str]]:
    """Lines that our package logs, wherever its logger writes."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logger = logging.getLogger("vllm_specplug")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def script_of(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """What `Scripted` replays."""
    return [[list(prompt), list(answer)] for prompt, answer in zip(prompts, answers, strict=True)]


def loop_prompt(start: int, length: int, vocab_size: int = 32) -> list[int]:
    """A prompt that repeats itself, different for each `start`."""
    return [(start + step % 5 * 3) % vocab_size for step in range(length)]


def drafting_engine(
    make_engine: MakeEngine, method: str, prompts: Sequence[Sequence[int]], answers: Sequence[Any], **arguments: Any
) -> Engine:
    """An engine that drafts: `lookup` by prompt lookup; `medusa` with trained heads; `draft` with a noisy copy of the
    target; `scripted` replays the answers, every third token spoilt.
    """
    if method in ("medusa", "draft"):
        model = arguments.get("model") or make_engine().llm.llm_engine.model_config.model
        if method == "medusa":
            options = {"method": MEDUSA, "num_speculative_tokens": 3, "model": tiny_heads(model)}
        else:
            options = {"method": DRAFT, "num_speculative_tokens": 4, "model": tiny_draft(model)}
        engine = make_engine(options, **{**arguments, "model": model})
        engine.new_counts()
        return engine
    if method == "lookup":
        # Without a limit it drafts whatever it finds: in texts of a random model mostly what is wrong.
        engine = make_engine({"method": LOOKUP, "num_speculative_tokens": 4, "min_confidence": 0.0}, **arguments)
        engine.new_counts()
        return engine
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5}, **arguments)
    replay(engine, prompts, answers, wrong_every=3)
    return engine


def replay(engine: Engine, prompts: Sequence[Sequence[int]], answers: Sequence[Any], **options: Any) -> Any:
    """Let `engine` draft the first completion of each answer."""
    tokens = [answer.outputs[0].token_ids for answer in answers]
    return engine.use(Scripted, script=script_of(prompts, tokens), **options)


def said(answers: Sequence[Any]) -> list[list[tuple[Any, ...]]]:
    """All of each answer that a client sees, but for log-probabilities, which are equal only nearly."""
    return [
        [(list(one.token_ids), one.text, one.finish_reason, one.stop_reason) for one in answer.outputs]
        for answer in answers
    ]


def assert_same_logprobs(answers: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-3) -> None:
    """One entry for each token, with the values that the target gives without speculation."""
    for answer, wanted in zip(answers, expected, strict=True):
        for one, other in zip(answer.outputs, wanted.outputs, strict=True):
            assert len(one.logprobs) == len(one.token_ids)
            for token, mine, theirs in zip(one.token_ids, one.logprobs, other.logprobs, strict=True):
                assert token in mine
                assert mine.keys() == theirs.keys()
                for candidate, value in theirs.items():
                    assert mine[candidate].logprob == pytest.approx(value.logprob, abs=tolerance)
