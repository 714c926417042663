"""A bare method name is ours where vLLM has no such method: `medusa` from 0.33 on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import vllm.config.speculative
from vllm.engine.arg_utils import EngineArgs

from tests.engine.models import tiny_llama
from tests.engine.tiny_heads import tiny_heads
from vllm_specplug.bridge.config import proposer_spec


def words(annotation: Any) -> Iterator[str]:
    for value in get_args(annotation):
        yield from [value] if isinstance(value, str) else words(value)


def configure(model: Path, config: dict[str, Any]) -> Any:
    arguments = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True, "enforce_eager": True}
    return EngineArgs(model=str(model), speculative_config=config, **arguments).create_engine_config()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "model")


@pytest.fixture
def medusa_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The methods of 0.33, which removed Medusa."""
    remaining = tuple(word for word in words(vllm.config.speculative.SpeculativeMethod) if word != "medusa")
    monkeypatch.setattr(vllm.config.speculative, "SpeculativeMethod", Literal[remaining])


def test_bare_medusa_is_ours_where_vllm_has_none(model: Path, medusa_is_gone: None) -> None:
    asked = {"method": "medusa", "model": tiny_heads(str(model)), "num_speculative_tokens": 3}
    spec = proposer_spec(configure(model, asked).speculative_config)
    assert spec is not None
    assert (spec.name, spec.num_speculative_tokens) == ("medusa", 3)
    assert asked == {"method": "medusa", "model": tiny_heads(str(model)), "num_speculative_tokens": 3}


@pytest.mark.skipif(
    "medusa" not in words(vllm.config.speculative.SpeculativeMethod), reason="this vLLM has no Medusa of its own"
)
def test_bare_medusa_is_vllms_where_it_has_one(model: Path) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  (vLLM's own, on heads in our layout)
        configure(model, {"method": "medusa", "model": "no/such/heads", "num_speculative_tokens": 3})
    assert "specplug" not in str(error.value)


def test_a_name_nobody_has_is_left_to_vllm(model: Path, medusa_is_gone: None) -> None:
    with pytest.raises(ValueError, match="no_such_method"):
        configure(model, {"method": "no_such_method", "num_speculative_tokens": 3})
