"""What is decided, and what is refused, before a weight is loaded, on a machine whose vLLM would choose V2."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from conftest import DRAFT, LOOKUP, MEDUSA, SCRIPTED
from tiny_draft import tiny_draft
from tiny_heads import tiny_heads
from vllm import envs
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from vllm_specplug import doctor
from vllm_specplug.bridge import contract
from vllm_specplug.errors import ConfigError, ContractError
from vllm_specplug.proposer import Capabilities
from vllm_specplug.testing import Scripted

pytestmark = [pytest.mark.v2_only, pytest.mark.v2]

METHODS = [LOOKUP, SCRIPTED, MEDUSA, DRAFT]


class OnV1(Scripted):
    """What an outsider wrote before V2 was there."""

    capabilities = Capabilities()


class OnV2(Scripted):
    capabilities = Capabilities(runners=frozenset({"v2"}))


def configure(model: str, method: str, **arguments: Any) -> Any:
    models = {MEDUSA: tiny_heads, DRAFT: tiny_draft}
    options = {"model": models[method](model)} if method in models else {}
    config = {"method": method, "num_speculative_tokens": 3, **options}
    settings = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True, "enforce_eager": True}
    return EngineArgs(model=model, speculative_config=config, **{**settings, **arguments}).create_engine_config()


def force(monkeypatch: pytest.MonkeyPatch, runner: bool | None) -> None:
    """VLLM_USE_V2_MODEL_RUNNER, which vLLM may read once only."""
    monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", runner, raising=False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("forced", "uses_v2"), [(None, True), (True, True), (False, False)])
def test_the_runner_that_was_asked_for_runs(
    tiny: str, monkeypatch: pytest.MonkeyPatch, method: str, forced: bool | None, uses_v2: bool
) -> None:
    """Seen elsewhere as a healthy server on which the plugin's hooks silently do nothing (IBM/vLLM-Hook#33)."""
    force(monkeypatch, forced)
    config = configure(tiny, method)
    assert config.use_v2_model_runner == uses_v2
    assert config.speculative_config.runner == ("v2" if uses_v2 else "v1")
    again = pickle.loads(pickle.dumps(config))  # in the engine's process
    assert again.use_v2_model_runner == uses_v2
    assert again.speculative_config.runner == config.speculative_config.runner
    assert again.speculative_config.method == ("draft_model" if method == DRAFT else "custom_class")


def test_a_proposer_for_v1_alone_runs_there_unless_v2_is_forced(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = f"specplug:{__name__}.{OnV1.__name__}"
    force(monkeypatch, None)
    assert not configure(tiny, method).use_v2_model_runner
    force(monkeypatch, True)
    with pytest.raises(ValueError, match=r"V2 does not yet support: proposer 'test_startup_v2\.OnV1' of vllm-specplug"):
        configure(tiny, method)


def test_a_proposer_for_v2_alone_is_refused_on_v1(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = f"specplug:{__name__}.{OnV2.__name__}"
    force(monkeypatch, None)
    assert configure(tiny, method).use_v2_model_runner
    force(monkeypatch, False)
    with pytest.raises(ConfigError, match=r"does not support vLLM's V1 model runner, which was chosen here"):
        configure(tiny, method)


@pytest.mark.parametrize("forced", [None, True])
def test_vllms_own_methods_are_decided_as_ever(tiny: str, monkeypatch: pytest.MonkeyPatch, forced: bool | None) -> None:
    """Also a class of somebody else's, which V2 cannot run."""
    force(monkeypatch, forced)
    settings = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True, "enforce_eager": True}
    config = {"method": "custom_class", "model": "somebody.elses.Class", "num_speculative_tokens": 2}
    arguments = EngineArgs(model=tiny, speculative_config=config, **settings)
    if forced:
        with pytest.raises(ValueError, match="V2 does not yet support: speculative method 'custom_class'"):
            arguments.create_engine_config()
    else:
        assert not arguments.create_engine_config().use_v2_model_runner


def test_a_renamed_symbol_of_v2_is_refused_by_name(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, None)
    monkeypatch.delattr(GPUModelRunner, "_remove_request")
    with pytest.raises(ContractError, match=r"GPUModelRunner\._remove_request is missing"):
        configure(tiny, LOOKUP)
    force(monkeypatch, False)
    assert not configure(tiny, LOOKUP).use_v2_model_runner  # V1 does not need it


def test_a_renamed_symbol_of_v1_does_not_matter_on_v2(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1GPUModelRunner

    monkeypatch.delattr(V1GPUModelRunner, "_update_states")
    force(monkeypatch, None)
    assert configure(tiny, LOOKUP).use_v2_model_runner
    force(monkeypatch, False)
    with pytest.raises(ContractError, match=r"GPUModelRunner\._update_states is missing"):
        configure(tiny, LOOKUP)


@pytest.mark.draft_model
def test_what_draft_models_need_is_asked_of_draft_models_only(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    force(monkeypatch, None)
    monkeypatch.delattr(StandaloneARSpeculator, "_prefill")
    assert configure(tiny, MEDUSA).use_v2_model_runner
    with pytest.raises(ContractError, match=r"StandaloneARSpeculator\._prefill is missing"):
        configure(tiny, DRAFT)


def test_v2_of_a_release_in_which_we_do_not_drive_it_is_not_chosen(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "runners", lambda version, runs_draft_model=False: ("v1",))
    force(monkeypatch, None)
    assert not configure(tiny, LOOKUP).use_v2_model_runner
    force(monkeypatch, True)
    with pytest.raises(ValueError, match="V2 does not yet support: proposer 'prompt_lookup' of vllm-specplug"):
        configure(tiny, LOOKUP)


def test_draft_models_run_on_v1_where_we_do_not_drive_those_of_v2(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both, only_v1 = ("v1", "v2"), ("v1",)
    monkeypatch.setattr(
        contract, "runners", lambda version, runs_draft_model=False: only_v1 if runs_draft_model else both
    )
    force(monkeypatch, None)
    assert configure(tiny, LOOKUP).use_v2_model_runner
    assert not configure(tiny, DRAFT).use_v2_model_runner
    force(monkeypatch, True)
    with pytest.raises(ValueError, match=r"V2 does not yet support: .*proposer 'draft_model' of vllm-specplug"):
        configure(tiny, DRAFT)


def test_doctor_says_which_runner_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, None)
    assert (doctor._runner().status, doctor._runner().detail) == ("ok", "V2 (vLLM's default)")
    force(monkeypatch, False)
    assert doctor._runner().detail == "V1 (VLLM_USE_V2_MODEL_RUNNER=0)"
    force(monkeypatch, True)
    assert doctor._runner().detail == "V2 (VLLM_USE_V2_MODEL_RUNNER=1)"
    monkeypatch.setattr(contract, "runners", lambda version, runs_draft_model=False: ("v1",))
    found = doctor._runner()
    assert found.status == "missing"
    assert "forces V2, which we do not drive in vLLM" in found.detail
