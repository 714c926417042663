"""What Serve says of an application, as lines for people.

Knows Serve's statuses, nothing of how they are obtained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from deploy.application import ROUTER, deployment_name
from deploy.staging import Staging

_MAX_CHARS = 500


class Progress:
    """Turns one status after the other into lines about what has changed."""

    def __init__(self, staging: Staging) -> None:
        self._names = {deployment_name(arm): arm for arm in staging.arms} | {ROUTER: "router"}
        self._said: dict[str, str] = {}

    def changes(self, application: Any) -> Iterator[str]:
        """Lines about an application's status (`ray.serve.schema.ApplicationStatusOverview`)."""
        for deployment, name in self._names.items():
            status = application.deployments.get(deployment)
            if status is None or not any(status.replica_states.values()):
                continue
            line = f"{name}: {_spelt(status)}"
            if self._said.get(name) != line:
                self._said[name] = line
                yield line

    def failure(self, application: Any) -> str:
        """Why an application could not be deployed, in one line."""
        said = [
            (f"{self._names.get(deployment, deployment)}: ", status.message)
            for deployment, status in application.deployments.items()
        ]
        # Of the application itself there is only which deployment failed, unless it could not even be built.
        said.append(("", application.message))
        place, message = min(
            ((place, message) for place, message in said if message),
            key=lambda one: "rror" not in one[1],
            default=("", "Ray gives no reason"),
        )
        return place + cause(message)


def cause(message: str) -> str:
    """The line of an error message with a traceback that says what is wrong; empty: there is none."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"([\w.]+\.)?\w*(Error|Exception|Exit)\b.*: ", line)]
    # Ours first: what Ray wraps it in says less. Else the last one, which the traceback is about.
    otherwise = errors[-1] if errors else (lines or [""])[0]
    found = next((line for line in errors if "DeployError: " in line), otherwise)
    text = re.sub(r"^.*?DeployError: ", "", found)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 4]} ..."


def _spelt(status: Any) -> str:
    # Serve gives these states as an enumeration or as plain text, according to where they come from.
    counts = {str(getattr(state, "value", state)): number for state, number in status.replica_states.items() if number}
    running = counts.pop("RUNNING", 0)
    parts = [f"{number} {state.lower()}" for state, number in counts.items()]
    said = ", ".join([f"{running} up", *parts] if running else parts)
    failed = "" if status.status.value in ("HEALTHY", "UPDATING") else f" ({status.status.value.lower()})"
    why = cause(status.message) if "rror" in status.message else ""
    return f"{said}{failed}" + (f": {why}" if why else "")
