"""A draft begins as layers of its target, learns to say what the target says, and is stored as a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_specplug import ConfigError, ModelError, draft_vocab
from vllm_specplug.train import draft_files
from vllm_specplug.train.draft import Draft, evaluate_draft, fit_draft, new_draft, spread_layers
from vllm_specplug.train.fit import FitSettings, Step
from vllm_specplug.train.texts import Texts

VOCAB, HIDDEN = 13, 32
SETTINGS = FitSettings(num_epochs=12, batch_size=512, learning_rate=1e-2, checkpoint_every=3)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=request.param,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("target")
    model.save_pretrained(folder)
    return folder


def answered(target: Path, folder: Path, seed: int, count: int = 48) -> Texts:
    """Greedy answers of the target and the states they come from."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    texts = torch.randint(VOCAB, (count, 3), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        for _ in range(12):
            texts = torch.cat([texts, model(texts).logits[:, -1:].argmax(-1)], dim=1)
        states = model.model(texts).last_hidden_state[:, 2:-1]
    chunk = {
        "contexts": texts[:, :3].flatten().int(),
        "context_lengths": torch.full((count,), 3).int(),
        "tokens": texts[:, 3:].flatten().int(),
        "lengths": torch.full((count,), 12).int(),
        "states": states.reshape(-1, HIDDEN).contiguous(),
    }
    folder.mkdir(exist_ok=True)
    save_file(chunk, folder / f"train-{seed:05d}.safetensors")
    return Texts([folder / f"train-{seed:05d}.safetensors"])


def output_of(target: Path) -> torch.Tensor:
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    weight: torch.Tensor = model.get_output_embeddings().weight.detach()
    return weight


def test_all_layers_of_the_target_are_the_target(target: Path, tmp_path: Path) -> None:
    draft = new_draft(target, range(5), None, "cpu")
    quality = evaluate_draft(draft, answered(target, tmp_path, 1), output_of(target), most=3)
    assert quality.top1 == 1
    assert quality.overlap == pytest.approx(1, abs=1e-4)
    # An answer of 12 tokens leaves 11 to draft for: rounds of 2, 3, 4 tokens, the last one cut by the end.
    assert quality.acceptance_length == pytest.approx([11 / 6, 11 / 4, 11 / 3])
    assert quality.num_examples == 48 * 11


def test_the_layers_that_are_asked_for_are_kept(target: Path) -> None:
    whole = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).state_dict()
    kept = new_draft(target, [1, 4], None, "cpu").model.state_dict()
    for name, tensor in kept.items():
        source = name.replace("layers.0.", "layers.<4>.").replace("layers.1.", "layers.4.").replace("<4>", "1")
        assert torch.equal(tensor, whole[source]), name
    assert not any("layers.2" in name for name in kept)


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(1, 30) == (0,)
    assert spread_layers(2, 30) == (0, 29)
    assert spread_layers(3, 31) == (0, 15, 30)
    assert spread_layers(5, 5) == (0, 1, 2, 3, 4)


def test_a_layer_the_target_has_not_is_refused(target: Path) -> None:
    with pytest.raises(ConfigError, match=r"--layers names layer 5, but the target has 5, 0 to 4"):
        new_draft(target, [0, 5], None, "cpu")


def test_training_raises_what_is_accepted_and_leaves_the_embeddings_alone(target: Path, tmp_path: Path) -> None:
    training, held_out = answered(target, tmp_path, 2), answered(target, tmp_path, 3)
    draft = new_draft(target, [0, 4], None, "cpu")
    before = evaluate_draft(draft, held_out, output_of(target))
    fit_draft(draft, training, SETTINGS, tmp_path / "checkpoint.pt")
    after = evaluate_draft(draft, held_out, output_of(target))
    assert after.overlap > before.overlap + 0.05
    assert after.top1 > before.top1
    embeddings = LlamaForCausalLM.from_pretrained(target).get_input_embeddings().weight
    assert torch.equal(draft.model.get_input_embeddings().weight, embeddings)


def test_an_interrupted_training_ends_as_an_uninterrupted_one(target: Path, tmp_path: Path) -> None:
    texts = answered(target, tmp_path, 4)
    ids = torch.arange(0, VOCAB, 2)
    straight = new_draft(target, [0, 2], ids, "cpu")
    fit_draft(straight, texts, SETTINGS, tmp_path / "straight.pt")

    def stop(step: Step) -> None:
        if step.number == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_draft(new_draft(target, [0, 2], ids, "cpu"), texts, SETTINGS, tmp_path / "stopped.pt", stop)
    again = new_draft(target, [0, 2], ids, "cpu")
    numbers: list[int] = []
    fit_draft(again, texts, SETTINGS, tmp_path / "stopped.pt", lambda step: numbers.append(step.number))
    assert numbers[0] == 7  # behind the last checkpoint, of step 6
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    with pytest.raises(ConfigError, match="is of another training"):
        fit_draft(new_draft(target, [0, 3], ids, "cpu"), texts, SETTINGS, tmp_path / "stopped.pt")


def test_overlap_is_the_sum_of_the_smaller_probability_over_the_whole_vocabulary(target: Path, tmp_path: Path) -> None:
    texts = answered(target, tmp_path, 5, count=6)
    ids = torch.tensor([0, 3, 4, 7, 11])
    draft = new_draft(target, [0, 4], ids, "cpu")
    output = output_of(target)
    overlaps, hits = [], []
    with torch.inference_mode():
        for row in range(6):
            text = torch.cat([texts.contexts[3 * row : 3 * row + 3], texts.tokens[12 * row : 12 * row + 12]])
            logits = draft.model(text[None]).logits[0, 3:-1]  # places whose next token may be drafted
            q = torch.zeros(len(logits), VOCAB)
            q[:, ids] = logits[:, ids].softmax(-1)
            p = (texts.states[12 * row + 1 : 12 * row + 12] @ output.T).softmax(-1)
            overlaps.append(torch.minimum(p, q).sum(-1))
            hits.append(q.argmax(-1) == text[4:])
    quality = evaluate_draft(draft, texts, output)
    assert quality.overlap == pytest.approx(float(torch.cat(overlaps).mean()), abs=1e-5)
    assert quality.top1 == pytest.approx(float(torch.cat(hits).float().mean()))


def stored(target: Path, folder: Path, token_ids: torch.Tensor | None = None) -> Draft:
    draft = new_draft(target, [0, 3], token_ids, "cpu")
    draft_files.write(folder, draft, target, {"made_by": "a test"})
    return draft


def test_a_stored_draft_is_a_model_of_transformers(target: Path, tmp_path: Path) -> None:
    draft = stored(target, tmp_path / "draft", torch.tensor([1, 5, 9]))
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float32)
    for name, tensor in draft.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16().float()), name
    assert draft_vocab.find(None, str(tmp_path / "draft"), VOCAB) == [1, 5, 9]
    assert json.loads((tmp_path / "draft" / "distilled.json").read_text()) == {"made_by": "a test"}
    assert str(target) not in (tmp_path / "draft" / "config.json").read_text()  # no place of this machine


def test_a_draft_without_embeddings_and_its_target_are_a_whole_draft(target: Path, tmp_path: Path) -> None:
    stored(target, tmp_path / "draft")
    whole = {file.name: file.read_bytes() for file in (tmp_path / "draft").iterdir()}
    (tmp_path / "draft" / "embeddings.safetensors").unlink()
    (tmp_path / "made").mkdir()
    draft_files.with_embeddings(tmp_path / "draft", target, tmp_path / "made")
    assert {file.name: file.read_bytes() for file in (tmp_path / "made").iterdir()} == whole


def test_a_directory_with_other_things_is_not_replaced(target: Path, tmp_path: Path) -> None:
    stored(target, tmp_path / "draft")
    stored(target, tmp_path / "draft")  # a draft is
    (tmp_path / "draft" / "thesis.txt").write_text("precious")
    with pytest.raises(ModelError, match=r"holds thesis\.txt"):
        stored(target, tmp_path / "draft")
    assert (tmp_path / "draft" / "thesis.txt").read_text() == "precious"
