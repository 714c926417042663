"""The parent's handle on the child process of one arm. Imports no vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from vllm_specplug.child_environment import child_environment
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint import DEFAULT_SETTINGS, EndpointArm, EndpointSettings
from vllm_specplug.error_lines import last_error_line, one_line
from vllm_specplug.errors import CompareError

_PROMPT_TIMEOUT_S = 60.0
"""A run under load is one answer, of any number of prompts."""


class RunningArm(Protocol):
    """What both kinds of arms answer: an engine of our own in a child process, and a server that runs already."""

    @property
    def arm(self) -> Arm: ...

    def request(self, op: str, **args: Any) -> Any: ...

    def close(self) -> None: ...


class EngineProcess:
    """One arm's engine in a child process. Requests are answered in turn; only one is ever under way."""

    def __init__(self, arm: Arm, log_folder: Path, timeout_s: float = 3600.0) -> None:
        """Start the process; the engine is built by `start`.

        Args:
            log_folder: gets `<arm>.log`, all that vLLM prints.
            timeout_s: longest wait for one answer; covers a compilation. For many prompts it is longer.
        """
        self.arm = arm
        self.timeout_s = timeout_s
        self.log_path = log_folder / f"{arm.name}.log"
        with self.log_path.open("wb") as log:
            # Own session: Ctrl-C reaches the parent alone, and close() ends the engine's own children too.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm_specplug.compare.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(os.environ),
                start_new_session=True,
                text=True,
            )

    def request(self, op: str, **args: Any) -> Any:
        """Call an operation of `worker.Worker` and wait for its result.

        Raises:
            CompareError: the engine refused, died, or did not answer in time.
        """
        self.send(op, **args)
        prompts, arrival_s = args.get("prompts") or (), args.get("arrival_s") or (0.0,)
        return self.receive(self.timeout_s + arrival_s[-1] + _PROMPT_TIMEOUT_S * len(prompts))

    def send(self, op: str, **args: Any) -> None:
        """Hand in a request whose answer `receive` waits for."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, "args": args}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._died() from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer to the request that was sent last, `self.timeout_s` at most unless told otherwise."""
        assert self._process.stdout is not None
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            raise CompareError(f"arm {self.arm.name!r} gave no answer for {timeout_s:g} s; {self._log_hint()}")
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        answer = json.loads(line)
        if "error" in answer:
            raise CompareError(f"arm {self.arm.name!r}: {one_line(answer['error'])}; {self._log_hint()}")
        return answer["result"]

    def close(self) -> None:
        """End the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a half-written request
                    pipe.close()

    def _died(self) -> CompareError:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        last = last_error_line(self.log_path.read_text(errors="replace"))
        return CompareError(f"arm {self.arm.name!r}: its engine {how}: {one_line(last)}; {self._log_hint()}")

    def _log_hint(self) -> str:
        return f"full log: {self.log_path}"


@contextlib.contextmanager
def running(arms: Sequence[Arm], endpoint_settings: EndpointSettings = DEFAULT_SETTINGS) -> Iterator[list[RunningArm]]:
    """One process per arm of ours; all are ended on the way out, their logs are kept only after an error.

    Servers that run already are only connected to.
    """
    folder = Path(tempfile.mkdtemp(prefix="specplug-compare-"))
    engines: list[RunningArm] = []
    try:
        for arm in arms:
            if arm.endpoint is None:
                engines.append(EngineProcess(arm, folder))
            else:
                engines.append(EndpointArm(arm, endpoint_settings))
        yield engines
    finally:
        for engine in engines:
            engine.close()
    shutil.rmtree(folder)
