"""What may be set of the router."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.router_settings import RouterOptions, RouterSettings
from deploy.settings import read
from vllm_specplug.errors import DeployError

FIRST = {"model": "tiny", "arms": ["a", "b"]}


def test_defaults_are_safe() -> None:
    found = read(RouterSettings, FIRST, "")
    assert (found.api_key_env, found.admin, found.shadow, found.exposure) == (None, False, None, None)
    assert found.full_name("a") == "tiny--a"


def test_settings_survive_the_way_to_the_replica() -> None:
    more = {"shadow": {"arm": "b", "share": 0.5}, "exposure": {"directory": "/x"}, "limits": {"retry_s": 2}}
    found = read(RouterSettings, FIRST | more, "")
    assert read(RouterSettings, found.model_dump(), "") == found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 1}, "Did you mean 'seed'?"),
        ({"limits": {"retry": 1}}, "limits: unknown key 'retry'"),
        ({"seed": -1}, "seed is -1: Input should be greater than or equal to 0"),
        ({"seed": "1"}, "seed is '1': Input should be a valid integer"),
        ({"arm_header": "X Arm"}, "arm_header: 'X Arm' cannot be the name of a header; expected letters, digits and -"),
        ({"session_header": ""}, "session_header: '' cannot be the name of a header"),
        ({"shadow": {"arm": "c", "share": 0.1}}, "shadow.arm is 'c'; expected one of a, b"),
        ({"shadow": {"arm": "a", "share": 1.1}}, "shadow.share is 1.1: Input should be less than or equal to 1"),
        ({"limits": {"retry_s": 0}}, "limits.retry_s is 0: Input should be greater than 0"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DeployError) as error:
        read(RouterSettings, FIRST | values, "")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["api_key_env", "unit_key_env"])
def test_key_in_place_of_its_variable_is_refused_without_being_shown(option: str) -> None:
    with pytest.raises(DeployError) as error:
        read(RouterOptions, {option: "sk-secret-1"}, "")
    assert "not the name of an environment variable" in str(error.value)
    assert "sk-secret-1" not in str(error.value)
