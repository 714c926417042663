"""Reports of `vllm bench serve` files: every number by hand, pairing, losslessness by text, and malformed files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_specplug import cli
from vllm_specplug.compare.asked import Asked
from vllm_specplug.compare.cost import Price
from vllm_specplug.compare.goodput import parse_slo
from vllm_specplug.compare.markdown import render_markdown
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.report_format import read_report, validate
from vllm_specplug.compare.sentences import sentences
from vllm_specplug.compare.vllm_bench import read_bench_result
from vllm_specplug.compare.vllm_bench_report import bench_report, parse_bench_arms
from vllm_specplug.errors import CompareError

NUM_REQUESTS = 8
#: What vLLM 0.32 wrote of 12 requests to a server of SmolLM2-135M, 2 at once; but for the tokenizer's path as it was.
REAL = Path(__file__).with_name("vllm_bench_0_32.json")


def bench_file(factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    """What vLLM 0.32 saves of eight requests of 11 tokens each; `factor` times as long as 0.1 s and ten steps of 0.1 s.

    With drafts an entry of `itls` is a step, not a token: here ten tokens come in five steps.
    """
    ttft, steps = 0.1 * factor, [0.2 * factor] * 5
    return {
        "date": "20260131-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "models/target",
        "tokenizer_id": "models/target",
        "num_prompts": NUM_REQUESTS,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 2,
        "duration": 4.0 * factor,
        "completed": NUM_REQUESTS,
        "failed": 0,
        "total_input_tokens": 36,
        "total_output_tokens": 88,
        "input_lens": list(range(1, NUM_REQUESTS + 1)),
        "output_lens": [11] * NUM_REQUESTS,
        "ttfts": [ttft] * NUM_REQUESTS,
        "itls": [steps] * NUM_REQUESTS,
        "latencies": [ttft + sum(steps)] * NUM_REQUESTS,
        "start_times": [float(index) for index in range(NUM_REQUESTS)],
        "generated_texts": [f"answer {index}" for index in range(NUM_REQUESTS)],
        "errors": [""] * NUM_REQUESTS,
        **changes,
    }


DRAFTS = {
    "spec_decode_acceptance_rate": 60.0,  # vLLM's is in per cent
    "spec_decode_acceptance_length": 2.2,
    "spec_decode_num_drafts": 40,
    "spec_decode_draft_tokens": 80,
    "spec_decode_accepted_tokens": 48,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.4],
}


def report_of(tmp_path: Path, *files: Any, asked: Asked | None = None) -> dict[str, Any]:
    """The first file is that of `plain`, the others are `arm1`, `arm2`, ..."""
    names = ["plain", *(f"arm{index}" for index in range(1, len(files)))]
    arms = []
    for name, file in zip(names, files, strict=True):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(file))
        arms.append(f"{name}={path}")
    report = bench_report(parse_bench_arms(arms), *([] if asked is None else [asked]))
    validate(report)
    return report


def test_numbers_of_a_file_by_hand(tmp_path: Path) -> None:
    # Eight requests of 11 tokens in 1.1 s: 10 tokens a second. Ten further tokens in 1 s.
    overall = report_of(tmp_path, bench_file(), bench_file(0.5))["results"]["plain"]["overall"]
    assert (overall["requests"], overall["failed"], overall["output_tokens"]) == (8, 0, 88)
    assert overall["output_tokens_per_s"] == pytest.approx(10.0)
    assert overall["throughput_tokens_per_s"] == pytest.approx(88 / 4)
    assert overall["ttft_ms"] == pytest.approx({"p50": 100, "p90": 100, "p99": 100})
    assert overall["tpot_ms"] == pytest.approx({"p50": 100, "p90": 100, "p99": 100})
    assert overall["e2e_ms"] == pytest.approx({"p50": 1100, "p90": 1100, "p99": 1100})


def test_file_without_latencies_has_them_from_its_steps(tmp_path: Path) -> None:
    older = bench_file()
    del older["latencies"]
    report = report_of(tmp_path, older, bench_file())
    assert report["results"]["plain"]["overall"]["e2e_ms"]["p50"] == pytest.approx(1100)
    assert report["comparisons"][0]["ratio"] == pytest.approx(1.0)


def test_same_prompts_are_paired_and_a_faster_arm_is_found(tmp_path: Path) -> None:
    report = report_of(tmp_path, bench_file(), bench_file(0.5), bench_file())
    faster, same = report["comparisons"]
    assert (faster["paired"], faster["ratio"], faster["verdict"]) == (True, pytest.approx(2.0), "faster")
    assert faster["wilcoxon"]["pairs"] == NUM_REQUESTS
    assert same["verdict"] == "no difference"
    assert any(line.startswith("arm1: paired with plain by place") for line in notes(report))


def test_other_prompts_are_not_paired_and_answers_not_compared(tmp_path: Path) -> None:
    other = bench_file(0.5, input_lens=list(range(NUM_REQUESTS, 0, -1)))
    report = report_of(tmp_path, bench_file(), other)
    comparison = report["comparisons"][0]
    assert (comparison["paired"], comparison["wilcoxon"], comparison["resampled"]) == (False, None, "requests")
    assert comparison["ratio"] == pytest.approx(2.0)
    assert comparison["verdict"] == "faster"
    assert report["lossless"]["arm1"] is None
    assert any(line.startswith("arm1: not paired") for line in notes(report))
    assert not any("token ids" in line for line in notes(report))


def test_samples_of_different_sizes_are_compared(tmp_path: Path) -> None:
    lists = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "generated_texts", "errors")
    shorter = {key: value[:6] if key in lists else value for key, value in bench_file().items()}
    report = report_of(tmp_path, bench_file(), {**shorter, "num_prompts": 6})
    assert report["comparisons"][0]["paired"] is False
    assert "NOT COMPARABLE: arm1: num_prompts is 6, that of plain 8." in notes(report)


def test_prompts_of_one_length_are_paired_only_where_an_answer_is_the_same(tmp_path: Path) -> None:
    lengths = {"input_lens": [7] * NUM_REQUESTS}
    others = [f"another {index}" for index in range(NUM_REQUESTS)]
    report = report_of(
        tmp_path, bench_file(**lengths), bench_file(**lengths), bench_file(**lengths, generated_texts=others)
    )
    assert [comparison["paired"] for comparison in report["comparisons"]] == [True, False]


def test_answers_are_compared_as_texts_without_near_ties(tmp_path: Path) -> None:
    texts = [f"answer {index}" for index in range(NUM_REQUESTS)]
    texts[3] = "something else"
    report = report_of(tmp_path, bench_file(), bench_file(generated_texts=texts))
    entry = report["lossless"]["arm1"]
    assert (entry["prompts"], entry["identical"], entry["near_ties"], entry["different"]) == (8, 7, 0, 1)
    assert "arm1: 1 answers differ from plain." in notes(report)
    assert "Whether rounding explains a difference cannot be told from texts." in render_page(report)


def test_failed_requests_are_left_out_of_both_arms_and_counted(tmp_path: Path) -> None:
    broken = bench_file()
    broken["errors"][0], broken["output_lens"][0], broken["generated_texts"][0] = "Traceback\nTimeoutError", 0, ""
    broken["ttfts"][0], broken["itls"][0], broken["latencies"][0] = 0.0, [], 0.0
    report = report_of(tmp_path, bench_file(), broken, asked=Asked(parse_slo("e2e_ms<9999")))
    assert report["results"]["arm1"]["overall"]["failed"] == 1
    assert report["results"]["arm1"]["overall"]["goodput"]["share"] == pytest.approx(7 / 8)
    assert report["comparisons"][0]["prompts"] == 7
    assert report["lossless"]["arm1"]["identical"] == report["lossless"]["arm1"]["prompts"] == 7
    assert "arm1: 1 of 8 requests failed and are left out." in notes(report)


def test_acceptance_is_null_unless_the_file_has_it(tmp_path: Path) -> None:
    results = report_of(tmp_path, bench_file(), bench_file(**DRAFTS))["results"]
    plain, drafting = results["plain"]["overall"], results["arm1"]["overall"]
    assert plain["acceptance_rate"] is plain["num_drafts"] is plain["tokens_per_forward"] is None
    assert drafting["acceptance_rate"] == pytest.approx(48 / 80)
    assert drafting["acceptance_length"] == pytest.approx(1 + 48 / 40)
    assert drafting["acceptance_per_position"] == [0.8, 0.4]
    assert (drafting["num_drafts"], drafting["num_draft_tokens"], drafting["num_accepted_tokens"]) == (40, 80, 48)
    assert drafting["tokens_per_forward"] is drafting["num_emitted_accepted_tokens"] is None


def test_goodput_and_cost_are_of_the_whole_server(tmp_path: Path) -> None:
    # 88 tokens in 4 s are 22 a second, 79,200 an hour for 2.
    asked = Asked(parse_slo("tpot_ms<100.5"), Price(2.0))
    overall = report_of(tmp_path, bench_file(), bench_file(2.0), asked=asked)["results"]
    plain, slow = overall["plain"]["overall"], overall["arm1"]["overall"]
    assert plain["goodput"] == pytest.approx({"share": 1.0, "output_tokens_per_s": 22.0})
    assert slow["goodput"] == {"share": 0.0, "output_tokens_per_s": 0.0}
    assert plain["cost_per_million_tokens"] == pytest.approx(2 / 79_200 * 1e6)


def test_other_traffic_is_said(tmp_path: Path) -> None:
    report = report_of(tmp_path, bench_file(), bench_file(request_rate=4.0, model_id="another"))
    assert "NOT COMPARABLE: arm1: request_rate is 4.0, that of plain inf." in notes(report)
    assert "NOT COMPARABLE: arm1: model_id is another, that of plain models/target." in notes(report)
    assert sentences(report) == [
        "arm1 is not recommended: model_id is another, that of plain models/target; request_rate is 4.0, that of plain "
        "inf.",
        "No arm is left to take the place of plain.",
    ]


def test_recommendation_says_that_the_arms_did_not_take_turns(tmp_path: Path) -> None:
    found = sentences(report_of(tmp_path, bench_file(), bench_file(0.5)))
    assert found == [
        "Ship arm1.",
        "Before you ship arm1: the arms were measured one after the other, so what drifted in between is in the ratio.",
    ]


def test_file_against_itself_recommends_nothing(tmp_path: Path) -> None:
    assert sentences(report_of(tmp_path, bench_file(), bench_file())) == [
        "No recommendation: plain was compared with itself alone."
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ttfts": None}, "{path}: ttfts is None, expected a list with an entry for each request"),
        ({"ttfts": []}, "{path}: ttfts is [], expected a list with an entry for each request"),
        ({"ttfts": [0.1]}, "{path}: ttfts has 1 entries, input_lens 8; expected as many"),
        ({"ttfts": ["x"] * 8}, "{path}: ttfts[0] is 'x', expected seconds"),
        ({"ttfts": [-1.0] * 8}, "{path}: ttfts[0] is -1.0, expected seconds"),
        ({"itls": [0.1] * 8}, "{path}: itls[0] is 0.1, expected a list of seconds"),
        ({"output_lens": [1.5] * 8}, "{path}: output_lens[0] is 1.5, expected a count"),
        ({"latencies": [1.0]}, "{path}: latencies is [1.0], expected 8 times in seconds"),
        ({"duration": 0}, "{path}: duration is 0, expected a number of seconds above 0"),
        ({**DRAFTS, "spec_decode_num_drafts": "x"}, "{path}: spec_decode_num_drafts is 'x', expected a count"),
    ],
)
def test_malformed_file_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(bench_file(**change)))
    with pytest.raises(CompareError) as caught:
        read_bench_result(path)
    assert str(caught.value) == message.format(path=path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "{path} is not one JSON object (Expecting property name"),
        (
            "{}\n{}",
            "{path} is not one JSON object (Extra data: line 2 column 1 (char 3)); it may be cut short, or hold ",
        ),
        ("[]", "{path} holds a list, expected an object that vllm bench serve --save-result --save-detailed wrote"),
        ('{"duration": 1}', "{path}: input_lens is missing; expected a file of vllm bench serve --save-result --save-"),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(CompareError) as caught:
        read_bench_result(path)
    assert str(caught.value).startswith(message.replace("{path}", str(path)))


def test_file_in_which_everything_failed_is_refused(tmp_path: Path) -> None:
    failed = bench_file(errors=["Traceback ...\nConnectionError: no"] * 8, output_lens=[0] * 8)
    with pytest.raises(CompareError, match=r"arm1\.json: no request was answered \(ConnectionError: no\); measure"):
        report_of(tmp_path, bench_file(), failed)


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (["a.json", "b=b.json"], "'a.json' is not NAME=FILE; expected for example 'baseline=plain.json'"),
        (["a=a.json"], "--from-vllm-bench got one file; give two or more, the baseline first"),
        (["a=a.json", "a=b.json"], "arm name 'a' is used 2 times; names must differ"),
        (["a=missing.json", "b=b.json"], "cannot read missing.json: No such file or directory"),
    ],
)
def test_arms_that_cannot_be_meant_are_refused(arms: list[str], message: str) -> None:
    with pytest.raises(CompareError) as caught:
        parse_bench_arms(arms)
    assert str(caught.value) == message


def test_command_writes_gates_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, factor in (("plain", 1.0), ("medusa", 0.5)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(bench_file(factor)))
        files.append(f"{name}={path}")
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    command = ["report", "--from-vllm-bench", *files, "--out", str(out), "--html", str(page), "--slo", "ttft_ms<99"]
    assert cli.main([*command, "--fail-if", "medusa.goodput.share < 1", "--fail-if", "medusa.ratio < 1.5"]) == 0
    shown = capsys.readouterr().out
    assert "2.00x (2.00 to 2.00)" in shown
    assert "100 % · 44.0/s" in shown  # 88 tokens in 2 s
    assert "NOT COMPARABLE" not in shown
    assert "All engines were alive" not in page.read_text()
    assert "medusa.json&quot;" in page.read_text()
    written = read_report(out)
    assert written["provenance"]["started_at"] == "2026-01-31T12:00:00"
    # The report that was written is one like any other.
    assert cli.main(["report", str(out), "--fail-if", "medusa.ratio > 1.5"]) == 1


def test_unpaired_report_is_shown_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = bench_file(0.5, input_lens=list(range(NUM_REQUESTS, 0, -1)))
    files = []
    for name, file in (("plain", bench_file()), ("other", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(file))
        files.append(f"{name}={tmp_path / name}.json")
    outputs = ["--html", str(tmp_path / "h"), "--markdown", str(tmp_path / "m"), "--junit", str(tmp_path / "j")]
    assert cli.main(["report", "--from-vllm-bench", *files, *outputs, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lossless"] == {"other": None}
    assert cli.main(["report", "--from-vllm-bench", *files, "--fail-if", "other.lossless.different > 0"]) == 2


def test_options_of_one_kind_of_report_are_refused_with_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report"]) == 2
    assert "no report is given; name files" in capsys.readouterr().err
    assert cli.main(["report", "r.json", "--slo", "ttft_ms<1"]) == 2
    assert "which takes --from-vllm-bench" in capsys.readouterr().err
    assert cli.main(["report", "r.json", "--from-vllm-bench", "a=b", "c=d"]) == 2
    assert "'r.json' is no NAME=FILE; give reports or --from-vllm-bench, not both" in capsys.readouterr().err


def test_text_of_a_file_is_escaped(tmp_path: Path) -> None:
    evil = bench_file(model_id="<script>alert(1)</script>")
    report = report_of(tmp_path, evil, copy.deepcopy(evil))
    assert "<script>alert" not in render_page(report)
    assert "<script>" not in render_markdown(report).split("<details>")[0]


def test_real_file_gives_the_numbers_that_the_bench_computed_itself() -> None:
    said = json.loads(REAL.read_text())
    report = bench_report(parse_bench_arms([f"plain={REAL}", f"again={REAL}"]))
    validate(report)
    overall = report["results"]["plain"]["overall"]
    assert (overall["requests"], overall["failed"], overall["output_tokens"]) == (12, 0, said["total_output_tokens"])
    assert overall["throughput_tokens_per_s"] == pytest.approx(said["output_throughput"])
    for ours, theirs in (("p50", "median"), ("p99", "p99")):
        for key in ("ttft_ms", "tpot_ms"):
            assert overall[key][ours] == pytest.approx(said[f"{theirs}_{key}"])
    assert overall["num_drafts"] is None
    assert sentences(report) == ["No recommendation: plain was compared with itself alone."]
