"""Conversion of heads: they say the same afterwards, or it is refused in one clear line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import medusa_cases
import pytest
import torch
from medusa_cases import HEADS, HIDDEN, IDS, VOCAB
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specplug import __version__, cli
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.convert import convert
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads

PADDED = 16


def heads_of(ids: list[int] | None = None, **changes: Any) -> MedusaHeads:
    """Independent heads with random weights."""
    return medusa_cases.heads_of(ids, **{"kind": "independent", **changes})


def target_rows() -> tuple[Tensor, Tensor]:
    """Embeddings and output layer of the target, with padding."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(PADDED, HIDDEN, generator=generator), torch.randn(PADDED, HIDDEN, generator=generator)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    write_target(directory, {"model.embed_tokens.weight": target_rows()[0], "lm_head.weight": target_rows()[1]})
    return directory


def write_target(directory: Path, tensors: dict[str, Tensor], **config: Any) -> None:
    directory.mkdir(exist_ok=True)
    settings = {"model_type": "llama", "hidden_size": HIDDEN, "vocab_size": PADDED, **config}
    (directory / "config.json").write_text(json.dumps(settings))
    save_file(tensors, directory / "model.safetensors")


def logits_of(heads: MedusaHeads, output: Tensor | None = None) -> Tensor:
    rows = target_rows()[1][:VOCAB] if output is None else output
    heads.attach(None, rows if heads.draft_token_ids is None else rows[heads.draft_token_ids])
    states = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return torch.stack(heads(states, torch.zeros(4, HEADS, dtype=torch.int64)))


def same(path: Path, heads: MedusaHeads) -> checkpoint.Checkpoint:
    """Whether heads on disk say what those say, to the last bit."""
    found = checkpoint.read(path)
    again = checkpoint.build(found)
    torch.testing.assert_close(logits_of(again), logits_of(heads), rtol=0, atol=0)
    rows = torch.arange(heads.config.num_outputs)
    assert again.target_ids(rows).tolist() == heads.target_ids(rows).tolist()
    return found


@pytest.mark.parametrize(
    ("to", "ids", "changes", "output"),
    [
        ("vllm", None, {"output": "own"}, "own"),
        ("vllm", None, {"output": "shared", "num_layers": 2}, "shared"),
        ("vllm", IDS, {"output": "shared", "bias": False}, "shared"),
        ("vllm", None, {"output": "target"}, "shared"),
        ("vllm", IDS, {"output": "target", "num_layers": 0}, "shared"),
        ("original", None, {"output": "own", "num_layers": 2}, "own"),
        ("original", None, {"output": "shared"}, "own"),
        ("original", None, {"output": "target"}, "target"),
        ("original", None, {"output": "own", "bias": False}, "own"),
        ("original", None, {"output": "shared", "num_layers": 0}, "own"),
    ],
)
def test_heads_say_the_same_there_and_back(
    tmp_path: Path, target: Path, to: Any, ids: list[int] | None, changes: dict[str, Any], output: str
) -> None:
    heads = heads_of(ids, **changes)
    checkpoint.write(tmp_path / "ours", heads, {})
    convert(tmp_path / "ours", tmp_path / "theirs", to, target)
    there = same(tmp_path / "theirs", heads)
    assert (there.layout, there.config.output) == (to, output)
    assert there.config == checkpoint.read_config(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "back", "specplug")
    assert same(tmp_path / "back", heads).layout == "specplug"


@pytest.mark.parametrize("output", ["own", "target"])
def test_heads_go_between_the_other_two_layouts(tmp_path: Path, target: Path, output: Any) -> None:
    heads = heads_of(output=output)
    checkpoint.write(tmp_path / "ours", heads, {})
    convert(tmp_path / "ours", tmp_path / "original", "original")
    convert(tmp_path / "original", tmp_path / "vllm", "vllm", target)
    assert same(tmp_path / "vllm", heads).layout == "vllm"
    convert(tmp_path / "vllm", tmp_path / "again", "original")
    assert same(tmp_path / "again", heads).layout == "original"


def test_ours_may_be_copied_with_all_that_it_says(tmp_path: Path) -> None:
    heads = heads_of(IDS, kind="sequential", output="own")
    checkpoint.write(tmp_path / "ours", heads, {})
    convert(tmp_path / "ours", tmp_path / "copy", "specplug")
    assert checkpoint.read_config(tmp_path / "copy") == heads.config


def test_half_precision_stays_what_it_is(tmp_path: Path, target: Path) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(output="target").bfloat16(), {})
    for to in ("vllm", "original", "specplug"):
        convert(tmp_path / "ours", tmp_path / to, to, target)
        assert {tensor.dtype for tensor in checkpoint.read(tmp_path / to).tensors.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "vllm" / "config.json").read_text())["dtype"] == "bfloat16"


def test_vllms_files_are_what_vllm_reads(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(IDS, output="shared"), {})
    convert(tmp_path / "ours", tmp_path / "vllm", "vllm")
    shapes = {name: list(tensor.shape) for name, tensor in load_file(tmp_path / "vllm" / "model.safetensors").items()}
    assert shapes == {
        **{f"blocks.{head}.layers.0.weight": [6, 6] for head in range(HEADS)},
        **{f"blocks.{head}.layers.0.bias": [6] for head in range(HEADS)},
        "lm_head.weight": [3, 6],
        "token_map": [3],
    }
    settings = json.loads((tmp_path / "vllm" / "config.json").read_text())
    assert settings.pop("provenance")
    assert settings == {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "dtype": "float32",
        "hidden_size": 6,
        "vocab_size": 11,
        "truncated_vocab_size": 3,
        "num_heads": 3,
        "num_hidden_layers": 1,
        "medusa_fc_bias": True,
        "original_lm_head": True,
    }


def test_originals_files_are_what_the_authors_code_reads(tmp_path: Path, target: Path) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(output="shared", num_heads=2, bias=False), {})
    convert(tmp_path / "ours", tmp_path / "original", "original", target)
    stored = torch.load(tmp_path / "original" / "medusa_lm_head.pt", weights_only=True)
    assert {name: list(tensor.shape) for name, tensor in stored.items()} == {
        **{f"{head}.0.linear.weight": [6, 6] for head in range(2)},
        **{f"{head}.0.linear.bias": [6] for head in range(2)},
        **{f"{head}.1.weight": [11, 6] for head in range(2)},
    }
    settings = json.loads((tmp_path / "original" / "config.json").read_text())
    assert (settings["medusa_num_heads"], settings["medusa_num_layers"]) == (2, 1)
    assert settings["base_model_name_or_path"] == "target"
    assert "model_type" not in settings


def test_provenance_names_source_and_versions_but_no_place(tmp_path: Path, target: Path) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(output="own"), {"corpus": "one"})
    done = convert(tmp_path / "ours", tmp_path / "vllm", "vllm", target)
    provenance = checkpoint.read(tmp_path / "vllm").provenance
    assert provenance == done["provenance"]
    assert provenance["source"] == {
        "name": "ours",
        "layout": "specplug",
        "sha256": {
            "heads.safetensors": hashlib.sha256((tmp_path / "ours" / "heads.safetensors").read_bytes()).hexdigest()
        },
        "provenance": {"corpus": "one"},
    }
    assert provenance["versions"]["vllm-specplug"] == __version__
    assert provenance["versions"]["torch"] == torch.__version__
    assert provenance["target"] == "target"
    assert str(tmp_path) not in json.dumps(provenance)


# Where the target's output layer is found.

EMBEDDINGS, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("names", "config", "row_of"),
    [
        ((EMBEDDINGS, OUTPUT), {}, OUTPUT),
        ((EMBEDDINGS, OUTPUT), {"tie_word_embeddings": False}, OUTPUT),
        ((EMBEDDINGS, OUTPUT), {"tie_word_embeddings": True}, EMBEDDINGS),
        ((EMBEDDINGS,), {}, EMBEDDINGS),
        (("language_model.model.embed_tokens.weight",), {"text_config": {"tie_word_embeddings": True}}, EMBEDDINGS),
    ],
)
def test_targets_output_is_found(tmp_path: Path, names: tuple[str, ...], config: dict[str, Any], row_of: str) -> None:
    embeddings, output = target_rows()
    write_target(tmp_path / "target", {name: embeddings if "embed" in name else output for name in names}, **config)
    checkpoint.write(tmp_path / "ours", heads_of(), {})
    convert(tmp_path / "ours", tmp_path / "vllm", "vllm", tmp_path / "target")
    expected = embeddings if row_of == EMBEDDINGS else output
    torch.testing.assert_close(checkpoint.read(tmp_path / "vllm").tensors["output.weight"], expected[:VOCAB])


def test_targets_output_is_found_in_several_files(tmp_path: Path, target: Path) -> None:
    (target / "model.safetensors").unlink()
    embeddings, output = target_rows()
    save_file({EMBEDDINGS: embeddings}, target / "model-00001-of-00002.safetensors")
    save_file({OUTPUT: output}, target / "model-00002-of-00002.safetensors")
    weight_map = {EMBEDDINGS: "model-00001-of-00002.safetensors", OUTPUT: "model-00002-of-00002.safetensors"}
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    heads = heads_of()
    checkpoint.write(tmp_path / "ours", heads, {})
    convert(tmp_path / "ours", tmp_path / "vllm", "vllm", target)
    same(tmp_path / "vllm", heads)


@pytest.mark.parametrize(
    ("names", "config"),
    [
        ((EMBEDDINGS, "lm_head.qweight"), {}),
        ((EMBEDDINGS,), {"tie_word_embeddings": False}),
        (("model.norm.weight",), {}),
    ],
)
def test_target_without_output_is_refused(tmp_path: Path, names: tuple[str, ...], config: dict[str, Any]) -> None:
    write_target(tmp_path / "target", {name: torch.zeros(PADDED, HIDDEN) for name in names}, **config)
    checkpoint.write(tmp_path / "ours", heads_of(), {})
    assert refused(tmp_path, "vllm", tmp_path / "target") == (
        "TMP/target has no output layer as plain weights: looked for lm_head.weight in its safetensors files, and for "
        "model.embed_tokens.weight where the two are tied; give the unquantised target"
    )


# What is refused.


def refused(tmp_path: Path, to: Any, target: Path | None = None, error: type[Exception] = ModelError) -> str:
    with pytest.raises(error) as caught:
        convert(tmp_path / "ours", tmp_path / "out", to, target)
    text = str(caught.value)
    assert "\n" not in text
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))
    return text.replace(str(tmp_path), "TMP")


@pytest.mark.parametrize(
    ("to", "ids", "changes", "text"),
    [
        (
            "vllm",
            None,
            {"kind": "sequential"},
            "sequential heads read the tokens drafted before theirs, which the vllm layout cannot say; they run in the "
            "specplug layout only",
        ),
        (
            "original",
            None,
            {"kind": "sequential"},
            "sequential heads read the tokens drafted before theirs, which the original layout cannot say; they run in "
            "the specplug layout only",
        ),
        (
            "vllm",
            IDS,
            {"output": "own"},
            "heads with outputs of their own and a draft vocabulary cannot go to the vllm layout: vLLM 0.32 makes room "
            "for 11 rows and loads 3; keep them in the specplug layout",
        ),
        (
            "original",
            IDS,
            {"output": "shared"},
            "heads that draft 3 of 11 tokens cannot go to the original layout, which has no map of tokens; use the "
            "specplug or the vllm layout",
        ),
        (
            "original",
            None,
            {"num_layers": 0},
            "heads without blocks and without outputs have no tensors, so the original layout cannot hold them; use "
            "the specplug layout",
        ),
    ],
)
def test_what_a_layout_cannot_say_is_refused(
    tmp_path: Path, to: Any, ids: list[int] | None, changes: dict[str, Any], text: str
) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(ids, **changes), {})
    assert refused(tmp_path, to, error=ConfigError) == text


def test_targets_output_must_be_given_to_be_copied(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(), {})
    assert refused(tmp_path, "vllm") == (
        "these heads use the target's output layer, of which the vllm layout holds a copy; give the target's directory "
        "(specplug convert-medusa --target)"
    )


def test_another_target_is_refused(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(), {})
    write_target(tmp_path / "target", {OUTPUT: torch.zeros(PADDED, 8)}, hidden_size=8)
    assert refused(tmp_path, "specplug", tmp_path / "target") == (
        "heads in TMP/ours are for hidden size 6, the target has 8; give heads that were trained for this target"
    )
    write_target(tmp_path / "target", {OUTPUT: torch.zeros(10, HIDDEN)})
    assert refused(tmp_path, "vllm", tmp_path / "target") == (
        "the target's output layer is [10, 6], the heads need [11, 6]; give the target that they were trained for"
    )
    (tmp_path / "target" / "config.json").write_text("{}")
    assert refused(tmp_path, "vllm", tmp_path / "target") == (
        "TMP/target has no config.json, or an empty one; give the target's directory"
    )


def test_source_is_not_overwritten(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(), {})
    with pytest.raises(ModelError) as caught:
        convert(tmp_path / "ours", tmp_path / "other" / ".." / "ours", "original")
    assert str(caught.value).endswith("is where the heads are read from; choose another directory for --out")


def test_original_heads_that_share_take_the_size_from_the_target(tmp_path: Path, target: Path) -> None:
    (tmp_path / "ours").mkdir()
    tensors = {"0.0.linear.weight": torch.eye(HIDDEN), "0.0.linear.bias": torch.zeros(HIDDEN)}
    torch.save(tensors, tmp_path / "ours" / "medusa_lm_head.pt")
    assert "give it as vocab_size, or the target's directory" in refused(tmp_path, "specplug")
    convert(tmp_path / "ours", tmp_path / "out", "specplug", target)
    assert checkpoint.read_config(tmp_path / "out").vocab_size == PADDED


# The command.


def test_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.write(tmp_path / "ours", heads_of(IDS, output="shared"), {})
    source, out = str(tmp_path / "ours"), str(tmp_path / "vllm")
    assert cli.main(["convert-medusa", source, "--to", "vllm", "--out", out]) == 0
    assert capsys.readouterr().out == (
        f"wrote {out} (vllm layout) from {source} (specplug layout): 3 independent heads, hidden size 6, vocabulary of "
        "11, drafting 3 of it, output shared\n"
    )
    assert cli.main(["convert-medusa", source, "--to", "vllm", "--out", out, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["out"], done["from"], done["to"]) == (out, "specplug", "vllm")
    assert HeadsConfig(**done["heads"]).draft_vocab_size == 3


def test_command_reports_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert-medusa", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"specplug: error: heads '{tmp_path}/none': there is no such directory; download them first, and give its "
        "path\n"
    )
