"""`specplug train-medusa` from prompts to heads that serve, on a tiny target; a second run finds all done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MEDUSA, MakeEngine, loop_prompt, said
from training import train
from vllm import SamplingParams

from vllm_specplug.medusa import checkpoint


def test_figures_are_of_answers_that_were_held_out_v1(trained: tuple[Path, dict[str, Any]]) -> None:
    out, figures = trained
    assert figures["num_training_tokens"] >= 6000
    assert 0.04 < figures["num_held_out_tokens"] / figures["num_training_tokens"] < 2
    assert len(figures["top1"]) == len(figures["top5"]) == len(figures["acceptance_length"]) == 3
    assert all(0 < one <= five <= 1 for one, five in zip(figures["top1"], figures["top5"], strict=True))
    assert 1 < figures["acceptance_length"][0] < figures["acceptance_length"][2] < 4
    stored = checkpoint.read(out)
    assert stored.provenance["held_out"]["top1"] == figures["top1"]
    assert stored.provenance["made_by"] == "specplug train-medusa"
    assert stored.config.kind == "sequential"
    assert stored.config.draft_vocab_size is not None
    assert stored.config.draft_vocab_size <= 100


def test_recorded_states_are_those_the_tokens_were_sampled_from_v1(
    trained: tuple[Path, dict[str, Any]], tiny_text: str
) -> None:
    """Greedy answers: the target's output layer, on a recorded state, says the token recorded with it."""
    from safetensors.torch import load_file

    folder = trained[0].with_name("heads.work") / "answers"
    chunk = load_file(next(folder.glob("train-*.safetensors")))
    target = load_file(folder / "target.safetensors")
    assert len(chunk["tokens"]) == len(chunk["states"]) == chunk["lengths"].sum()
    best = (chunk["states"].float() @ target["output_embeddings"].float().T).argmax(-1)
    assert (best == chunk["tokens"]).float().mean() > 0.97  # bfloat16 rounds a few near ties away
    assert len(chunk["tokens"]) >= 32 * 16


def test_trained_heads_serve_v1(make_engine: MakeEngine, trained: tuple[Path, dict[str, Any]], tiny_text: str) -> None:
    out, _ = trained
    prompts = [loop_prompt(start, 20, 90) for start in range(8)]
    greedy = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    expected = make_engine(model=tiny_text).generate(prompts, greedy)
    engine = make_engine({"method": MEDUSA, "model": str(out), "num_speculative_tokens": 3}, model=tiny_text)
    engine.new_counts()
    assert said(engine.generate(prompts, greedy)) == said(expected)
    engine.new_counts().assert_enough(accepted=5)  # a random target says little that can be learned from so few tokens


def test_a_second_run_makes_only_what_is_missing_v1(trained: tuple[Path, dict[str, Any]], tiny_text: str) -> None:
    """A lost chunk is answered again, a lost training is trained again, and the heads are the same, bit for bit."""
    out, figures = trained
    before = checkpoint.read(out).tensors
    work = out.with_name("heads.work")
    chunks = {path: path.read_bytes() for path in (work / "answers").glob("train-*")}
    lost = sorted(chunks)[-1]
    lost.unlink()
    next(work.glob("training-*.pt")).unlink()
    done = train("train-medusa", tiny_text, out)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    assert lost.read_bytes() == chunks[lost]
    again = json.loads(done.stdout.splitlines()[-1])
    assert again["top1"] == pytest.approx(figures["top1"], abs=1e-6)
    for name, tensor in checkpoint.read(out).tensors.items():
        assert torch.equal(tensor, before[name]), name


def test_bad_arguments_are_refused_in_one_line_v1(
    trained: tuple[Path, dict[str, Any]], tiny_text: str, tmp_path: Path
) -> None:
    out, _ = trained
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    cases = {
        ("--temperature", "0.7"): "holds answers made with temperature 0.0, now it is 0.7; name another --work folder",
        ("--heads", "0"): "--heads is 0; expected 1 or more",
        ("--layers", "0"): "--layers is 0; sequential heads need 1 or more",
        ("--prompts", "no-such-file"): "no-such-file",
        ("--out", str(tmp_path / "mine")): "mine holds thesis.txt, which would be lost; choose another directory",
    }
    for arguments, text in cases.items():
        done = train("train-medusa", tiny_text, out, *arguments)
        assert done.returncode == 2, (arguments, done.stderr[-500:])
        assert text in done.stderr.splitlines()[-1]
        assert done.stderr.splitlines()[-1].startswith("specplug: error: ")


def test_a_target_that_cannot_run_is_one_line_v1(tmp_path: Path) -> None:
    done = train("train-medusa", str(tmp_path / "no-such-model"), tmp_path / "heads")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("specplug: error: ")
    assert "no-such-model could not answer the training prompts: " in last
