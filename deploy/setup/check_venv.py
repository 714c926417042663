"""Prints the running Python's version; exits with 1 and says why when a lock file's packages are not all there.

    .venv/bin/python deploy/setup/check_venv.py deploy/setup/cpu.lock

Looks at the names of installed distributions only and imports nothing of them, to be done in a tenth of a second.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> set[tuple[str, str]]:
    """(name, version) of each distribution in this environment."""
    directories = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    names = [entry.removesuffix(".dist-info") for place in directories for entry in os.listdir(place)]
    return {(normal(name), version) for name, _, version in (entry.partition("-") for entry in names) if version}


def wanted(lock: str) -> set[tuple[str, str]]:
    """(name, version) of each line of `lock` that is for this machine."""
    with open(lock, encoding="utf-8") as file:
        lines = [line.strip() for line in file if not line.startswith("#") and line.strip()]
    pins = (line.partition(";") for line in lines)
    here = f'platform_machine == "{platform.machine()}"'
    return {
        (normal(name), version.strip())
        for pin, _, marker in pins
        if not marker or marker.strip() == here
        for name, _, version in [pin.partition("==")]
    }


def main(lock: str) -> int:
    print(platform.python_version())
    if missing := sorted(wanted(lock) - installed()):
        name, version = missing[0]
        print(f"{len(missing)} package(s) missing or of another version, first {name}=={version}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
