"""What tests of running endpoints ask of a `Fake`, alone or as two arms."""

from __future__ import annotations

import json
from typing import Any

from endpoint_server import MODEL, Fake

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint import EndpointArm, EndpointSettings
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report_format import validate
from vllm_specplug.compare.run import CompareSettings, run_compare
from vllm_specplug.compare.workload import Workload

QUICK = EndpointSettings(timeout_s=20)  # of a machine that does much else
SETTINGS = CompareSettings(max_tokens=6)


def arm_of(fake: Fake, name: str = "staging", **more: Any) -> Arm:
    return Arm(name, endpoint=Endpoint(fake.url, MODEL, **more))


def started(fake: Fake, settings: EndpointSettings = QUICK, **more: Any) -> EndpointArm:
    arm = EndpointArm(arm_of(fake, **more), settings)
    arm.request("start")
    fake.bodies.clear()
    fake.headers.clear()
    return arm


def one_answer(arm: EndpointArm, prompt: tuple[int, ...] = (1, 2), max_tokens: int = 4) -> dict[str, Any]:
    found = arm.request("generate", prompts=[list(prompt)], max_tokens=[max_tokens])
    output: dict[str, Any] = found["outputs"][0]
    return output


def workload(num_prompts: int = 6) -> Workload:
    prompts = [Prompt(f"p{index}", f"c{index % 2}", f"text {index}") for index in range(num_prompts)]
    return Workload("made-up", "0" * 64, tuple(prompts))


def compared(base: Fake, other: Fake, *, num_prompts: int = 6, **settings: Any) -> dict[str, Any]:
    report = run_compare(
        None,
        [arm_of(base, "base"), arm_of(other, "other")],
        workload(num_prompts),
        CompareSettings(**{"max_tokens": 6, **settings}),
        baseline="base",
        endpoint_settings=QUICK,
    )
    validate(json.loads(json.dumps(report, allow_nan=False)))
    render_page(report)
    return report


def spoil(fake: Fake, *texts: str) -> None:
    """Let all answers to these prompts fail; they must not be among those that warm up, the shortest and longest."""
    fake.spoilt = [[ord(character) % 100 for character in f"u:{text};"] for text in texts]
