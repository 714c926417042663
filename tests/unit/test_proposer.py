"""The public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vllm_specplug
from vllm_specplug import Drafts, ShapeError, sample_rows
from vllm_specplug.testing import batch_of


def test_public_names_are_pinned() -> None:
    assert vllm_specplug.__all__ == sorted(vllm_specplug.__all__)
    assert set(vllm_specplug.__all__) == {
        "Capabilities",
        "CompareError",
        "ConfigError",
        "ContractError",
        "DraftBatch",
        "Drafts",
        "EngineInfo",
        "ModelError",
        "OptionsError",
        "Proposer",
        "ProposerError",
        "ProposerOptions",
        "ShapeError",
        "SpecplugError",
        "Target",
        "UnknownProposerError",
        "UnsupportedVersionError",
        "sample_rows",
    }


def test_interface_imports_neither_vllm_nor_torch() -> None:
    import subprocess
    import sys

    code = "import sys, vllm_specplug; print({'vllm', 'torch', 'numba'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_lists_survive_the_way_through_drafts() -> None:
    rows = [[1, 2, 3], [], [4]]
    assert Drafts.from_lists(rows).to_lists() == rows
    assert Drafts.none(2).to_lists() == [[], []]


def test_tokens_are_a_read_only_view_of_each_row() -> None:
    batch = batch_of([[5, 6, 7], [8]])
    assert [batch.tokens(row).tolist() for row in range(2)] == [[5, 6, 7], [8]]
    with pytest.raises(ValueError, match="read-only"):
        batch.token_ids[0, 0] = 1


def test_only_rows_with_a_limit_above_0_are_drafted_for() -> None:
    assert list(batch_of([[1], [2], [3]], max_drafts=[0, 2, 1]).drafting_rows()) == [1, 2]


def test_sample_rows_draws_from_its_rows() -> None:
    probs = torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]]).repeat_interleave(20_000, 0)
    drawn = sample_rows(probs, batch_of([[0]] * 40_000)).numpy()
    share = np.bincount(drawn[:20_000], minlength=3) / 20_000
    assert np.abs(share - [0.1, 0.2, 0.7]).max() < 0.02
    assert (drawn[20_000:] == 1).all()


def test_sample_rows_refuses_another_number_of_rows() -> None:
    with pytest.raises(ShapeError, match=r"probs have shape \(3, 4\), expected \[2, vocab_size\]"):
        sample_rows(torch.ones(3, 4), batch_of([[0], [1]]))
