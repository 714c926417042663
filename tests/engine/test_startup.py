"""What a configuration may not ask for is refused in the front-end, before any weight is loaded, in one clear line."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import Any

import pytest
from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

from vllm_specplug.bridge import contract
from vllm_specplug.bridge.config import proposer_spec
from vllm_specplug.errors import ConfigError, ContractError, OptionsError, UnknownProposerError, UnsupportedVersionError

LOOKUP = {"method": "specplug:prompt_lookup", "num_speculative_tokens": 4}
TAKES = (
    "it takes: max_ngram, min_confidence, min_ngram, num_speculative_tokens, "
    "num_speculative_tokens_per_batch_size, rejection_sample_method, synthetic_acceptance_length, "
    "synthetic_acceptance_rates."
)


def configure(model: str, speculative_config: dict[str, Any], **arguments: Any) -> Any:
    """What `LLM` and `vllm serve` do before they load anything."""
    settings = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True, "enforce_eager": True}
    return EngineArgs(
        model=model, speculative_config=dict(speculative_config), **{**settings, **arguments}
    ).create_engine_config()


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        (
            {"method": "specplug:promt_lookup"},
            UnknownProposerError,
            "unknown proposer 'promt_lookup'; installed: draft_model, medusa, prompt_lookup. Did you mean "
            "'prompt_lookup'? Others register under the entry point 'vllm_specplug.proposers', or are named by a "
            "dotted path 'package.module.Class'",
        ),
        (
            {"method": "specplug:cascade"},
            UnknownProposerError,
            "proposer 'cascade' is not built in this version of vllm-specplug; installed: draft_model, medusa, "
            "prompt_lookup. Choose one of these or upgrade",
        ),
        (
            {"method": "specplug:no_such_package.Proposer"},
            ConfigError,
            "proposer 'no_such_package.Proposer' of a dotted path cannot be imported from 'no_such_package:Proposer': "
            "ModuleNotFoundError: No module named 'no_such_package'; check that it is installed in this environment",
        ),
        (
            {"method": "specplug:collections.Counter"},
            ConfigError,
            "proposer 'collections.Counter' of a dotted path: 'collections:Counter' is not a subclass of "
            "vllm_specplug.Proposer; derive it from that class",
        ),
        (
            {"max_ngarm": 3},
            OptionsError,
            f"proposer 'prompt_lookup' has no option 'max_ngarm'; {TAKES} Did you mean 'max_ngram'?",
        ),
        (
            {"model": "somewhere"},
            OptionsError,
            f"proposer 'prompt_lookup' has no option 'model'; {TAKES}",
        ),
        (
            {"num_speculative_tokens": 0},
            OptionsError,
            "proposer 'prompt_lookup': num_speculative_tokens is 0; expected a whole number from 1 to 128. "
            "To serve without speculation leave --speculative-config out",
        ),
        ({"num_speculative_tokens": -1}, OptionsError, "num_speculative_tokens is -1; expected"),
        ({"num_speculative_tokens": "4"}, OptionsError, "num_speculative_tokens is '4'; expected"),
        ({"num_speculative_tokens": 2.0}, OptionsError, "num_speculative_tokens is 2.0; expected"),
        ({"num_speculative_tokens": True}, OptionsError, "num_speculative_tokens is True; expected"),
        ({"num_speculative_tokens": 129}, OptionsError, "num_speculative_tokens is 129; expected"),
        (
            {"num_speculative_tokens": 63},
            ConfigError,
            "proposer 'prompt_lookup': num_speculative_tokens is 63, but max_model_len 64 leaves room for at most 62 "
            "drafts after a prompt; lower it or raise --max-model-len",
        ),
        ({"min_ngram": "2"}, OptionsError, "option min_ngram is '2': "),
        ({"min_ngram": 0}, OptionsError, "option min_ngram is 0: "),
        (
            {"min_ngram": 5, "max_ngram": 3},
            OptionsError,
            "min_ngram 5 is larger than max_ngram 3; lower min_ngram or raise max_ngram (defaults: 1 and 4)",
        ),
    ],
    ids=lambda value: "-".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, dict) else None,
)
def test_bad_configuration_is_refused_in_one_line(
    tiny: str, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        configure(tiny, {**LOOKUP, **changes})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_draft_length_is_refused(tiny: str) -> None:
    with pytest.raises(OptionsError, match="num_speculative_tokens is missing; expected a whole number from 1 to 128"):
        configure(tiny, {"method": "specplug:prompt_lookup"})


def test_draft_longer_than_a_step_is_refused(tiny: str) -> None:
    with pytest.raises(ConfigError, match=r"a step holds at most 16 tokens .* so at most 15 drafts"):
        configure(
            tiny, {**LOOKUP, "num_speculative_tokens": 16}, max_num_batched_tokens=16, max_num_seqs=1, max_model_len=256
        )


def test_v2_runner_forced_is_refused(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen elsewhere as a healthy server on which the plugin's hooks silently do nothing (IBM/vLLM-Hook#33)."""
    # Not the environment: vLLM reads that once, when the first engine of a process starts.
    monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", True, raising=False)
    with pytest.raises(ValueError, match=r"V2"):
        configure(tiny, LOOKUP)


def test_v1_runner_forced_is_accepted(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False, raising=False)
    config = configure(tiny, LOOKUP)
    assert not config.use_v2_model_runner
    assert proposer_spec(config.speculative_config) is not None


def test_pipeline_parallelism_is_refused(tiny: str) -> None:
    with pytest.raises(ConfigError, match="pipeline_parallel_size is 2; only 1 is supported yet"):
        configure(tiny, LOOKUP, pipeline_parallel_size=2)


def test_untested_vllm_is_refused_by_name(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "installed_version", lambda: "0.99.0")
    monkeypatch.delenv(contract.ANY_VERSION_VARIABLE, raising=False)
    with pytest.raises(
        UnsupportedVersionError, match=r"vLLM 0\.99\.0 is not supported; tested: 0\.29\.0, .*0\.32\.0\. "
    ):
        configure(tiny, LOOKUP)


def test_untested_vllm_can_be_tried(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "installed_version", lambda: "0.99.0")
    monkeypatch.setenv(contract.ANY_VERSION_VARIABLE, "1")
    assert proposer_spec(configure(tiny, LOOKUP).speculative_config) is not None


def test_renamed_symbol_is_refused_by_name(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    monkeypatch.delattr(GPUModelRunner, "_get_spec_decode_draft_probs")
    with pytest.raises(ContractError, match=r"GPUModelRunner\._get_spec_decode_draft_probs is missing"):
        configure(tiny, LOOKUP)


def test_lost_parameter_is_refused_by_name(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    monkeypatch.setattr(GPUModelRunner, "_update_states", lambda self: None)
    with pytest.raises(ContractError, match=r"_update_states no longer takes scheduler_output"):
        configure(tiny, LOOKUP)


def test_same_dict_works_in_all_three_doors(tiny: str) -> None:
    """LLM and `vllm serve` go through EngineArgs; AsyncEngineArgs is a class of its own."""
    arguments = {"model": tiny, "skip_tokenizer_init": True, "max_model_len": 64}
    for door in (EngineArgs, AsyncEngineArgs):
        spec = proposer_spec(
            door(speculative_config=dict(LOOKUP), **arguments).create_engine_config().speculative_config
        )
        assert spec is not None
        assert (spec.name, spec.num_speculative_tokens) == ("prompt_lookup", 4)


def test_bare_name_is_ours_where_vllm_has_no_such_method(tiny: str) -> None:
    config = configure(tiny, {**LOOKUP, "method": "prompt_lookup"})
    assert proposer_spec(config.speculative_config) is not None


def test_dashes_in_keys_are_taken_as_vllm_takes_them(tiny: str) -> None:
    config = configure(tiny, {"method": "specplug:prompt_lookup", "num-speculative-tokens": 3, "min-ngram": 2})
    spec = proposer_spec(config.speculative_config)
    assert spec is not None
    assert (spec.num_speculative_tokens, dict(spec.options)) == (3, {"min_ngram": 2})


def test_vllms_own_methods_pass_through_untouched(tiny: str) -> None:
    config = configure(tiny, {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3})
    assert type(config.speculative_config).__name__ == "SpeculativeConfig"
    assert config.speculative_config.method == "ngram"
    assert configure(tiny, {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}) is not None


def test_configuration_survives_the_way_to_another_process(tiny: str) -> None:
    import pickle

    config = configure(tiny, {**LOOKUP, "max_ngram": 3})
    again = pickle.loads(pickle.dumps(config)).speculative_config
    assert proposer_spec(again) == proposer_spec(config.speculative_config)
    assert dataclasses.is_dataclass(again)


def test_command_line_prints_one_line_and_exits_2(tiny: str) -> None:
    command = [sys.executable, "-m", "vllm_specplug", "serve", tiny, "--max-model-len", "64", "--port", "0"]
    run = subprocess.run(
        [*command, "--speculative-config", '{"method": "specplug:prompt_lookup", "num_speculative_tokens": 0}'],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 2, run.stderr
    last = re.sub(r"^\(APIServer pid=\d+\) ", "", run.stderr.splitlines()[-1])  # 0.30 names its process in front
    assert last.startswith(
        "specplug: error: proposer 'prompt_lookup': num_speculative_tokens is 0; expected a whole number from 1 to 128"
    )
