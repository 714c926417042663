"""Heads on disk in the layouts of vLLM and of the Medusa authors: what they mean, and that nothing in them is run."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from medusa_cases import HEADS, HIDDEN, IDS, VOCAB, refused
from safetensors.torch import save_file
from torch import nn

from vllm_specplug.errors import ModelError
from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.heads import HeadsConfig


def write_vllm(
    directory: Path, tensors: dict[str, torch.Tensor], file: str = "model.safetensors", **config: Any
) -> None:
    directory.mkdir()
    settings = {"model_type": "medusa", "hidden_size": HIDDEN, "vocab_size": VOCAB, "num_heads": 1, **config}
    (directory / "config.json").write_text(json.dumps(settings))
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        torch.save(tensors, directory / file)


class ResBlock(nn.Module):
    """As in the authors' code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.silu(self.linear(x))


def authors_module(num_heads: int = 5, num_layers: int = 2, output: bool = True) -> nn.ModuleList:
    torch.manual_seed(3)
    return nn.ModuleList(
        nn.Sequential(
            *(ResBlock() for _ in range(num_layers)), *(nn.Linear(HIDDEN, VOCAB, bias=False) for _ in range(output))
        )
        for _ in range(num_heads)
    )


def write_original(directory: Path, module: nn.ModuleList, **config: Any) -> None:
    directory.mkdir()
    torch.save(module.state_dict(), directory / "medusa_lm_head.pt")
    if config:
        (directory / "config.json").write_text(json.dumps(config))


# That of the Medusa authors.


@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_authors_heads_say_what_the_authors_module_says(tmp_path: Path, num_layers: int) -> None:
    module = authors_module(num_layers=num_layers)
    write_original(tmp_path / "heads", module, medusa_num_heads=5, medusa_num_layers=num_layers)
    found = checkpoint.read(tmp_path / "heads")
    assert (found.layout, found.provenance) == ("original", {})
    assert found.config == checkpoint.read_config(tmp_path / "heads")
    assert found.config == HeadsConfig(
        kind="independent",
        num_heads=5,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        num_layers=num_layers,
        bias=num_layers > 0,
        output="own",
    )
    heads = checkpoint.build(found)
    states = torch.randn(4, HIDDEN)
    for index, head in enumerate(module):
        torch.testing.assert_close(heads.logits(index, states, []), head(states), rtol=0, atol=0)


def test_authors_heads_that_share_the_targets_output(tmp_path: Path) -> None:
    module = authors_module(num_heads=HEADS, output=False)
    write_original(tmp_path / "heads", module, medusa_num_heads=HEADS, medusa_num_layers=2)
    with pytest.raises(ModelError) as caught:
        checkpoint.read_config(tmp_path / "heads")
    assert str(caught.value) == (
        f"heads in {tmp_path}/heads use the target's output layer, and their layout does not say how large its "
        "vocabulary is; give it as vocab_size, or the target's directory to specplug convert-medusa --target"
    )
    found = checkpoint.read(tmp_path / "heads", vocab_size=VOCAB)
    assert (found.config.output, found.config.vocab_size) == ("target", VOCAB)
    heads = checkpoint.build(found)
    states, output = torch.randn(4, HIDDEN), torch.randn(VOCAB, HIDDEN)
    heads.attach(None, output)
    for index, head in enumerate(module):
        torch.testing.assert_close(heads.logits(index, states, []), head(states) @ output.T, rtol=0, atol=0)


def test_authors_config_may_be_wrong_or_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_original(tmp_path / "none", authors_module())
    assert checkpoint.read_config(tmp_path / "none").num_heads == 5
    assert not caplog.records
    write_original(tmp_path / "wrong", authors_module(), medusa_num_heads=2, medusa_num_layers=2)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.read_config(tmp_path / "wrong").num_heads == 5
    assert caplog.messages == [
        f"{tmp_path}/wrong/config.json: medusa_num_heads is 2, but the file holds 5: using 5",
    ]


def test_authors_names_may_have_a_prefix_and_the_safe_file_comes_first(tmp_path: Path) -> None:
    write_original(tmp_path / "heads", authors_module(num_heads=1))
    tensors = {f"medusa_head.{name}": tensor for name, tensor in authors_module(num_heads=4).state_dict().items()}
    save_file(tensors, tmp_path / "heads" / "medusa_lm_head.safetensors")
    assert checkpoint.read(tmp_path / "heads").config.num_heads == 4


def test_authors_heads_with_a_gap_are_refused(tmp_path: Path) -> None:
    module = authors_module()
    write_original(tmp_path / "heads", module)
    tensors = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith("1.0")}
    torch.save(tensors, tmp_path / "heads" / "medusa_lm_head.pt")
    assert refused(tmp_path / "heads") == (
        "heads in HEADS do not have the tensors that they should: missing 1.0.linear.bias, 1.0.linear.weight. For "
        "heads of another layout see `specplug convert-medusa`"
    )
    torch.save({"model.norm.weight": torch.zeros(3)}, tmp_path / "heads" / "medusa_lm_head.pt")
    assert refused(tmp_path / "heads") == (
        "HEADS/medusa_lm_head.pt holds no heads: looked for tensors 0.0.linear.weight or 0.0.weight, found "
        "model.norm.weight"
    )


def test_wrong_shape_is_named_as_it_is_stored(tmp_path: Path) -> None:
    module = authors_module()
    write_original(tmp_path / "heads", module)
    tensors = {**module.state_dict(), "3.2.weight": torch.zeros(12, HIDDEN)}
    torch.save(tensors, tmp_path / "heads" / "medusa_lm_head.pt")
    assert refused(tmp_path / "heads") == (
        "heads in HEADS: tensor 3.2.weight has shape [12, 6], [11, 6] follows from the others and from config.json"
    )


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_pickle_runs_nothing(tmp_path: Path, save: Any) -> None:
    write_original(tmp_path / "heads", authors_module())
    save({"0.0.linear.weight": Malicious(tmp_path / "touched")}, tmp_path / "heads" / "medusa_lm_head.pt")
    assert refused(tmp_path / "heads") == (
        "HEADS/medusa_lm_head.pt cannot be read as plain tensors (UnpicklingError); nothing in it was run. Save its "
        "tensors as .safetensors where you trust it"
    )
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_half_a_pickle_is_refused(tmp_path: Path, size: int) -> None:
    write_original(tmp_path / "heads", authors_module())
    weights = tmp_path / "heads" / "medusa_lm_head.pt"
    weights.write_bytes(weights.read_bytes()[:size])
    assert refused(tmp_path / "heads").startswith("HEADS/medusa_lm_head.pt cannot be read as plain tensors (")


def test_pickle_of_something_else_is_refused(tmp_path: Path) -> None:
    write_original(tmp_path / "heads", authors_module())
    torch.save([torch.zeros(1)], tmp_path / "heads" / "medusa_lm_head.pt")
    assert refused(tmp_path / "heads") == (
        "HEADS/medusa_lm_head.pt should hold a dict of tensors by name, found a list"
    )
    torch.save({"0.0.weight": 3}, tmp_path / "heads" / "medusa_lm_head.pt")
    assert refused(tmp_path / "heads") == (
        "HEADS/medusa_lm_head.pt should hold a dict of tensors by name, found other things in it"
    )


# vLLM's.

BLOCK = {"blocks.0.layers.0.weight": torch.full((HIDDEN, HIDDEN), 0.1)}
ROWS = torch.arange(float(VOCAB * HIDDEN)).reshape(VOCAB, HIDDEN) / 50


def test_vllms_config_takes_any_name_for_the_number_of_heads(tmp_path: Path) -> None:
    write_vllm(
        tmp_path / "heads",
        {"medusa_heads.blocks.0.layers.0.weight": BLOCK["blocks.0.layers.0.weight"], "lm_heads.0.weight": ROWS},
        num_heads=9,
        medusa_num_heads=1,
        medusa_num_layers=1,
    )
    found = checkpoint.read(tmp_path / "heads")
    assert found.layout == "vllm"
    assert found.config == checkpoint.read_config(tmp_path / "heads")
    assert found.config == HeadsConfig(
        kind="independent", num_heads=1, hidden_size=6, vocab_size=11, num_layers=1, bias=False, output="own"
    )


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
@pytest.mark.parametrize("rows", [ROWS, ROWS[IDS]])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "heads.pt"])
def test_vllms_token_map_chooses_rows(tmp_path: Path, name: str, rows: torch.Tensor, file: str) -> None:
    tensors = {**BLOCK, name: rows.clone(), "token_map": torch.tensor(IDS)}
    write_vllm(tmp_path / "heads", tensors, file, truncated_vocab_size=3, original_lm_head=True)
    found = checkpoint.read(tmp_path / "heads")
    assert (found.config.output, found.config.draft_vocab_size) == ("shared", 3)
    assert found.tensors["draft_token_ids"].tolist() == IDS
    torch.testing.assert_close(found.tensors["output.weight"], ROWS[IDS], rtol=0, atol=0)


def test_vllms_token_map_counts_only_where_the_vocabulary_is_truncated(tmp_path: Path) -> None:
    write_vllm(tmp_path / "heads", {**BLOCK, "lm_heads.0.weight": ROWS, "token_map": torch.tensor(IDS)})
    assert checkpoint.read(tmp_path / "heads").config.draft_vocab_size is None


def test_vllms_scale_of_logits_is_worked_into_the_output(tmp_path: Path) -> None:
    write_vllm(tmp_path / "heads", {**BLOCK, "lm_heads.0.weight": ROWS}, logit_scale=0.25)
    found = checkpoint.read(tmp_path / "heads")
    torch.testing.assert_close(found.tensors["heads.0.output.weight"], ROWS / 4, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("tensors", "config", "text"),
    [
        (
            {"lm_heads.0.weight": ROWS},
            {"truncated_vocab_size": 3},
            "heads in HEADS do not have the tensors that they should: missing token_map. For heads of another layout "
            "see `specplug convert-medusa`",
        ),
        (
            {"lm_heads.0.weight": ROWS, "token_map": torch.tensor([1, 2])},
            {"truncated_vocab_size": 3},
            "heads in HEADS: token_map has shape [2], config.json names a truncated_vocab_size of 3",
        ),
        (
            {"lm_heads.0.weight": ROWS, "token_map": torch.tensor([1, 2, 11])},
            {"truncated_vocab_size": 3},
            "heads in HEADS: token_map should hold whole numbers from 0 to 10, found 1 to 11",
        ),
        (
            {"lm_heads.0.weight": ROWS[:5].clone(), "token_map": torch.tensor(IDS)},
            {"truncated_vocab_size": 3},
            "heads in HEADS: lm_heads.0.weight has 5 rows, expected 3 (truncated_vocab_size) or 11 (vocab_size)",
        ),
        (
            {"lm_heads.0.weight": ROWS},
            {"truncated_vocab_size": 12},
            "HEADS/config.json: truncated_vocab_size is 12, expected at most vocab_size, 11",
        ),
        (
            {"lm_heads.0.weight": ROWS},
            {"hidden_size": None},
            "HEADS/config.json: hidden_size is None, expected a whole number",
        ),
        (
            {"lm_heads.0.weight": ROWS},
            {"logit_scale": 0},
            "HEADS/config.json: logit_scale is 0, expected a number above 0",
        ),
        (
            {"lm_heads.0.weight": ROWS, "blocks.0.layers.0.bias": torch.zeros(HIDDEN)},
            {},
            "heads in HEADS do not have the tensors that they should: unexpected blocks.0.layers.0.bias. For heads of "
            "another layout see `specplug convert-medusa`",
        ),
        (
            {"lm_heads.0.weight": ROWS},
            {"hidden_size": 8},
            "heads in HEADS: tensor blocks.0.layers.0.weight has shape [6, 6], [8, 8] follows from the others and from "
            "config.json",
        ),
    ],
)
def test_vllms_layout_that_cannot_be_meant_is_refused(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any], text: str
) -> None:
    write_vllm(tmp_path / "heads", {**BLOCK, **tensors}, **config)
    assert refused(tmp_path / "heads") == text


def test_files_that_hold_the_same_tensor_are_refused(tmp_path: Path) -> None:
    write_vllm(tmp_path / "heads", {**BLOCK, "lm_heads.0.weight": ROWS})
    save_file(BLOCK, tmp_path / "heads" / "other.safetensors")
    assert refused(tmp_path / "heads") == (
        "HEADS/other.safetensors holds tensor 'blocks.0.layers.0.weight', which a file beside it holds too; remove one "
        "of them"
    )


def test_weights_are_told_from_what_training_leaves(tmp_path: Path) -> None:
    write_vllm(tmp_path / "heads", {"state": torch.zeros(1)}, "optimizer.pt")
    assert refused(tmp_path / "heads") == "heads in HEADS lack their weights: looked for *.safetensors, *.bin and *.pt"
