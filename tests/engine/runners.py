"""The model runner that all engines of this process run on; imported before vllm is."""

from __future__ import annotations

import os
from typing import cast

from vllm_specplug.proposer import Runner

#: Names the runner of a process of tests.
VARIABLE = "SPECPLUG_TEST_RUNNER"
RUNNER = cast(Runner, os.environ.get(VARIABLE, "v1"))

if RUNNER == "v2":
    import v2_on_cpu  # noqa: F401
