"""`python -m deploy`: parses, and runs one of render, check and run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

import yaml

from deploy.rendering import serve_config
from deploy.staging import load_staging
from vllm_specplug import __version__
from vllm_specplug.commands import add_command
from vllm_specplug.errors import DeployError, SpecplugError

_PROGRAM = "python -m deploy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 1 for "checked, and the answer is bad news", 2 for an error, 130 when interrupted.
    """
    try:
        parsed = _parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except SpecplugError as error:
        print(f"deploy: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("deploy: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Serve one model by several arms on Ray Serve.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"vllm-specplug {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = _add(
        commands,
        "render",
        _render,
        "print the Serve configuration of a staging file, for `serve deploy` and KubeRay",
        f"{_PROGRAM} render staging.yaml > serve.yaml && serve deploy serve.yaml",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of YAML")

    command = _add(
        commands,
        "check",
        _check,
        "check a staging file against what is installed and against the cluster; exit code 1 when something is wrong",
        f"{_PROGRAM} check deploy/cpu-demo.yaml",
    )
    _add_address(command, "by default this machine alone")

    command = _add(
        commands,
        "run",
        _run,
        "deploy a staging file and serve until Ctrl-C, SIGTERM or an error; SIGHUP reads the file again",
        f"{_PROGRAM} run deploy/cpu-demo.yaml",
    )
    _add_address(command, "by default RAY_ADDRESS or the one that `ray start` started here, else one of its own")
    own = command.add_argument_group("with a cluster of its own")
    own.add_argument("--num-cpus", type=int, metavar="N", help="CPUs it may use (default: all)")
    own.add_argument("--dashboard", action="store_true", help="start Ray's dashboard too, on loopback")
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    example: str,
) -> argparse.ArgumentParser:
    command = add_command(commands, name, run, text, example)
    command.add_argument("staging", metavar="FILE", help="the staging file")
    return command


def _add_address(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument("--address", metavar="HOST:PORT", help=f"the Ray cluster; {default}; 'local': one of its own")


def _render(parsed: argparse.Namespace) -> int:
    staging = load_staging(parsed.staging)
    if not staging.http.port:
        raise DeployError(f"{parsed.staging}: http.port is 0, which only `{_PROGRAM} run` can serve; name a port")
    config = serve_config(staging)
    print(json.dumps(config, indent=2) if parsed.json else yaml.safe_dump(config, sort_keys=False).rstrip())
    return 0


def _check(parsed: argparse.Namespace) -> int:
    from deploy import checking

    return checking.main(parsed.staging, parsed.address)


def _run(parsed: argparse.Namespace) -> int:
    from deploy import running

    return running.main(parsed.staging, parsed.address, num_cpus=parsed.num_cpus, dashboard=parsed.dashboard)
