"""`specplug plan`: how many drafts are best, what they gain, and what a model's step waits for on a device."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vllm_specplug import theory
from vllm_specplug.console import Console, report_console
from vllm_specplug.errors import ConfigError
from vllm_specplug.plan_drafter import Drafter, read_drafters
from vllm_specplug.theory import Roofline

MAX_DRAFTS = 64
"""More rows than that nobody reads."""
_DEVICE = ("params", "bytes_per_param", "bandwidth", "flops")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug plan`."""
    parser.add_argument(
        "--alpha",
        type=float,
        nargs="+",
        metavar="A",
        help="chance that a draft is accepted once those before it were, 0 to 1; several give a column each",
    )
    parser.add_argument("--draft-cost", type=float, metavar="C", help="time of one draft / time of a plain step")
    parser.add_argument(
        "--verify-cost", type=float, metavar="V", help="time of a step that checks drafts / time of a plain step (1)"
    )
    parser.add_argument(
        "--max-drafts", type=int, default=16, metavar="N", help="largest number of drafts to consider (%(default)s)"
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="take alpha and costs from a report of `specplug compare`; --draft-cost and --verify-cost replace its own",
    )
    parser.add_argument("--arm", action="append", default=[], metavar="NAME", help="only this arm; may be repeated")
    parser.add_argument("--params", type=float, metavar="N", help="weights that a step reads, as 70e9")
    parser.add_argument("--bytes-per-param", type=float, metavar="B", help="2 for bfloat16")
    parser.add_argument("--bandwidth", type=float, metavar="B", help="of the device's memory, bytes a second")
    parser.add_argument("--flops", type=float, metavar="F", help="FLOP/s of dense products on the device")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens in the step, over all requests (1)")
    parser.add_argument("--kv-bytes", type=float, metavar="B", help="of the KV cache read in the step (0)")
    parser.add_argument("--plot", metavar="FILE", help="write speed-up over drafts as one HTML page")
    parser.add_argument("--json", action="store_true", help="print all as one JSON line last on stdout")


def main(args: argparse.Namespace) -> int:
    """Run `specplug plan`. Tables go to stdout, or to stderr with --json.

    Raises:
        ConfigError: an argument is missing or out of range, or the report cannot be used.
        CompareError: the plot cannot be written.
    """
    if not 1 <= args.max_drafts <= MAX_DRAFTS:
        raise ConfigError(f"--max-drafts is {args.max_drafts}; expected 1 to {MAX_DRAFTS}")
    drafters, left_out = _drafters(args)
    roofline = _roofline(args)
    if not drafters and roofline is None:
        raise ConfigError(
            "nothing to plan for: give --alpha and --draft-cost, or --report FILE, or --params, --bytes-per-param, "
            "--bandwidth and --flops"
        )
    if args.plot and not drafters:
        raise ConfigError("--plot draws speed-ups, and there are none: give --alpha and --draft-cost, or --report FILE")
    numbers = {
        "drafters": [drafter.as_dict(args.max_drafts) for drafter in drafters],
        "left_out": left_out,
        "roofline": roofline and {**asdict(roofline), "bound": roofline.bound},
    }
    if args.plot:  # before anything is printed, whose reader may leave early
        from vllm_specplug.compare.report_format import write_text
        from vllm_specplug.plan_page import render_plan

        write_text(render_plan(drafters, args.max_drafts), args.plot)
    console = report_console(sys.stderr if args.json else sys.stdout)
    if drafters:
        _print_drafters(console, drafters, left_out, args.max_drafts)
    if roofline:
        _print_roofline(console, roofline, args.tokens or 1)
    if args.plot:
        _say(console, f"plot: {args.plot}")
    if args.json:
        print(json.dumps(numbers, ensure_ascii=False, allow_nan=False))
    return 0


def _drafters(args: argparse.Namespace) -> tuple[list[Drafter], dict[str, str]]:
    if args.report and args.alpha:
        raise ConfigError("--alpha and --report both say how often drafts are accepted; give one of them")
    if args.report:
        return read_drafters(args.report, args.arm, args.draft_cost, args.verify_cost)
    if args.arm:
        raise ConfigError(f"--arm {args.arm[0]} names an arm of a report; give --report FILE too")
    if not args.alpha:
        for name in ("draft_cost", "verify_cost"):
            if getattr(args, name) is not None:
                raise ConfigError(f"{_flag(name)} alone says no speed-up; give --alpha or --report FILE too")
        return [], {}
    if args.draft_cost is None:
        raise ConfigError("--alpha needs --draft-cost; give time of one draft / time of a plain step, as 0.05")
    verify_cost = 1.0 if args.verify_cost is None else args.verify_cost
    return [Drafter(f"alpha {alpha:g}", alpha, args.draft_cost, verify_cost) for alpha in args.alpha], {}


def _roofline(args: argparse.Namespace) -> Roofline | None:
    given = [name for name in (*_DEVICE, "tokens", "kv_bytes") if getattr(args, name) is not None]
    missing = [name for name in _DEVICE if name not in given]
    if not given:
        return None
    if missing:
        raise ConfigError(f"{_flag(given[0])} needs {', '.join(map(_flag, missing))} too, for the roofline of a step")
    return theory.roofline(**{name: getattr(args, name) for name in given})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _print_drafters(console: Console, drafters: Sequence[Drafter], left_out: Mapping[str, str], limit: int) -> None:
    table = Table("drafts", title="by drafts a round (> best)", title_justify="left", box=SIMPLE_HEAD)
    for drafter in drafters:
        for heading in ("tokens", "speed-up"):
            table.add_column(f"{escape(drafter.name)}\n{heading}", justify="right")
    best = [drafter.best(limit) for drafter in drafters]
    for drafts in range(limit + 1):
        cells: list[Text] = []
        for drafter, chosen in zip(drafters, best, strict=True):
            mark, style = ("> ", "bold green") if drafts == chosen else ("", "")
            cells += [Text(f"{drafter.tokens(drafts):.2f}"), Text(f"{mark}{drafter.speedup(drafts):.2f}x", style)]
        table.add_row(str(drafts), *cells)
    console.print(table)
    for drafter, chosen in zip(drafters, best, strict=True):
        _say(console, f"{drafter.name}: {_best_line(drafter, chosen, limit)}")
        if drafter.measured:
            _say(console, f"{drafter.name}: {_measured_line(drafter)}")
    for name, reason in left_out.items():
        _say(console, f"{name}: left out, {reason}")
    _say(console, _formula_line(any(drafter.share < 1 for drafter in drafters)))


def _formula_line(shared: bool) -> str:
    tokens, cost, where = "(1 - alpha^(drafts + 1)) / (1 - alpha)", "drafts * draft cost + checking step", ""
    if shared:
        tokens, cost = f"1 + s * ({tokens} - 1)", f"1 + s * ({cost} - 1)"
        where = ", s the share of steps with drafts"
    return (
        f"tokens a step = {tokens}, speed-up = tokens / ({cost}){where}; "
        "assumes that alpha and the costs above do not change with the number of drafts"
    )


def _best_line(drafter: Drafter, best: int, limit: int) -> str:
    what = f"{best} drafts, {drafter.speedup(best):.2f} times" if best else "0 drafts: do not speculate"
    if best == limit:
        what += " (the most considered: raise --max-drafts to see more)"
    costs = f"alpha {drafter.alpha:.3g}, draft cost {drafter.draft_cost:.2g}, checking step {drafter.verify_cost:.3g}"
    if drafter.check_cost:
        costs += f" + {drafter.check_cost:.2g} a draft"
    if drafter.share < 1:
        costs += f", {100 * drafter.share:.0f} % of steps with drafts"
    return f"best: {what}; {costs}"


def _measured_line(drafter: Drafter) -> str:
    measured = drafter.measured
    assert measured is not None
    allowed = "" if measured.max_drafts is None else f" of {measured.max_drafts} allowed"
    speedup = "not known" if measured.speedup is None else f"{measured.speedup:.2f} times"
    predicted = drafter.speedup(measured.drafts)
    return f"measured: {speedup}, predicted: {predicted:.2f}, at {measured.drafts:.1f} drafts a round{allowed}"


def _print_roofline(console: Console, roofline: Roofline, tokens: int) -> None:
    table = Table(title="a step on the device", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("tokens", "memory ms", "compute ms", "waits for"):
        table.add_column(heading, justify="right")
    times = (f"{1000 * seconds:.3g}" for seconds in (roofline.memory_s, roofline.compute_s))
    table.add_row(f"{tokens:,}", *times, roofline.bound)
    console.print(table)
    _say(
        console,
        f"a step may hold {int(roofline.balance):,} tokens before computing takes longer than reading; each request "
        "puts its drafts and one more token into it. Attention and everything but weights and KV cache are left out",
    )


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False)
