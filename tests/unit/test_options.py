"""From the dict of --speculative-config to checked options."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from vllm_specplug.errors import OptionsError
from vllm_specplug.options import is_ours, resolve
from vllm_specplug.registry import Entry, Registry

REGISTRY = Registry([Entry("scripted", "vllm_specplug.testing:Scripted", "test 1")])
GOOD: dict[str, Any] = {"method": "specplug:scripted", "num_speculative_tokens": 4}


def test_options_and_vllms_keys_are_told_apart() -> None:
    spec = resolve({**GOOD, "ragged": True, "rejection_sample_method": "standard"}, REGISTRY)
    assert (spec.name, spec.target, spec.num_speculative_tokens) == ("scripted", "vllm_specplug.testing:Scripted", 4)
    assert dict(spec.options) == {"ragged": True}
    assert dict(spec.engine_keys) == {"rejection_sample_method": "standard"}


def test_spec_travels_to_another_process() -> None:
    spec = resolve({**GOOD, "wrong_every": 3}, REGISTRY)
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.parsed_options().wrong_every == 3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"raged": True}, "proposer 'scripted' has no option 'raged'; it takes: fault, fault_every,"),
        ({"raged": True}, "Did you mean 'ragged'?"),
        ({"ragged": "yes"}, "proposer 'scripted': option ragged is 'yes': Input should be a valid boolean"),
        ({"wrong_every": -1}, "option wrong_every is -1: Input should be greater than or equal to 0"),
        ({"wrong_every": "3"}, "option wrong_every is '3': Input should be a valid integer"),
        ({"fault": "sleep"}, "option fault is 'sleep': Input should be "),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0; expected a whole number from 1 to 128"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1; expected a whole number from 1 to 128"),
        ({"num_speculative_tokens": 129}, "num_speculative_tokens is 129; expected a whole number from 1 to 128"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens is True; expected"),
        ({"num_speculative_tokens": "4"}, "num_speculative_tokens is '4'; expected"),
        ({"num_speculative_tokens": None}, "num_speculative_tokens is missing; expected"),
    ],
)
def test_bad_value_is_refused_by_name_in_one_line(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        resolve({**GOOD, **changes}, REGISTRY)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_say_what_was_expected_and_what_to_do() -> None:
    texts = []
    for changes in ({"num_speculative_tokens": 0}, {"num_speculative_tokens": None}, {"wrong_evry": 3}):
        with pytest.raises(OptionsError) as caught:
            resolve({**GOOD, **changes}, REGISTRY)
        texts.append(str(caught.value))
    assert texts == [
        "proposer 'scripted': num_speculative_tokens is 0; expected a whole number from 1 to 128. To serve without "
        "speculation leave --speculative-config out",
        "proposer 'scripted': num_speculative_tokens is missing; expected a whole number from 1 to 128, e.g. "
        '"num_speculative_tokens": 8',
        "proposer 'scripted' has no option 'wrong_evry'; it takes: fault, fault_every, num_speculative_tokens, "
        "num_speculative_tokens_per_batch_size, ragged, rejection_sample_method, script, synthetic_acceptance_length, "
        "synthetic_acceptance_rates, wrong_every. Did you mean 'wrong_every'?",
    ]


def test_prefix_alone_makes_a_method_ours() -> None:
    assert is_ours("specplug:scripted")
    assert not any(is_ours(method) for method in ("scripted", "ngram", None, 3, "Specplug:scripted"))
