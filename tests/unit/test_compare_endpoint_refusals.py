"""What cannot be measured at an endpoint is said in one line, before anything is measured."""

from __future__ import annotations

import pytest
from endpoint_cases import QUICK, SETTINGS, arm_of, compared, one_answer, started, workload
from endpoint_server import Fake, closed_port, fake, no_proxy, two

from vllm_specplug.compare.arms import Arm, parse_arm
from vllm_specplug.compare.endpoint import EndpointArm, EndpointSettings
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.run import run_compare
from vllm_specplug.errors import CompareError

__all__ = ["fake", "no_proxy", "two"]  # fixtures


def test_nothing_that_listens_is_said(fake: Fake) -> None:
    fake.url = f"http://127.0.0.1:{closed_port()}/v1"
    with pytest.raises(CompareError, match=r"^arm 'staging': http://127.*/v1/models: nothing listens there; is the"):
        started(fake)


def test_host_without_a_name_is_said(fake: Fake) -> None:
    fake.url = "http://no-such-host.invalid/v1"
    with pytest.raises(CompareError, match="the host's name is not known; is the address right"):
        started(fake, EndpointSettings(timeout_s=5))


def test_tls_where_there_is_none_is_said(fake: Fake) -> None:
    fake.url = fake.url.replace("http:", "https:")
    with pytest.raises(CompareError, match="TLS failed; does it speak https"):
        started(fake)


def test_wrong_key_is_said_and_not_repeated(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.key = "right"
    monkeypatch.setenv("STAGING_KEY", "secret-and-wrong")
    with pytest.raises(CompareError, match=r"answered 401: .*is the key in 'api_key_env' right") as caught:
        started(fake, api_key_env="STAGING_KEY")
    assert "secret-and-wrong" not in str(caught.value)
    monkeypatch.setenv("STAGING_KEY", "right")
    assert one_answer(started(fake, api_key_env="STAGING_KEY"))["token_ids"]


def test_missing_key_is_said_by_its_variable(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGING_KEY", raising=False)
    with pytest.raises(CompareError, match="arm 'staging': the environment variable 'STAGING_KEY' should hold the key"):
        started(fake, api_key_env="STAGING_KEY")


def test_unknown_model_is_said_with_those_there_are(fake: Fake) -> None:
    arm = EndpointArm(Arm("staging", endpoint=Endpoint(fake.url, "tniy")), QUICK)
    with pytest.raises(CompareError, match="does not list the model 'tniy'; it lists 'tiny'"):
        arm.request("start")


def test_address_without_v1_is_said(fake: Fake) -> None:
    fake.url = fake.url.removesuffix("/v1")
    with pytest.raises(CompareError, match=r"answered 404: .*; should the address end in /v1\?"):
        started(fake)


def test_server_without_tokenizer_asks_for_one(fake: Fake) -> None:
    fake.has_tokenize = False
    with pytest.raises(CompareError, match=r"/tokenize cannot be used \(.*404.*\); name the .* --tokenizer"):
        started(fake)
    with pytest.raises(CompareError, match="the tokenizer '/nowhere' cannot be loaded"):
        started(fake, EndpointSettings(20, "/nowhere"))


def test_server_that_refuses_to_make_tokens_is_measured_with_the_tokenizer_named(fake: Fake) -> None:
    fake.refuses_tokenize = True
    with pytest.raises(CompareError, match=r"does not support the 'tokenization' task.*--tokenizer"):
        started(fake)
    with pytest.raises(CompareError, match="the tokenizer '/nowhere' cannot be loaded"):
        started(fake, EndpointSettings(20, "/nowhere"))


def test_answer_that_cannot_be_counted_is_refused(fake: Fake) -> None:
    fake.tells_ids = fake.tells_usage = False
    with pytest.raises(CompareError, match="neither token ids nor usage"):
        started(fake)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_timeout_must_be_a_time(timeout_s: float) -> None:
    with pytest.raises(CompareError, match="--timeout-s is"):
        EndpointSettings(timeout_s)


def test_arms_with_different_tokenizers_are_refused_with_both(two: tuple[Fake, Fake]) -> None:
    two[1].shift = 1
    with pytest.raises(CompareError, match="arms 'base' and 'other' make different tokens of prompt 'p0': at token 0"):
        compared(*two)


def test_failure_before_the_measurement_ends_the_run(two: tuple[Fake, Fake]) -> None:
    two[1].faults = ["", "500"]  # the first one looks whether it answers at all
    with pytest.raises(CompareError, match="arm 'other': a request before the measurement failed: http_500"):
        compared(*two)


def test_own_engine_without_a_model_is_refused_before_any_starts(fake: Fake) -> None:
    with pytest.raises(CompareError, match="arm 'baseline' is an engine of our own, which needs --model; or name"):
        run_compare(None, [arm_of(fake)], workload(), SETTINGS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"endpoint": "localhost:8000", "model": "m"}',
            "'endpoint' is 'localhost:8000', expected for example",
        ),
        ('{"endpoint": "http://h:port/v1", "model": "m"}', "'endpoint' is 'http://h:port/v1', expected"),
        ('{"endpoint": "http://u:word@h/v1", "model": "m"}', "must hold no password; use 'api_key_env'"),
        ('{"endpoint": "http://h/v1"}', "'model' of an endpoint must be a text, found None"),
        ('{"endpoint": "http://h/v1", "model": "m", "api_key": "k"}', "has no 'api_key'.*Did you mean 'api_key_env'"),
        ('{"endpoint": "http://h/v1", "model": "m", "api_key_env": "sk-1"}', "must be the name of an environment var"),
        ('{"endpoint": "http://h/v1", "model": "m", "headers": {"X": 1}}', "'headers' must be an object of texts"),
    ],
)
def test_address_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompareError, match=message) as caught:
        parse_arm(f"a={text}")
    assert "sk-1" not in str(caught.value)
    assert "word@" not in str(caught.value)
