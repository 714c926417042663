"""Goodput and cost against sums done by hand, and that they are shown only when asked for."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from endpoint_server import MODEL, Fake, no_proxy, serving
from test_compare_gate import checked
from test_compare_report import make_report

from vllm_specplug import cli
from vllm_specplug.compare import run
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.asked import Asked
from vllm_specplug.compare.cost import Price, cost_per_million_tokens, price_of
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.goodput import Slo, goodput, parse_slo
from vllm_specplug.compare.markdown import render_markdown
from vllm_specplug.compare.measure import Answer, Block
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report_format import validate
from vllm_specplug.compare.statistics import summarise
from vllm_specplug.compare.terminal import print_report
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError

__all__ = ["no_proxy"]  # a fixture
ASKED = Asked(parse_slo("ttft_ms<200,e2e_ms<1500"), Price(1.8, 2))


def block(category: str, seconds: float, *answers: tuple[int, float, float]) -> Block:
    """Answers of (tokens, ttft_s, e2e_s)."""
    found = tuple(
        Answer(f"{category}{index}", 0, tuple(range(tokens)), tokens, ttft_s, e2e_s, "stop")
        for index, (tokens, ttft_s, e2e_s) in enumerate(answers)
    )
    return Block(category, 0, seconds, found, None)


def test_goodput_is_what_meets_all_limits_by_hand() -> None:
    # First token below 0.2 s and all below 1.5 s: the first alone. 10 of 60 tokens in 4 s.
    blocks = [block("a", 4.0, (10, 0.1, 1.0), (20, 0.3, 1.0), (30, 0.1, 2.0))]
    found = goodput(blocks, parse_slo("ttft_ms<200,e2e_ms<1500"))
    assert found == pytest.approx({"share": 1 / 3, "output_tokens_per_s": 10 / 4})


def test_time_per_token_is_of_those_after_the_first() -> None:
    # 10 further tokens in 1 s: 100 ms each, which is not below 100.
    blocks = [block("a", 1.0, (11, 0.5, 1.5))]
    assert goodput(blocks, parse_slo("tpot_ms<100"))["share"] == 0  # type: ignore[index]
    assert goodput(blocks, parse_slo("tpot_ms<100.1"))["share"] == 1  # type: ignore[index]


def test_answer_of_one_token_has_no_time_per_token_to_miss() -> None:
    assert Slo(tpot_ms=1).met_by(0.5, None, 0.5)
    assert not Slo(ttft_ms=100, tpot_ms=1).met_by(0.5, None, 0.5)


def test_goodput_without_misses_is_the_speed_itself() -> None:
    blocks = [block("a", 3.0, (10, 0.1, 1.0)), block("b", 1.0, (40, 0.1, 1.0))]
    found = goodput(blocks, parse_slo("e2e_ms<5000"))
    assert found == pytest.approx({"share": 1.0, "output_tokens_per_s": summarise(blocks)["output_tokens_per_s"]})


def test_categories_weigh_the_same() -> None:
    # a: one of one is good; b: one of three, 10 of 40 tokens. Speeds 10 and 40: geometric mean 20.
    blocks = [block("a", 1.0, (10, 0.1, 1.0)), block("b", 1.0, (10, 0.1, 1.0), (10, 0.9, 1.0), (20, 0.9, 1.0))]
    found = goodput(blocks, parse_slo("ttft_ms<200"))
    assert found == pytest.approx({"share": (1 + 1 / 3) / 2, "output_tokens_per_s": 20 * (1 + 1 / 4) / 2})


def test_category_that_misses_everything_does_not_hide_the_others() -> None:
    blocks = [block("a", 1.0, (10, 0.1, 1.0)), block("b", 1.0, (10, 0.9, 1.0))]
    assert goodput(blocks, parse_slo("ttft_ms<200")) == pytest.approx({"share": 0.5, "output_tokens_per_s": 5.0})


def with_failures(made: Block, num_failed: int) -> Block:
    failed = tuple(Answer(f"f{index}", 0, (), None, 0.0, 0.0, None, "timeout: x") for index in range(num_failed))
    return replace(made, answers=made.answers + failed)


def test_request_that_failed_missed_its_slo_by_hand() -> None:
    # Of five requests two failed and one was slow: 2 of 5, and 30 of 60 tokens, in 3 s + 1 s.
    first = with_failures(block("a", 3.0, (10, 0.1, 1.0), (30, 0.9, 3.0)), 1)
    second = with_failures(block("a", 1.0, (20, 0.1, 1.0)), 1)
    found = goodput([first, second], parse_slo("ttft_ms<200"))
    assert found == pytest.approx({"share": 2 / 5, "output_tokens_per_s": 30 / 4})


def test_category_of_which_nothing_was_answered_counts_as_missed() -> None:
    # a: all good, at 10 tokens a second; b: both failed, so it has no speed, and shares of 0: half of 10.
    blocks = [block("a", 1.0, (10, 0.1, 1.0)), with_failures(block("b", 0.0), 2)]
    assert goodput(blocks, parse_slo("ttft_ms<200")) == pytest.approx({"share": 0.5, "output_tokens_per_s": 5.0})
    assert goodput(blocks[1:], parse_slo("ttft_ms<200")) == {"share": 0.0, "output_tokens_per_s": 0.0}


def test_goodput_of_an_endpoint_holds_what_its_speed_leaves_out(no_proxy: None) -> None:
    """Every fourth prompt of 16 fails in one arm, in both passes; no limit is missed by any that is answered."""
    prompts = tuple(Prompt(f"p{index}", f"c{index % 2}", f"text {index + 10}") for index in range(16))
    with serving(Fake()) as base, serving(Fake()) as other:
        other.spoilt = [[ord(char) % 100 for char in f"u:{prompt.text};"] for prompt in prompts[1::4]]
        report = run.run_compare(
            None,
            [Arm("base", endpoint=Endpoint(base.url, MODEL)), Arm("other", endpoint=Endpoint(other.url, MODEL))],
            Workload("made-up", "0" * 64, prompts),
            run.CompareSettings(max_tokens=4),
            baseline="base",
            extra=Asked(parse_slo("e2e_ms<60000")),
        )
    validate(report)
    found = report["results"]["other"]
    assert found["errors"]["failed"] == 8
    # All spoilt ones are of c1: 4 of its 8 prompts. Its speed is of the others, which all are good.
    assert found["categories"]["c1"]["goodput"]["share"] == 0.5
    assert found["categories"]["c0"]["goodput"]["share"] == 1.0
    assert found["overall"]["goodput"]["share"] == 0.75
    assert found["categories"]["c1"]["output_tokens"] == 2 * 4 * 4
    assert report["results"]["base"]["overall"]["goodput"]["share"] == 1.0


def test_slo_is_read_with_spaces_and_printed_in_one_order() -> None:
    slo = parse_slo(" e2e_ms < 5000 , ttft_ms<.5")
    assert slo == Slo(ttft_ms=0.5, e2e_ms=5000)
    assert str(slo) == "ttft_ms<0.5,e2e_ms<5000"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "SLO '': '' is not NAME<MILLISECONDS; expected for example 'ttft_ms<200,tpot_ms<30,e2e_ms<5000'"),
        ("ttft_ms>200", "SLO 'ttft_ms>200': 'ttft_ms>200' is not NAME<MILLISECONDS"),
        ("ttft_ms<200,", "SLO 'ttft_ms<200,': '' is not NAME<MILLISECONDS"),
        ("ttft_ms<-1", "SLO 'ttft_ms<-1': 'ttft_ms<-1' is not NAME<MILLISECONDS"),
        ("ttft_ms<nan", "SLO 'ttft_ms<nan': 'ttft_ms<nan' is not NAME<MILLISECONDS"),
        ("ttft<200", "SLO 'ttft<200': unknown time 'ttft'; there are: ttft_ms, tpot_ms, e2e_ms"),
        ("ttft_ms<1,ttft_ms<2", "SLO 'ttft_ms<1,ttft_ms<2': ttft_ms is limited twice; keep one of them"),
        ("ttft_ms<0", "SLO 'ttft_ms<0': nothing is below 0 ms; give ttft_ms a limit above 0"),
    ],
)
def test_slo_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompareError) as caught:
        parse_slo(text)
    assert str(caught.value).startswith(message)


def test_cost_of_a_million_tokens_by_hand() -> None:
    # 100 tokens a second are 360,000 an hour; two GPUs at 1.80 an hour: 3.60 for 0.36 million.
    assert cost_per_million_tokens(100.0, Price(1.8, 2)) == pytest.approx(10.0)
    assert cost_per_million_tokens(100.0, None) is None


@pytest.mark.parametrize(
    ("price", "gpus", "message"),
    [
        (0.0, None, "--gpu-hour-price is 0.0, expected a price above 0"),
        (float("nan"), None, "--gpu-hour-price is nan, expected a price above 0"),
        (1.0, 0, "--gpus is 0, expected 1 or more"),
        (None, 2, "--gpus 2 has no use without --gpu-hour-price; give a price or leave it out"),
    ],
)
def test_price_that_is_none_is_refused(price: float | None, gpus: int | None, message: str) -> None:
    with pytest.raises(CompareError) as caught:
        price_of(price, gpus)
    assert str(caught.value) == message


def shown(report: dict[str, Any]) -> tuple[str, str, str]:
    """In a terminal, as a page, as Markdown."""
    terminal = io.StringIO()
    print_report(report, terminal)
    return terminal.getvalue(), render_page(report), render_markdown(report)


def test_columns_are_in_all_tables_when_asked_for() -> None:
    # Every answer of the arm takes 1 s and meets both limits, at 12 tokens a second; those of the baseline take 2 s.
    report = make_report(asked=ASKED)
    validate(report)
    for text in shown(report):
        assert "goodput" in text
        assert "cost/M tok" in text
        assert "100 % · 12.0/s" in " ".join(text.split())
        assert "0 % · 0.0/s" in " ".join(text.split())
    cost = 3.6 / (3600 * 12) * 1e6
    assert report["results"]["arm"]["categories"]["maths"]["cost_per_million_tokens"] == pytest.approx(cost)
    assert "Goodput: requests that stay below all of ttft_ms<200,e2e_ms<1500" in notes(report)[-2]
    assert "Cost: of a million output tokens at 1.8 a GPU hour, 2 GPUs" in notes(report)[-1]


def test_columns_are_nowhere_when_not_asked_for() -> None:
    report = make_report()
    assert report["results"]["arm"]["overall"]["goodput"] is None
    assert report["results"]["arm"]["overall"]["cost_per_million_tokens"] is None
    for text in shown(report):
        assert "goodput" not in text.lower()
        assert "cost/M" not in text


def test_gates_know_them_and_say_what_to_add() -> None:
    asked = make_report(asked=ASKED)
    assert checked("arm.goodput.share < 0.99", asked).state == "passed"
    assert checked("arm.maths.cost_per_million_tokens > 0.9 * baseline", asked).state == "passed"
    missing = checked("arm.goodput.share < 0.99", make_report())
    assert missing.state == "error"
    assert missing.detail.endswith("is null: it was not asked for; add --slo")
    assert checked("arm.cost_per_million_tokens > 1", make_report()).detail.endswith("add --gpu-hour-price")


def test_bad_slo_ends_the_command_before_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_compare", lambda *args, **kwargs: pytest.fail("it measured"))
    assert cli.main(["compare", "--model", "m", "--arm", "b=null", "--slo", "ttft<1"]) == 2
    assert "unknown time 'ttft'" in capsys.readouterr().err


def test_accepted_drafts_behind_an_end_are_explained() -> None:
    # Of each of the arm's 12 answers 12 tokens in 4 steps: 96 came without a step, as many as vLLM counts. One more:
    report = make_report()
    assert not any("behind an answer's end" in line for line in notes(report))
    report["results"]["arm"]["overall"]["num_accepted_tokens"] += 3
    assert (
        "arm: vLLM counts 99 accepted drafts, the answers have 96 tokens more than steps: drafts behind an answer's "
        "end are accepted, then cut off (ends: 12 stop). Tokens/forward is of the latter."
    ) in notes(report)
