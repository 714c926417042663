"""The routers' log: lines read, requests put together, and what is wrong with a file said by file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from staging_cases import EQUAL, exposure, outcome, write_lines

from vllm_specplug.compare.staging_log import StagingLog, read_staging_log
from vllm_specplug.compare.staging_split import check_split
from vllm_specplug.errors import CompareError

#: Two requests that are enough of a log.
BOTH = [exposure("a", "baseline"), outcome("a", "baseline"), exposure("b", "medusa"), outcome("b", "medusa")]


def read(tmp_path: Path, lines: list[dict[str, Any]], model: str | None = None) -> StagingLog:
    return read_staging_log([write_lines(tmp_path / "r-000001.jsonl", lines)], model)


def test_exposure_and_outcome_make_one_request(tmp_path: Path) -> None:
    log = read(tmp_path, BOTH)
    assert [(request.arm, request.by, request.failed, request.moved) for request in log.requests] == [
        ("baseline", "sticky", False, False),
        ("medusa", "sticky", False, False),
    ]
    assert log.requests[0].outcome is not None
    assert log.requests[0].outcome.e2e_s == 2.0
    assert (log.model, log.arms) == ("chat", ["baseline", "medusa"])
    assert log.counts["exposures"] == log.counts["outcomes"] == 2


def test_lines_of_a_request_may_stand_anywhere_in_any_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "r-000001.jsonl", [BOTH[1], BOTH[2]])
    write_lines(tmp_path / "r-000002.jsonl", [BOTH[3]])
    write_lines(tmp_path / "s-000001.jsonl", [BOTH[0]])
    (tmp_path / "notes.txt").write_text("not a log")
    log = read_staging_log([tmp_path])
    assert len(log.files) == 3
    assert all(request.outcome is not None for request in log.requests)


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "r.jsonl", BOTH)
    log = read_staging_log([file, tmp_path, tmp_path / "." / "r.jsonl"])
    assert log.counts["exposures"] == 2
    assert log.counts["duplicate_exposures"] == 0


def test_requests_are_in_the_order_they_came(tmp_path: Path) -> None:
    lines = [exposure("late", "medusa", time_s=20.0), exposure("early", "baseline", time_s=10.0)]
    assert [request.arm for request in read(tmp_path, lines).requests] == ["baseline", "medusa"]


def test_request_that_moved_on_stays_with_the_arm_it_was_drawn_for(tmp_path: Path) -> None:
    lines = [*BOTH, exposure("c", "baseline", time_s=1.0), exposure("c", "medusa", "moved", time_s=2.0)]
    request = read(tmp_path, [*lines, outcome("c", "medusa", num_moves=1)]).requests[0]
    assert (request.arm, request.by, request.randomised, request.moved) == ("baseline", "sticky", True, True)


def test_clock_that_goes_backwards_does_not_make_the_move_the_draw(tmp_path: Path) -> None:
    lines = [exposure("c", "baseline", time_s=5.0), exposure("c", "medusa", "moved", time_s=4.0)]
    request = read(tmp_path, [*BOTH, *lines, outcome("c", "medusa", num_moves=1)]).requests[0]
    assert (request.arm, request.by, request.stand_in) == ("baseline", "sticky", "medusa")


def test_line_that_moved_names_the_arm_of_a_draw_that_is_lost(tmp_path: Path) -> None:
    weights = {**EQUAL, "third": 1.0}
    moved = exposure("c", "medusa", "moved", time_s=1.0, weights=weights, instead_of="third", out=["third"])
    end = outcome("c", "medusa", num_moves=1)
    request = read(tmp_path, [*BOTH, moved, end]).requests[0]
    assert (request.arm, request.by, request.stand_in, request.was_out("third")) == ("third", "sticky", "medusa", True)
    # With a second move of which the log knows, the first one is lost: what it left was not its own arm.
    assert read(tmp_path, [*BOTH, moved, end | {"num_moves": 2}]).requests[0].by == "moved"
    # Within an arm, from one replica to another, forced requests move too.
    assert read(tmp_path, [*BOTH, moved | {"instead_of": "medusa"}, end]).requests[0].by == "moved"


def test_request_whose_arm_was_out_belongs_to_the_other_one_of_two(tmp_path: Path) -> None:
    moved = exposure("c", "medusa", "moved", unit=None, time_s=1.0)
    request = read(tmp_path, [*BOTH, moved, outcome("c", "medusa", num_moves=1)]).requests[0]
    assert (request.arm, request.by, request.moved) == ("baseline", "weight", True)


def test_of_three_arms_the_one_that_was_out_is_unknown(tmp_path: Path) -> None:
    weights = {**EQUAL, "third": 1.0}
    moved = exposure("c", "medusa", "moved", time_s=1.0, weights=weights)
    request = read(tmp_path, [*BOTH, moved]).requests[0]
    assert (request.arm, request.by, request.randomised) == ("medusa", "moved", False)
    drained = exposure("c", "medusa", "moved", time_s=1.0, weights={**EQUAL, "third": 0.0})
    assert read(tmp_path, [*BOTH, drained]).requests[0].arm == "baseline"


@pytest.mark.parametrize("by", ["forced", "shadow"])
def test_forced_and_shadow_requests_are_not_randomised(tmp_path: Path, by: str) -> None:
    request = read(tmp_path, [*BOTH, exposure("c", "medusa", by, time_s=1.0)]).requests[0]
    assert (request.by, request.randomised) == (by, False)


def test_client_that_goes_away_is_no_error(tmp_path: Path) -> None:
    ends = [
        outcome("c", "medusa", status=499, error="cancelled", ttft_s=None),
        outcome("d", "medusa", status=503, error="arm_died", ttft_s=None),
    ]
    lines = [exposure(name, "medusa", time_s=float(time)) for time, name in enumerate("cd")]
    found = read(tmp_path, [*BOTH, *lines, *ends]).requests[:2]
    assert [(request.failed, request.cancelled) for request in found] == [(False, True), (True, False)]


def test_what_does_not_fit_together_is_counted(tmp_path: Path) -> None:
    more = [exposure("a", "medusa"), outcome("a", "medusa"), outcome("gone", "medusa"), exposure("running", "medusa")]
    log = read(tmp_path, [*BOTH, *more])
    assert log.counts["duplicate_exposures"] == 1
    assert log.counts["duplicate_outcomes"] == 1
    assert log.counts["outcomes_without_exposure"] == 1
    assert sum(request.outcome is None for request in log.requests) == 1
    assert [request.arm for request in log.requests] == ["baseline", "medusa", "medusa"]  # the first of each counts


def test_torn_last_line_is_passed_over_and_counted(tmp_path: Path) -> None:
    for number, tail in enumerate(['{"schema": "specplug.st', '{"schema": "specplug.staging/1"}\xff{', "7"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "r.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in BOTH) + tail, encoding="latin-1")
        assert read_staging_log([path]).counts["torn"] == 1


def test_last_line_that_is_whole_but_for_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in BOTH))
    log = read_staging_log([path])
    assert (log.counts["torn"], log.counts["outcomes"]) == (0, 2)


def without(line: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != key}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); exp"),
        ("[]", "not a JSON object (a list); expected one on each line"),
        (json.dumps(BOTH[1]).replace("2.0", "NaN"), "not a JSON object (NaN is no number); expected one on each line"),
        (BOTH[0] | {"schema": "specplug.staging/2"}, "schema is 'specplug.staging/2', expected 'specplug.staging/1'"),
        (BOTH[0] | {"event": "begin"}, "event is 'begin', expected 'exposure' or 'outcome'"),
        (without(BOTH[0], "request_id"), "request_id is missing; expected a text"),
        (without(BOTH[0], "arm"), "arm is missing; expected a printable text"),
        (BOTH[0] | {"arm": ""}, "arm is '', expected a printable text"),
        (BOTH[0] | {"arm": "\x1b[31mred"}, "arm is '\\x1b[31mred', expected a printable text"),
        (BOTH[0] | {"model": "\ud800"}, "model is '\\ud800', expected a printable text"),
        (BOTH[0] | {"time_s": 1.8e12}, "time_s is 1800000000000.0, expected seconds since 1970"),
        (
            BOTH[0] | {"weights": {"a": 1e10}},
            "weights is {'a': 10000000000.0}, expected printable names of arms, each with",
        ),
        (BOTH[0] | {"out": "medusa"}, "out is 'medusa', expected a list of arms or null"),
        (BOTH[0] | {"instead_of": 1}, "instead_of is 1, expected a printable text or null"),
        (BOTH[1] | {"num_output_tokens": 10**10}, "num_output_tokens is 10000000000, expected a count up to 1e9"),
        (BOTH[1] | {"ttft_s": 3.0}, "ttft_s is 3.0, expected no more than e2e_s, which is 2.0"),
        ("[" * 100_000, "not a JSON object (nested too deep); expected one on each line"),
        (
            json.dumps(BOTH[1]).replace("2.0", "1e999"),
            "not a JSON object (1e999 is too large for a number); expected one on each line",
        ),
        (
            BOTH[0] | {"by": "chance"},
            "by is 'chance', expected one of 'weight', 'sticky', 'forced', 'moved', 'shadow'",
        ),
        (
            BOTH[0] | {"weights": {"a": -1}},
            "weights is {'a': -1}, expected printable names of arms, each with a number",
        ),
        (
            BOTH[0] | {"weights": {"a": 0}},
            "weights is {'a': 0}, expected printable names of arms, each with a number from 0 to 1e9",
        ),
        (BOTH[1] | {"e2e_s": None}, "e2e_s is None, expected seconds"),
        (BOTH[1] | {"num_output_tokens": 1.5}, "num_output_tokens is 1.5, expected a count up to 1e9 or null"),
        (BOTH[1] | {"ttft_s": -1}, "ttft_s is -1, expected seconds or null"),
    ],
)
def test_malformed_line_is_named_by_file_and_line(tmp_path: Path, line: Any, message: str) -> None:
    path = tmp_path / "r.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_text(f"{json.dumps(BOTH[0])}\n\n{text}\n{json.dumps(BOTH[1])}\n")
    with pytest.raises(CompareError) as caught:
        read_staging_log([path])
    assert str(caught.value).startswith(f"{path}:3: {message}")


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match=f"cannot read the log {tmp_path}/absent.jsonl: No such file"):
        read_staging_log([tmp_path / "absent.jsonl"])
    with pytest.raises(CompareError, match=f"{tmp_path} holds no \\*.jsonl; give the folder that routers write to"):
        read_staging_log([tmp_path])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(CompareError, match="no request is exposed to an arm; expected lines of a router"):
        read_staging_log([tmp_path])


def test_compressed_log_is_refused_with_the_command_that_unpacks_it(tmp_path: Path) -> None:
    text = "".join(json.dumps(line) + "\n" for line in BOTH).encode()
    file = tmp_path / "r.jsonl"
    for content, command in ((gzip.compress(text), "gunzip -k"), (bz2.compress(text), "bunzip2 -k")):
        file.write_bytes(content)
        with pytest.raises(CompareError) as caught:
            read_staging_log([tmp_path])
        assert str(caught.value) == f"{file} is compressed; unpack it first: {command} {file}"


def test_folder_never_loses_files_that_were_rotated_away(tmp_path: Path) -> None:
    write_lines(tmp_path / "r-000002.jsonl", BOTH)
    (tmp_path / "r-000001.jsonl.gz").write_bytes(b"")
    with pytest.raises(CompareError, match=r"also holds r-000001\.jsonl\.gz, which is not read; unpack or rename it"):
        read_staging_log([tmp_path])
    assert len(read_staging_log([tmp_path / "r-000002.jsonl"]).requests) == 2


def test_log_of_which_no_line_is_whole_says_so(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("\r".join(json.dumps(line) for line in BOTH))
    with pytest.raises(CompareError, match=r"exposed to an arm \(1 last lines without their end were passed over\)"):
        read_staging_log([tmp_path])


def test_of_several_models_one_has_to_be_named(tmp_path: Path) -> None:
    lines = [*BOTH, exposure("c", "medusa", model="code")]
    with pytest.raises(CompareError, match="the log is about 2 models, chat, code; name one with --model"):
        read(tmp_path, lines)
    assert [request.arm for request in read(tmp_path, lines, "code").requests] == ["medusa"]
    with pytest.raises(CompareError, match="the log has no requests for the model 'maths'; it has chat, code"):
        read(tmp_path, lines, "maths")


def test_log_without_draws_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="no request for 'chat' was drawn by weight, so that nothing can be compar"):
        read(tmp_path, [exposure("a", "medusa", "forced")])


# The split.


def split_of(tmp_path: Path, draws: list[tuple[str, str | None, dict[str, float]]]) -> Any:
    lines = [
        exposure(f"{place}", arm, "weight" if unit is None else "sticky", unit, weights=weights, time_s=float(place))
        for place, (arm, unit, weights) in enumerate(draws)
    ]
    log = read(tmp_path, lines)
    return check_split(log.requests, log.arms)


def test_split_by_hand(tmp_path: Path) -> None:
    # 60 and 40 of 100 at equal weights: chi2 = 10^2 / 50 + 10^2 / 50 = 4, one degree of freedom.
    found = split_of(tmp_path, [("baseline", None, EQUAL)] * 60 + [("medusa", None, EQUAL)] * 40)
    assert found.observed == {"baseline": 60, "medusa": 40}
    assert found.expected == {"baseline": 50.0, "medusa": 50.0}
    assert found.p_value == pytest.approx(0.0455003, rel=1e-5)
    assert not found.mismatch


def test_split_of_three_arms_is_pearson_s(tmp_path: Path) -> None:
    # 30, 10, 10 of 50 at 3 : 1 : 1 fit; 20, 20, 10 give 100 / 30 + 100 / 10 = 13.33, two degrees: exp(-13.33 / 2).
    weights = {"a": 3.0, "b": 1.0, "c": 1.0}
    fits = [(arm, None, weights) for arm, count in (("a", 30), ("b", 10), ("c", 10)) for _ in range(count)]
    assert split_of(tmp_path, fits).p_value == pytest.approx(1.0)
    off = [(arm, None, weights) for arm, count in (("a", 20), ("b", 20), ("c", 10)) for _ in range(count)]
    assert split_of(tmp_path, off).p_value == pytest.approx(0.0012726, rel=1e-4)


def test_split_follows_weights_that_change(tmp_path: Path) -> None:
    # 90 : 10 of a hundred, then 50 : 50 of another: 140 and 60 are expected, with variance 9 + 25 = 34.
    first, second = {"baseline": 0.9, "medusa": 0.1}, {"baseline": 5.0, "medusa": 5.0}
    draws = [("baseline", None, first)] * 90 + [("medusa", None, first)] * 10
    draws += [("baseline", None, second)] * 38 + [("medusa", None, second)] * 62
    found = split_of(tmp_path, draws)
    assert found.expected == pytest.approx({"baseline": 140.0, "medusa": 60.0})
    assert found.p_value == pytest.approx(math.erfc(12 / math.sqrt(2 * 34)))  # chi2 = 12^2 / 34


def test_a_user_is_drawn_once_however_many_requests(tmp_path: Path) -> None:
    draws = [("baseline", f"u{user}", EQUAL) for user in range(10)]
    draws += [("medusa", f"v{user}", EQUAL) for user in range(10)]
    found = split_of(tmp_path, draws + [("medusa", "v0", EQUAL)] * 500)
    assert found.observed == {"baseline": 10, "medusa": 10}
    assert found.p_value == pytest.approx(1.0)


def test_users_who_met_several_arms_are_counted(tmp_path: Path) -> None:
    draws = [("baseline", "u", EQUAL), ("medusa", "u", EQUAL), ("medusa", "v", EQUAL)]
    assert split_of(tmp_path, draws).units_in_several_arms == 1


def test_few_draws_tell_nothing_and_an_arm_of_no_weight_tells_all(tmp_path: Path) -> None:
    few = split_of(tmp_path, [("baseline", None, EQUAL)] * 9)
    assert few.p_value is None
    assert not few.mismatch
    none = {"baseline": 1.0, "medusa": 0.0}
    found = split_of(tmp_path, [("baseline", None, none)] * 50 + [("medusa", None, none)])
    assert found.mismatch


def test_lines_that_the_router_writes_are_read(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the router's lines need ray")
    from deploy.exposure import ExposureWriter
    from deploy.meters import Meters
    from deploy.record import Record, Subject
    from deploy.router_settings import ExposureLog

    writer = ExposureWriter(ExposureLog(directory=str(tmp_path)), "router-1")
    meters = Meters(["baseline", "medusa"])
    records = [
        Record(Subject(f"id-{number}", "chat", "chat", number > 0, "u" if number else None, "router-1"), writer, meters)
        for number in range(4)
    ]
    whole, streamed, moved, gone = records
    whole.exposed("baseline", "weight", EQUAL)
    whole.used({"prompt_tokens": 3, "completion_tokens": 7})
    whole.ended(200)
    streamed.exposed("medusa", "sticky", EQUAL)
    streamed.first_chunk()
    streamed.ended(500, "arm_failed")
    moved.exposed("baseline", "sticky", EQUAL)
    moved.exposed("medusa", "moved", EQUAL)
    moved.ended(200)
    gone.exposed("baseline", "forced", EQUAL)
    gone.cancelled()
    writer.close()
    found = {request.by + request.arm: request for request in read_staging_log([tmp_path]).requests}
    assert found["weightbaseline"].outcome is not None
    assert found["weightbaseline"].outcome.num_output_tokens == 7
    assert found["weightbaseline"].outcome.ttft_s is None
    assert found["stickymedusa"].failed
    assert found["stickymedusa"].outcome is not None
    assert found["stickymedusa"].outcome.ttft_s is not None
    assert (found["stickybaseline"].moved, found["stickybaseline"].failed) == (True, False)
    assert found["forcedbaseline"].cancelled
