"""Medusa heads in a real engine: greedy text stays the target's, whatever layout, number and kind of heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MEDUSA, MakeEngine, loop_prompt, said
from test_tensor_parallel import needs_two_cores, run
from tiny_heads import tiny_heads
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs

from proposers.medusa import Medusa, MedusaOptions
from vllm_specplug import ConfigError
from vllm_specplug.bridge.target import VllmTarget
from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.convert import convert
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads

PROMPTS = [loop_prompt(start, 6 + start) for start in range(12)]


def greedy(max_tokens: int = 60, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, **changes)


@pytest.fixture(scope="session")
def five(tiny: str) -> str:
    """Five sequential heads for the tiny target."""
    return tiny_heads(tiny)


@pytest.fixture(scope="session")
def original(models_folder: Path) -> str:
    """Five random heads as the Medusa authors keep them: an old config without model_type, and a pickle."""
    folder = models_folder / "original-heads"
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    tensors = {}
    for head in range(5):
        tensors[f"{head}.0.linear.weight"] = torch.randn(64, 64) * 0.1
        tensors[f"{head}.0.linear.bias"] = torch.randn(64) * 0.1
        tensors[f"{head}.1.weight"] = torch.randn(32, 64)
    torch.save(tensors, folder / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 5, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def configure(model: str, heads: str, num_drafts: int, **arguments: Any) -> Any:
    config = {"method": MEDUSA, "model": heads, "num_speculative_tokens": num_drafts}
    settings = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "skip_tokenizer_init": True, **arguments}
    return EngineArgs(model=model, speculative_config=config, **settings).create_engine_config()


@pytest.mark.parametrize("num_drafts", [1, 3, 5])
def test_the_first_heads_of_an_original_checkpoint_are_used(
    make_engine: MakeEngine, original: str, num_drafts: int
) -> None:
    """FasterDecoding/Medusa#77 and #81: such a config did not load; fewer drafts than heads crashed."""
    expected = make_engine().generate(PROMPTS, greedy())
    engine = make_engine({"method": MEDUSA, "model": original, "num_speculative_tokens": num_drafts})
    engine.new_counts()
    assert said(engine.staggered(PROMPTS, greedy())) == said(expected)
    counts = engine.new_counts()
    counts.assert_enough(accepted=5)  # random heads
    assert engine.count("failures") == 0
    assert counts.num_draft_tokens <= num_drafts * counts.num_drafts


def test_more_drafts_than_heads_are_refused_at_the_start(tiny: str, original: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure(tiny, original, 6)
    assert str(error.value) == (
        f"proposer 'medusa': num_speculative_tokens is 6, but {original} has 5 heads, one for each token; "
        "ask for 1 to 5, or train more heads"
    )


def test_heads_of_another_target_are_refused_at_the_start(tiny: str, tiny_text: str, five: str, tmp_path: Path) -> None:
    """Never a healthy server with no acceptance: by hidden size, by vocabulary, by what the folder holds."""
    wide = MedusaHeads(HeadsConfig(kind="independent", num_heads=2, hidden_size=128, vocab_size=32))
    checkpoint.write(tmp_path / "wide", wide, {})
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*\b128\b.*\b64\b"):
        configure(tiny, str(tmp_path / "wide"), 1)
    text_heads = tiny_heads(tiny_text)
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*\b128\b.*\b32\b"):
        configure(tiny, text_heads, 1)
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*no-such-folder"):
        configure(tiny, "no-such-folder", 1)
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*config\.json"):
        configure(tiny, tiny, 1)  # the target itself is no set of heads


@pytest.mark.parametrize(
    "shape",
    [
        {"kind": "independent"},
        {"kind": "independent", "output": "own"},
        {"kind": "sequential", "output": "shared", "draft_token_ids": tuple(range(0, 32, 2))},
        {"kind": "sequential", "num_layers": 2, "draft_token_ids": tuple(range(1, 32))},
    ],
    ids=["independent", "independent-own", "sequential-shared-half", "sequential-deep-cut"],
)
def test_every_kind_of_heads_keeps_the_text(make_engine: MakeEngine, tiny: str, shape: dict[str, Any]) -> None:
    """Batches of 1 and 8, also while a long prompt is read in chunks."""
    heads = tiny_heads(tiny, num_heads=3, **shape)
    small_steps = {"max_num_batched_tokens": 24, "max_num_seqs": 8, "enable_prefix_caching": False}
    prompts = [*PROMPTS, *(loop_prompt(start, 90 + start) for start in range(4))]
    solo = [make_engine().generate([prompt], greedy())[0] for prompt in prompts]
    engine = make_engine({"method": MEDUSA, "num_speculative_tokens": 3, "model": heads}, **small_steps)
    engine.new_counts()
    assert said(engine.staggered(prompts, greedy(), every=3)) == said(solo)
    assert said(engine.generate(prompts[:1], greedy())) == said(solo[:1])
    engine.new_counts().assert_enough()
    assert engine.count("failures") == 0


def test_a_state_out_of_the_prefix_cache_drafts_as_well(make_engine: MakeEngine, five: str) -> None:
    """vllm#47930: acceptance collapsed where the prompt came out of the prefix cache."""
    prompts = [[*loop_prompt(3, 140), *loop_prompt(start, 5)] for start in range(6)]
    expected = make_engine(enable_prefix_caching=False).generate(prompts, greedy())
    config = {"method": MEDUSA, "num_speculative_tokens": 5, "model": five}
    engine = make_engine(config, block_size=32, enable_prefix_caching=True)
    engine.llm.reset_prefix_cache()
    engine.new_counts()
    hits = engine.metric("prefix_cache_hits")
    assert said(engine.generate(prompts[:1], greedy())) == said(expected[:1])
    assert said(engine.generate(prompts, greedy())) == said(expected)
    cold = engine.new_counts()
    assert said(engine.generate(prompts, greedy())) == said(expected)
    warm = engine.new_counts()
    assert engine.metric("prefix_cache_hits") - hits >= 6 * 128
    assert warm.num_accepted_tokens * 7 >= 0.95 * 6 * cold.num_accepted_tokens  # one prompt was asked twice before
    warm.assert_enough()


def test_drafts_are_those_of_vllms_own_medusa(make_engine: MakeEngine, tiny: str, tmp_path: Path) -> None:
    """Our heads on every state that vLLM's own proposer was asked about, in the same checkpoint."""
    heads = tiny_heads(tiny, num_heads=3, kind="independent", output="own")
    convert(heads, tmp_path / "vllm-heads", "vllm")
    config = {"method": "medusa", "model": str(tmp_path / "vllm-heads"), "num_speculative_tokens": 3}
    theirs = make_engine(config)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    propose = theirs.runner.drafter.propose

    def noting(*args: Any, **kwargs: Any) -> Any:
        drafts = propose(*args, **kwargs)
        seen.append((kwargs["target_hidden_states"].clone(), drafts.clone()))
        return drafts

    theirs.runner.drafter.propose = noting
    expected = make_engine().generate(PROMPTS, greedy())
    theirs.new_counts()
    assert said(theirs.generate(PROMPTS, greedy())) == said(expected)
    theirs_counts = theirs.new_counts()

    ours = make_engine({"method": MEDUSA, "model": str(tmp_path / "vllm-heads"), "num_speculative_tokens": 3})
    ours.new_counts()
    assert said(ours.generate(PROMPTS, greedy())) == said(expected)
    counts = ours.new_counts()
    # The same drafts, except behind the end of an answer, where ours make none.
    assert theirs_counts.num_accepted_tokens >= counts.num_accepted_tokens >= 50
    assert counts.num_accepted_tokens >= 0.9 * theirs_counts.num_accepted_tokens
    proposer = Medusa(MedusaOptions(model=str(tmp_path / "vllm-heads")), ours.drafter.engine)
    proposer.load(VllmTarget(ours.runner.model, 32))
    num_compared = 0
    for states, drafts in seen:
        found = [proposer._heads.logits(index, states, []).argmax(-1) for index in range(3)]
        assert torch.equal(torch.stack(found, dim=1), drafts)
        num_compared += drafts.numel()
    assert num_compared > 1000


@pytest.mark.parametrize(("batch_size", "most"), [(1, 4), (3, 2), (8, 0)])
def test_drafts_follow_the_schedule_by_batch_size(
    make_engine: MakeEngine, five: str, batch_size: int, most: int
) -> None:
    """vllm#46399: a smaller number of drafts than the maximum ended the engine."""
    schedule = {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 4, 2], [5, 16, 0]],
    }
    prompts = [loop_prompt(start, 9) for start in range(batch_size)]
    expected = make_engine().generate(prompts, greedy(100))
    engine = make_engine({"method": MEDUSA, "model": five, **schedule})
    engine.new_counts()
    assert said(engine.generate(prompts, greedy(100))) == said(expected)
    counts = engine.new_counts()
    assert counts.num_draft_tokens <= most * counts.num_drafts
    assert counts.num_draft_tokens > (most - 1) * counts.num_drafts or not most


@needs_two_cores
@pytest.mark.slow
@pytest.mark.parametrize("shape", [{}, {"output": "shared", "draft_token_ids": tuple(range(1, 32))}], ids=["", "cut"])
def test_two_ranks_draft_alike(tiny: str, shape: dict[str, Any]) -> None:
    """Embeddings and output layer are split between the ranks; drafts and q must be whole and equal on both."""
    config = {"method": MEDUSA, "num_speculative_tokens": 3, "model": tiny_heads(tiny, **shape)}
    expected = run(tiny, None)
    report = run(tiny, config)
    assert report["tokens"] == expected["tokens"]
    alone = report["specplug"]["medusa"]
    assert alone["failures"] == alone["dropped_ranks_differ"] == 0
    assert report["vllm"]["vllm:spec_decode_num_accepted_tokens"] >= 50
    sampled = run(tiny, {**config, "draft_sample_method": "probabilistic"}, temperature=1.0)
    assert [len(tokens) for tokens in sampled["tokens"]] == [40] * 8
    assert sampled["specplug"]["medusa"]["dropped_ranks_differ"] == 0
    assert sampled["vllm"]["vllm:spec_decode_num_accepted_tokens"] >= 20
