"""Training learns what can be learned, and an interruption changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vllm_specplug import ConfigError
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads
from vllm_specplug.train.data import Answers, batches
from vllm_specplug.train.evaluate import evaluate, rounds_length
from vllm_specplug.train.fit import FitSettings, Step
from vllm_specplug.train.heads import fit_heads, loss_of

VOCAB, HIDDEN = 11, 16


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    """Each token is the one before plus a step that the first token tells: 3 or 4. States show the newest token."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    table = torch.randn((VOCAB, HIDDEN), generator=generator)
    starts = torch.randint(VOCAB, (60,), generator=generator)
    tokens = (starts[:, None] + (3 + starts % 2)[:, None] * torch.arange(12)) % VOCAB
    states = table[tokens.flatten()] + (starts % 2).repeat_interleave(12)[:, None]
    save_file(
        {"states": states.bfloat16(), "tokens": tokens.flatten().int(), "lengths": torch.full((60,), 12).int()},
        tmp_path / "chunk.safetensors",
    )
    return Answers([tmp_path / "chunk.safetensors"], num_heads=3)


def new_heads(kind: str = "sequential", draft_vocab: list[int] | None = None) -> MedusaHeads:
    generator = torch.Generator().manual_seed(1)
    config = HeadsConfig(
        kind=kind,  # type: ignore[arg-type]
        num_heads=3,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        draft_vocab_size=None if draft_vocab is None else len(draft_vocab),
    )
    heads = MedusaHeads(config, None if draft_vocab is None else torch.tensor(draft_vocab))
    heads.attach(
        torch.randn((VOCAB, HIDDEN), generator=generator),
        torch.randn((config.num_outputs, HIDDEN), generator=generator),
    )
    return heads


SETTINGS = FitSettings(num_epochs=30, batch_size=64, learning_rate=1e-2, checkpoint_every=7)


@pytest.mark.parametrize("kind", ["sequential", "independent"])
def test_heads_learn_a_rule(answers: Answers, tmp_path: Path, kind: str) -> None:
    heads = new_heads(kind)
    before = evaluate(heads, answers)
    fit_heads(heads, answers, SETTINGS, tmp_path / "checkpoint.pt")
    after = evaluate(heads, answers)
    assert max(before.top1) < 0.6
    assert min(after.top1) > 0.8
    assert after.acceptance_length[-1] > 3  # 12 tokens an answer: the last heads guess beyond its end at times


def test_an_interrupted_training_gives_the_same_weights(answers: Answers, tmp_path: Path) -> None:
    """Stopped twice, once between two checkpoints and once in the middle of an epoch."""
    settings = FitSettings(num_epochs=3, batch_size=64, checkpoint_every=7)
    straight = new_heads()
    fit_heads(straight, answers, settings, tmp_path / "straight.pt")

    def stop_at(number: int):  # type: ignore[no-untyped-def]
        def progress(step: Step) -> None:
            if step.number == number:
                raise KeyboardInterrupt

        return progress

    for number in (10, 16):
        with pytest.raises(KeyboardInterrupt):
            fit_heads(new_heads(), answers, settings, tmp_path / "stopped.pt", stop_at(number))
    seen: list[int] = []
    stopped = new_heads()
    fit_heads(stopped, answers, settings, tmp_path / "stopped.pt", lambda step: seen.append(step.number))
    assert seen[0] == 15  # after the checkpoint of step 14
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, stopped.state_dict()[name]), name
    fit_heads(
        stopped, answers, settings, tmp_path / "stopped.pt", lambda step: pytest.fail("a finished training goes on")
    )


def test_a_checkpoint_of_another_training_is_refused(answers: Answers, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    fit_heads(new_heads(), answers, FitSettings(num_epochs=1), file)
    with pytest.raises(ConfigError, match=r"is of another training \(settings: .*remove it to train again"):
        fit_heads(new_heads(), answers, FitSettings(num_epochs=2), file)
    with pytest.raises(ConfigError, match=r"is of another training \(heads: "):
        fit_heads(new_heads("independent"), answers, FitSettings(num_epochs=1), file)
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(ConfigError, match=r"checkpoint\.pt cannot be read .* remove it to train again"):
        fit_heads(new_heads(), answers, FitSettings(num_epochs=1), file)


def test_the_loss_is_the_cross_entropy_of_known_tokens(answers: Answers) -> None:
    """Against a loop over examples, with a draft vocabulary that lacks some of them."""
    heads = new_heads(draft_vocab=[1, 2, 4, 7, 8, 10])
    batch = next(iter(batches(answers, 40)))
    rows = torch.full((VOCAB,), -100)
    rows[torch.tensor([1, 2, 4, 7, 8, 10])] = torch.arange(6)
    losses = []
    for index, logits in enumerate(heads(batch.states, batch.tokens)):
        known = [
            -logits[example].log_softmax(-1)[[1, 2, 4, 7, 8, 10].index(label)]
            for example, label in enumerate(batch.labels[:, index].tolist())
            if label in (1, 2, 4, 7, 8, 10)
        ]
        losses.append(torch.stack(known).mean())
    expected = torch.stack(losses).mean()
    assert loss_of(heads, batch, rows, torch.device("cpu")).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_acceptance_length_is_that_of_greedy_rounds(answers: Answers) -> None:
    """Each answer walked as a server would: draft one by one from its own guesses, keep those before the first miss."""
    heads = new_heads(draft_vocab=[0, 1, 2, 3, 4, 5, 6, 8, 9, 10])
    texts = answers.tokens.reshape(60, 12)
    states = answers.states.reshape(60, 12, HIDDEN).float()
    for num_drafts in (1, 2, 3):
        num_tokens = num_rounds = 0
        for text, states_of_text in zip(texts, states, strict=True):
            at = 0  # the newest token
            while at < 11:
                embeddings, token, accepted = [], text[at : at + 1], 0
                for index in range(num_drafts):
                    embeddings.append(heads.embed(token))
                    logits = heads.logits(index, states_of_text[at : at + 1], embeddings)  # type: ignore[arg-type]
                    token = heads.target_ids(logits.argmax(-1))
                    if at + 1 + index > 11 or token.item() != text[at + 1 + index]:
                        break
                    accepted += 1
                gained = min(accepted + 1, 11 - at)
                num_rounds, num_tokens, at = num_rounds + 1, num_tokens + gained, at + gained
        found = evaluate(heads, answers, batch_size=50)
        assert found.acceptance_length[num_drafts - 1] == pytest.approx(num_tokens / num_rounds)
    assert num_tokens - num_rounds > 10
    assert all(five >= one for one, five in zip(found.top1, found.top5, strict=True))


def test_a_round_begins_where_the_last_one_ended() -> None:
    """Answer of 7 tokens: from its first two accepted, so on at place 3, none, place 4, one, the end. Then one of 2."""
    accepted = torch.tensor([2, 3, 3, 0, 1, 3, 0])
    assert rounds_length(accepted, torch.tensor([7, 2])) == pytest.approx((3 + 1 + 2 + 1) / 4)


def test_other_answers_or_another_draft_vocabulary_are_another_training(answers: Answers, tmp_path: Path) -> None:
    first = new_heads(draft_vocab=[0, 1, 2, 3])
    fit_heads(first, answers, FitSettings(num_epochs=1), tmp_path / "checkpoint.pt")
    with pytest.raises(ConfigError, match=r"is of another training \(draft_token_ids: "):
        fit_heads(new_heads(draft_vocab=[4, 5, 6, 7]), answers, FitSettings(num_epochs=1), tmp_path / "checkpoint.pt")
    answers.tokens = answers.tokens.flip(0)
    with pytest.raises(ConfigError, match=r"is of another training \(answers: "):
        fit_heads(new_heads(draft_vocab=[0, 1, 2, 3]), answers, FitSettings(num_epochs=1), tmp_path / "checkpoint.pt")
