"""Heads on disk in our layout: what was written is read, and nothing damaged or unfitting comes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from medusa_cases import HEADS, HIDDEN, IDS, VOCAB, heads_of, refused
from safetensors.torch import load_file, save_file

from vllm_specplug import model_files
from vllm_specplug.errors import ModelError
from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads


def attach(heads: MedusaHeads) -> MedusaHeads:
    """The same target for all."""
    generator = torch.Generator().manual_seed(2)
    embeddings, output = (torch.randn(VOCAB, HIDDEN, generator=generator) for _ in range(2))
    ids = heads.draft_token_ids
    heads.attach(embeddings, output if ids is None else output[ids])
    return heads


def logits_of(heads: MedusaHeads) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(4, HIDDEN, generator=generator)
    with torch.no_grad():
        return torch.stack(attach(heads)(states, torch.randint(VOCAB, (4, HEADS), generator=generator)))


@pytest.mark.parametrize(
    ("ids", "changes"),
    [
        (None, {}),
        (IDS, {"num_layers": 2}),
        (None, {"output": "shared"}),
        (IDS, {"output": "own", "bias": False}),
        (None, {"kind": "independent", "num_layers": 0}),
    ],
)
def test_what_was_written_is_read(tmp_path: Path, ids: list[int] | None, changes: dict[str, Any]) -> None:
    heads = heads_of(ids, **changes)
    checkpoint.write(tmp_path / "heads", heads, {"corpus": "one"})
    found = checkpoint.read(tmp_path / "heads")
    assert (found.config, found.layout, found.provenance) == (heads.config, "specplug", {"corpus": "one"})
    assert checkpoint.read_config(tmp_path / "heads") == heads.config
    again = checkpoint.build(found)
    assert not again.training
    torch.testing.assert_close(logits_of(again), logits_of(heads), rtol=0, atol=0)


def test_config_is_what_the_docstring_says(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(), {})
    settings = json.loads((tmp_path / "heads" / "config.json").read_text())
    assert settings["format"] == "specplug.medusa/1"
    assert set(settings) == {"format", "heads", "provenance"}
    assert HeadsConfig(**settings["heads"]) == heads_of().config


def test_built_heads_have_the_type_asked_for_and_share_no_memory(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(IDS), {})
    found = checkpoint.read(tmp_path / "heads")
    heads = checkpoint.build(found, torch.bfloat16)
    assert {parameter.dtype for parameter in heads.parameters()} == {torch.bfloat16}
    assert heads.draft_token_ids is not None
    assert heads.draft_token_ids.tolist() == IDS
    one, other = checkpoint.build(found), checkpoint.build(found)
    with torch.no_grad():
        next(one.parameters()).zero_()
    assert next(other.parameters()).any()


def test_heads_replace_heads(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(), {})
    checkpoint.write(tmp_path / "heads", heads_of(num_heads=1), {})
    assert checkpoint.read_config(tmp_path / "heads").num_heads == 1
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]


def test_nothing_but_heads_is_replaced(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(), {})
    (tmp_path / "heads" / "tokenizer.json").write_text("{}")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError) as caught:
        checkpoint.write(tmp_path / "heads", heads_of(), {})
    assert str(caught.value) == (
        f"{tmp_path}/heads holds tokenizer.json, which would be lost; choose another directory"
    )
    with pytest.raises(ModelError) as caught:
        checkpoint.write(tmp_path / "file", heads_of(), {})
    assert str(caught.value) == f"{tmp_path}/file is a file; choose a directory to write to"


def test_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(), {})

    def full(_tensors: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(ModelError, match="No space left on device"):
        checkpoint.write(tmp_path / "heads", heads_of(num_heads=1), {})
    assert checkpoint.read(tmp_path / "heads").config.num_heads == HEADS
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]


def test_failed_swap_brings_back_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(), {})
    rename = Path.rename

    def stubborn(path: Path, to: Path) -> Path:
        if path.suffix == ".new":
            raise OSError(5, "Input/output error")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", stubborn)
    with pytest.raises(ModelError, match="what was there before is as it was"):
        checkpoint.write(tmp_path / "heads", heads_of(num_heads=1), {})
    assert checkpoint.read(tmp_path / "heads").config.num_heads == HEADS
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]


def test_directory_without_heads_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        "HEADS holds no Medusa heads: looked for config.json with format specplug.medusa/1 or model_type medusa, "
        "medusa_lm_head.safetensors and medusa_lm_head.pt"
    )
    assert refused(tmp_path / "none") == (
        "heads 'HEADS': there is no such directory; download them first, and give its path"
    )


def change(path: Path, **changes: Any) -> None:
    tensors = {**load_file(path / "heads.safetensors"), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path / "heads.safetensors")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"heads.0.blocks.0.linear.bias": None, "extra": torch.zeros(1)},
            "heads in HEADS do not have the tensors that they should: missing heads.0.blocks.0.linear.bias; unexpected "
            "extra. For heads of another layout see `specplug convert-medusa`",
        ),
        (
            {f"extra.{k}": torch.zeros(1) for k in range(5)},
            "heads in HEADS do not have the tensors that they should: unexpected extra.0, extra.1, extra.2 and 2 more. "
            "For heads of another layout see `specplug convert-medusa`",
        ),
        (
            {"heads.1.blocks.0.linear.bias": torch.zeros(7)},
            "heads in HEADS: tensor heads.1.blocks.0.linear.bias has shape [7], [6] follows from the others and from "
            "config.json",
        ),
        (
            {"heads.1.blocks.0.linear.bias": torch.tensor([0.0, 1, 2, 3, 4, float("nan")])},
            "heads in HEADS: tensor heads.1.blocks.0.linear.bias has values that are NaN or infinite; train the heads "
            "again",
        ),
        (
            {"heads.1.blocks.0.linear.bias": torch.zeros(6, dtype=torch.int64)},
            "heads in HEADS: tensor heads.1.blocks.0.linear.bias is torch.int64, torch.strided; expected dense floats "
            "of 16 bits or more",
        ),
        ({"draft_token_ids": torch.tensor([1, 2, 2])}, "heads in HEADS: draft_token_ids name a token twice"),
        ({"draft_token_ids": None}, "heads in HEADS: draft_token_ids should have shape [3], found none"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(IDS), {})
    change(tmp_path / "heads", **changes)
    assert refused(tmp_path / "heads") == text


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(), {})
    weights = tmp_path / "heads" / "heads.safetensors"
    for size in (weights.stat().st_size - 10, 100, 4, 0):
        weights.write_bytes(weights.read_bytes()[:size])
        text = refused(tmp_path / "heads")
        assert text.startswith("HEADS/heads.safetensors is not a whole safetensors file (")
        assert text.endswith("); copy or download it again")
    weights.unlink()
    assert (
        refused(tmp_path / "heads") == "heads in HEADS lack their weights, heads.safetensors; copy or train them again"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "HEADS/config.json cannot be read as JSON (Expecting property name enclosed in double quotes: "),
        ("[]", "HEADS/config.json should hold a JSON object, found list"),
        (
            '{"format": "specplug.medusa/2"}',
            "heads in HEADS are of format specplug.medusa/2, this version reads specplug.medusa/1; update "
            "vllm-specplug",
        ),
        ('{"format": "specplug.medusa/1"}', "HEADS/config.json: heads is None: Input should be a valid dictionary"),
        (
            '{"format": "specplug.medusa/1", "heads": {"num_heads": 0, "hidden_size": 6, "vocab_size": 11}}',
            "HEADS/config.json: heads.num_heads is 0: Input should be greater than or equal to 1",
        ),
    ],
)
def test_config_that_cannot_be_meant_is_refused(tmp_path: Path, content: str, text: str) -> None:
    checkpoint.write(tmp_path / "heads", heads_of(), {})
    (tmp_path / "heads" / "config.json").write_text(content)
    assert refused(tmp_path / "heads").startswith(text)


def test_heads_fit_a_target_of_the_same_size_or_a_larger_vocabulary() -> None:
    config = heads_of().config
    checkpoint.check_fits(config, "HEADS", HIDDEN, VOCAB)
    checkpoint.check_fits(config, "HEADS", HIDDEN, VOCAB + 5)
    with pytest.raises(ModelError) as caught:
        checkpoint.check_fits(config, "HEADS", 8, VOCAB)
    assert str(caught.value) == (
        "heads in HEADS are for hidden size 6, the target has 8; give heads that were trained for this target"
    )
    with pytest.raises(ModelError) as caught:
        checkpoint.check_fits(config, "HEADS", HIDDEN, 10)
    assert str(caught.value) == (
        "heads in HEADS are for a vocabulary of 11 tokens, the target has 10; give heads that were trained for this "
        "target"
    )


def test_hashes_are_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert model_files.hashes([tmp_path / "a"]) == {
        "a": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    }
