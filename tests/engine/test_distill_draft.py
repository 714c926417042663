"""`specplug distill-draft` from answers to a draft that serves, on a tiny target; answers of heads are taken over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import DRAFT, MakeEngine, loop_prompt, said
from training import train
from vllm import SamplingParams

from vllm_specplug import draft_vocab

Distilled = tuple[Path, Path, dict[str, Any]]


@pytest.fixture(scope="module")
def distilled(
    trained: tuple[Path, dict[str, Any]], tiny_text: str, tmp_path_factory: pytest.TempPathFactory
) -> Distilled:
    """The draft, the work folder, what the command printed; the answers are those of the heads, so no engine starts."""
    out, work = tmp_path_factory.mktemp("distilled") / "draft", trained[0].with_name("heads.work")
    done = train("distill-draft", tiny_text, out, "--layers", "1", "--work", str(work), "--batch-size", "512")
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return out, work, json.loads(done.stdout.splitlines()[-1])


def test_figures_are_of_answers_that_were_held_out_v1(distilled: Distilled) -> None:
    out, _, figures = distilled
    assert figures["num_training_tokens"] >= 6000
    assert 0 < figures["top1"] < 1
    assert 0 < figures["overlap"] < 1
    assert 1 < figures["acceptance_length"][0] <= figures["acceptance_length"][-1]
    assert figures["layers"] == [0]
    stored = json.loads((out / "distilled.json").read_text())
    assert stored["made_by"] == "specplug distill-draft"
    assert stored["held_out"]["overlap"] == figures["overlap"]


def test_a_distilled_draft_serves_v1(make_engine: MakeEngine, distilled: Distilled, tiny_text: str) -> None:
    """As many of its greedy drafts are accepted as the held-out figure says, nearly; only listed tokens are drafted."""
    out, _, figures = distilled
    prompts = [loop_prompt(start, 20, 90) for start in range(8)]
    greedy = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    expected = make_engine(model=tiny_text).generate(prompts, greedy)
    engine = make_engine({"method": DRAFT, "model": str(out), "num_speculative_tokens": 1}, model=tiny_text)
    engine.new_counts()
    assert said(engine.generate(prompts, greedy)) == said(expected)
    counts = engine.new_counts()
    assert counts.num_draft_tokens > 200
    assert counts.num_accepted_tokens / counts.num_draft_tokens == pytest.approx(figures["top1"], abs=0.15)
    listed = draft_vocab.find(None, str(out), 128)
    assert listed is not None
    assert len(listed) <= 100


def test_an_interrupted_distillation_ends_as_an_uninterrupted_one_v1(
    distilled: Distilled, tiny_text: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    out, work, _ = distilled
    again = tmp_path / "draft"
    done = train("distill-draft", tiny_text, again, "--layers", "0,", "--work", str(work), "--batch-size", "512")
    assert done.returncode in (0, 1), done.stderr[-3000:]
    first, second = (load_file(folder / "layers.safetensors") for folder in (out, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_bad_arguments_are_refused_in_one_line_v1(distilled: Distilled, tiny_text: str, tmp_path: Path) -> None:
    out, work, _ = distilled
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    cases = {
        ("--layers", "5"): "--layers is 5, but the target has 2",
        ("--layers", "0,7"): "--layers names layer 7, but the target has 2, 0 to 1",
        ("--layers", "1,0"): "ascending order, found '1,0'",
        ("--epochs", "0"): "--epochs is 0; expected 1 or more",
        ("--out", str(tmp_path / "mine")): "mine holds thesis.txt",
        ("--model", str(tmp_path / "none")): "none is no directory, and no hub gives it",
    }
    for arguments, text in cases.items():
        done = train("distill-draft", tiny_text, out, "--work", str(work), *arguments)
        assert done.returncode == 2, (arguments, done.stderr[-500:])
        assert text in done.stderr.splitlines()[-1]
