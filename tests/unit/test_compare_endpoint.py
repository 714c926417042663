"""Running endpoints as arms, over real HTTP: what is asked, what is measured, and every way to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from endpoint_server import MODEL, Fake, closed_port, counters, no_proxy, ordinary, serving

from vllm_specplug.cli import main
from vllm_specplug.compare.arms import Arm, parse_arm, without_secrets
from vllm_specplug.compare.endpoint import MAX_FAILED_IN_A_ROW, EndpointArm, EndpointSettings
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.endpoint_http import Http
from vllm_specplug.compare.measure import UNKNOWN_TOKEN
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report_format import validate
from vllm_specplug.compare.run import CompareSettings, run_compare
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError, EndpointError

__all__ = ["no_proxy"]  # a fixture

QUICK = EndpointSettings(timeout_s=20)  # of a machine that does much else
SETTINGS = CompareSettings(max_tokens=6)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake()) as one:
        yield one


@pytest.fixture
def two() -> Iterator[tuple[Fake, Fake]]:
    with ExitStack() as stack:
        yield stack.enter_context(serving(Fake())), stack.enter_context(serving(Fake()))


def arm_of(fake: Fake, name: str = "staging", **more: Any) -> Arm:
    return Arm(name, endpoint=Endpoint(fake.url, MODEL, **more))


def started(fake: Fake, settings: EndpointSettings = QUICK, **more: Any) -> EndpointArm:
    arm = EndpointArm(arm_of(fake, **more), settings)
    arm.request("start")
    fake.bodies.clear()
    fake.headers.clear()
    return arm


def one_answer(arm: EndpointArm, prompt: tuple[int, ...] = (1, 2), max_tokens: int = 4) -> dict[str, Any]:
    found = arm.request("generate", prompts=[list(prompt)], max_tokens=[max_tokens])
    output: dict[str, Any] = found["outputs"][0]
    return output


def workload(num_prompts: int = 6) -> Workload:
    prompts = [Prompt(f"p{index}", f"c{index % 2}", f"text {index}") for index in range(num_prompts)]
    return Workload("made-up", "0" * 64, tuple(prompts))


def compared(base: Fake, other: Fake, *, num_prompts: int = 6, **settings: Any) -> dict[str, Any]:
    report = run_compare(
        None,
        [arm_of(base, "base"), arm_of(other, "other")],
        workload(num_prompts),
        CompareSettings(**{"max_tokens": 6, **settings}),
        baseline="base",
        endpoint_settings=QUICK,
    )
    validate(json.loads(json.dumps(report, allow_nan=False)))
    render_page(report)
    return report


# What is asked and measured


def test_prompts_go_as_token_ids_and_answers_come_as_token_ids(fake: Fake) -> None:
    output = one_answer(started(fake), (1, 2))
    assert fake.bodies[0]["prompt"] == [1, 2]
    assert output["token_ids"] == [3, 4, 5, 6]
    assert output["finish_reason"] == "length"
    assert 0 < output["ttft_s"] <= output["e2e_s"]


def test_request_is_greedy_counted_and_finds_no_past_of_its_own(fake: Fake) -> None:
    arm = started(fake)
    one_answer(arm)
    one_answer(arm)
    first, second = fake.bodies
    assert first["temperature"] == 0
    assert first["repetition_penalty"] == 1
    assert first["max_tokens"] == 4
    assert first["stream_options"] == {"include_usage": True}
    assert first["cache_salt"] != second["cache_salt"]


def test_chunk_with_two_tokens_is_one_forward(fake: Fake) -> None:
    fake.chunks = lambda prompt, max_tokens: [[1], [2, 3], [4]]
    output = one_answer(started(fake))
    assert output["token_ids"] == [1, 2, 3, 4]
    assert output["num_forwards"] == 3


@pytest.mark.parametrize("change", [{"version": None}, {"owned_by": "proxy"}])
def test_forwards_are_unknown_where_the_server_is_not_known_to_be_vllm(fake: Fake, change: dict[str, Any]) -> None:
    for name, value in change.items():
        setattr(fake, name, value)
    fake.counters = counters(speculating=True)
    arm = started(fake)
    found = arm.request("generate", prompts=[[1, 2]], max_tokens=[4])
    assert found["outputs"][0]["num_forwards"] is None
    assert found["outputs"][0]["token_ids"] == [3, 4, 5, 6]
    assert found["counts"] is None
    assert "cache_salt" not in fake.bodies[0]


def test_line_separator_in_a_text_does_not_end_an_event(fake: Fake) -> None:
    output = one_answer(started(fake), (48,))
    assert output["token_ids"] == [49, 50, 51, 52]
    assert "\u2028" in output["text"]


def test_prompts_of_a_block_are_answered_at_once_and_stay_in_order(fake: Fake) -> None:
    arm = started(fake)
    found = arm.request("generate", prompts=[[10], [20], [30]], max_tokens=[1, 2, 3])
    assert [output["token_ids"] for output in found["outputs"]] == [[11], [21, 22], [31, 32, 33]]
    assert found["seconds"] == max(output["e2e_s"] for output in found["outputs"])


def test_counts_are_those_of_the_block(fake: Fake) -> None:
    fake.counters = counters(speculating=True)
    fake.chunks = lambda prompt, max_tokens: [[1], [2, 3], [4, 5]]
    found = started(fake).request("generate", prompts=[[1], [2]], max_tokens=[5, 5])
    counts = found["counts"]
    assert (counts["num_drafts"], counts["num_draft_tokens"], counts["num_accepted_tokens"]) == (6, 12, 4)
    assert counts["accepted_per_position"] == [4, 0]
    assert (counts["num_steps"], counts["draft_s"]) == (0, 0.0)


def test_counts_are_null_without_speculation_and_where_others_use_the_server(fake: Fake) -> None:
    fake.counters = counters(speculating=False)
    arm = started(fake)
    assert arm.request("generate", prompts=[[1]], max_tokens=[4])["counts"] is None
    fake.counters = counters(speculating=True)

    def meanwhile(prompt: list[int], max_tokens: int) -> list[list[int]]:
        assert fake.counters is not None
        fake.counters["vllm:generation_tokens_total"] += 9  # somebody else's answer
        return ordinary(prompt, max_tokens)

    fake.chunks = meanwhile
    assert arm.request("generate", prompts=[[1]], max_tokens=[4])["counts"] is None


def test_usage_counts_the_tokens_where_no_ids_are_told(fake: Fake) -> None:
    fake.tells_ids = False
    output = one_answer(started(fake))
    assert output["token_ids"] == [UNKNOWN_TOKEN] * 4
    assert output["num_forwards"] is None


def test_ids_count_the_tokens_where_no_usage_is_told(fake: Fake) -> None:
    fake.tells_usage = False
    assert one_answer(started(fake))["token_ids"] == [3, 4, 5, 6]


def test_server_that_refuses_what_is_not_openais_is_asked_without_it(fake: Fake) -> None:
    fake.strict, fake.owned_by = True, "someone"
    output = one_answer(started(fake))
    assert output["token_ids"] == [UNKNOWN_TOKEN] * 4
    assert "return_token_ids" not in fake.bodies[0]


def test_log_probabilities_are_by_token_id_and_missing_ones_are_none(fake: Fake) -> None:
    arm = started(fake)
    found = arm.request("logprobs", prefixes=[[1, 2]], candidates=[[3, 9]])
    assert found == [{"candidates": [0.0, None], "best": 0.0}]
    fake.chunks = lambda prompt, max_tokens: []
    fake.always = "500"
    assert arm.request("logprobs", prefixes=[[1, 2]], candidates=[[3, 9]])[0]["candidates"] == [None, None]


def test_chat_template_of_the_server_makes_the_tokens_else_the_plain_text(fake: Fake) -> None:
    chats = {"p": [{"role": "user", "content": "ab"}]}
    with_template = started(fake).request("tokenize", chats=chats)
    assert with_template == {"p": [ord(character) % 100 for character in "u:ab;"]}
    fake.has_template = False
    assert started(fake).request("tokenize", chats=chats) == {"p": [ord(character) % 100 for character in "ab"]}


# Before measuring: one clear error


def test_nothing_that_listens_is_said(fake: Fake) -> None:
    fake.url = f"http://127.0.0.1:{closed_port()}/v1"
    with pytest.raises(CompareError, match=r"^arm 'staging': http://127.*/v1/models: nothing listens there; is the"):
        started(fake)


def test_host_without_a_name_is_said(fake: Fake) -> None:
    fake.url = "http://no-such-host.invalid/v1"
    with pytest.raises(CompareError, match="the host's name is not known; is the address right"):
        started(fake, EndpointSettings(timeout_s=5))


def test_tls_where_there_is_none_is_said(fake: Fake) -> None:
    fake.url = fake.url.replace("http:", "https:")
    with pytest.raises(CompareError, match="TLS failed; does it speak https"):
        started(fake)


def test_wrong_key_is_said_and_not_repeated(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.key = "right"
    monkeypatch.setenv("STAGING_KEY", "secret-and-wrong")
    with pytest.raises(CompareError, match=r"answered 401: .*is the key in 'api_key_env' right") as caught:
        started(fake, api_key_env="STAGING_KEY")
    assert "secret-and-wrong" not in str(caught.value)
    monkeypatch.setenv("STAGING_KEY", "right")
    assert one_answer(started(fake, api_key_env="STAGING_KEY"))["token_ids"]


def test_missing_key_is_said_by_its_variable(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGING_KEY", raising=False)
    with pytest.raises(CompareError, match="arm 'staging': the environment variable 'STAGING_KEY' should hold the key"):
        started(fake, api_key_env="STAGING_KEY")


def test_unknown_model_is_said_with_those_there_are(fake: Fake) -> None:
    arm = EndpointArm(Arm("staging", endpoint=Endpoint(fake.url, "tniy")), QUICK)
    with pytest.raises(CompareError, match="does not list the model 'tniy'; it lists 'tiny'"):
        arm.request("start")


def test_address_without_v1_is_said(fake: Fake) -> None:
    fake.url = fake.url.removesuffix("/v1")
    with pytest.raises(CompareError, match=r"answered 404: .*; should the address end in /v1\?"):
        started(fake)


def test_server_without_tokenizer_asks_for_one(fake: Fake) -> None:
    fake.has_tokenize = False
    with pytest.raises(CompareError, match="/tokenize is not there; name the model's tokenizer with --tokenizer"):
        started(fake)
    with pytest.raises(CompareError, match="the tokenizer '/nowhere' cannot be loaded"):
        started(fake, EndpointSettings(20, "/nowhere"))


def test_answer_that_cannot_be_counted_is_refused(fake: Fake) -> None:
    fake.tells_ids = fake.tells_usage = False
    with pytest.raises(CompareError, match="neither token ids nor usage"):
        started(fake)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_timeout_must_be_a_time(timeout_s: float) -> None:
    with pytest.raises(CompareError, match="--timeout-s is"):
        EndpointSettings(timeout_s)


def test_arms_with_different_tokenizers_are_refused_with_both(two: tuple[Fake, Fake]) -> None:
    two[1].shift = 1
    with pytest.raises(CompareError, match="arms 'base' and 'other' make different tokens of prompt 'p0': at token 0"):
        compared(*two)


def test_failure_before_the_measurement_ends_the_run(two: tuple[Fake, Fake]) -> None:
    two[1].faults = ["", "500"]  # the first one looks whether it answers at all
    with pytest.raises(CompareError, match="arm 'other': a request before the measurement failed: http_500"):
        compared(*two)


def test_own_engine_without_a_model_is_refused_before_any_starts(fake: Fake) -> None:
    with pytest.raises(CompareError, match="arm 'baseline' is an engine of our own, which needs --model; or name"):
        run_compare(None, [arm_of(fake)], workload(), SETTINGS)


# While measuring: counted by kind


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("500", "http_500"),
        ("429", "http_429"),
        ("cut", "stopped"),
        ("ends early", "stopped"),
        ("broken", "malformed"),
        ("error", "server"),
        ("wrong count", "malformed"),
    ],
)
def test_failed_request_is_an_error_of_its_kind_and_the_next_is_answered(fake: Fake, fault: str, kind: str) -> None:
    arm = started(fake)
    fake.faults = [fault]
    output = one_answer(arm)
    assert output["error"].partition(":")[0] == kind
    assert output["token_ids"] == []
    assert one_answer(arm)["token_ids"] == [3, 4, 5, 6]


@pytest.mark.parametrize("fault", ["slow", "silent"])
def test_no_token_for_too_long_is_a_timeout_whatever_else_comes(fake: Fake, fault: str) -> None:
    fake.always = fault
    http = Http(Endpoint(fake.url, MODEL), timeout_s=0.2)
    with pytest.raises(EndpointError, match="--timeout-s") as caught:
        list(http.stream(f"{fake.url}/completions", {"prompt": [1], "max_tokens": 4, "stream": True}))
    assert caught.value.kind == "timeout"


def test_server_that_went_away_is_an_error_of_the_request() -> None:
    with serving(Fake()) as fake:
        arm = started(fake)
    assert one_answer(arm)["error"].partition(":")[0] in ("refused", "stopped")
    assert one_answer(arm)["error"].startswith("refused:")


def test_answer_without_a_token_is_an_error(fake: Fake) -> None:
    arm = started(fake)
    fake.chunks = lambda prompt, max_tokens: [[]]
    assert one_answer(arm)["error"].startswith("no_tokens:")


def test_dead_endpoint_is_not_asked_forever(fake: Fake) -> None:
    arm = started(fake)
    fake.always = "500"
    kinds = [one_answer(arm)["error"].partition(":")[0] for _ in range(MAX_FAILED_IN_A_ROW + 2)]
    assert kinds == ["http_500"] * MAX_FAILED_IN_A_ROW + ["given_up"] * 2
    assert len(fake.bodies) == MAX_FAILED_IN_A_ROW


def spoil(fake: Fake, *texts: str) -> None:
    """Let all answers to these prompts fail; they must not be among those that warm up, the shortest and longest."""
    fake.spoilt = [[ord(character) % 100 for character in f"u:{text};"] for text in texts]


def test_failed_prompt_is_left_out_of_both_arms_and_said(two: tuple[Fake, Fake]) -> None:
    base, other = two
    spoil(other, "text 12")
    report = compared(base, other, num_prompts=22)
    errors = report["results"]["other"]["errors"]
    assert errors["kinds"] == {"http_500": 2}
    assert (errors["requests"], errors["failed"], errors["prompts_left_out"]) == (44, 2, ["p12"])
    assert report["results"]["other"]["overall"]["prompts"] == 21
    assert report["results"]["base"]["overall"]["prompts"] == 22
    assert report["comparisons"][0]["prompts"] == 21
    assert report["comparisons"][0]["undecided_reason"] is None
    assert report["lossless"]["other"]["prompts"] == report["lossless"]["other"]["identical"] == 21
    said = [line for line in notes(report) if line.startswith("other: 2 of 44 requests failed (http_500 2)")]
    assert "without 1 prompts. The first: http_500: " in said[0]


def test_failed_request_spoils_the_time_of_its_whole_block(two: tuple[Fake, Fake]) -> None:
    base, other = two
    spoil(other, "text 12")
    report = compared(base, other, num_prompts=22, batch_size=2)
    assert report["results"]["other"]["errors"]["prompts_left_out"] == ["p12", "p14"]
    assert report["comparisons"][0]["prompts"] == 20


@pytest.mark.parametrize("culprit", ["base", "other"])
def test_arm_with_over_five_per_cent_of_errors_gets_no_verdict(two: tuple[Fake, Fake], culprit: str) -> None:
    base, other = two
    spoil(base if culprit == "base" else other, "text 11", "text 12", "text 13")
    report = compared(base, other, num_prompts=22)
    comparison = report["comparisons"][0]
    assert comparison["verdict"] == "undecided"
    assert {part["verdict"] for part in comparison["categories"].values()} == {"undecided"}
    reason = f"{culprit}: 6 of 44 requests failed (http_500 6), more than 5 %"
    assert comparison["undecided_reason"] == reason
    assert f"other: undecided, because of {reason}." in notes(report)


def test_category_without_an_answer_is_missing_and_not_zero(two: tuple[Fake, Fake]) -> None:
    base, other = two
    spoil(other, "text 12")
    prompts = [Prompt(f"p{index}", "rare" if index == 12 else "c", f"text {index}") for index in range(16)]
    report = run_compare(
        None,
        [arm_of(base, "base"), arm_of(other, "other")],
        Workload("made-up", "0" * 64, tuple(prompts)),
        SETTINGS,
        baseline="base",
        endpoint_settings=QUICK,
    )
    validate(report)
    assert list(report["results"]["other"]["categories"]) == ["c"]
    assert list(report["comparisons"][0]["categories"]) == ["c"]
    render_page(report)


def test_nothing_left_to_compare_is_an_error(two: tuple[Fake, Fake]) -> None:
    base, other = two
    # The shortest and the longest one warm up; from the first that is measured on all fail.
    texts = ("middle", "short", "the longest")
    dies_at = [ord(character) % 100 for character in "u:middle;"]

    def dying(prompt: list[int], max_tokens: int) -> list[list[int]]:
        other.always = "500" if prompt == dies_at else other.always
        return [[]] if prompt == dies_at else ordinary(prompt, max_tokens)

    other.chunks = dying
    arms = [arm_of(base, "base"), arm_of(other, "other")]
    shared = Workload("made-up", "0" * 64, tuple(Prompt(text, "c", text) for text in texts))
    with pytest.raises(CompareError, match=r"arm 'other': 6 of 6 requests failed .* no prompt is left") as caught:
        run_compare(None, arms, shared, SETTINGS, baseline="base", endpoint_settings=QUICK)
    assert "no_tokens 1, http_500 5" in str(caught.value)


# The report


def test_endpoints_are_compared_and_lossless_as_engines_are(two: tuple[Fake, Fake]) -> None:
    base, other = two
    base.counters, other.counters = counters(speculating=False), counters(speculating=True)
    other.chunks = lambda prompt, max_tokens: [
        [token for chunk in ordinary(prompt, max_tokens)[start : start + 2] for token in chunk]
        for start in range(0, max_tokens, 2)
    ]
    report = compared(base, other)
    drafted, plain = (report["results"][name]["overall"] for name in ("other", "base"))
    assert drafted["tokens_per_forward"] == 2
    assert drafted["acceptance_rate"] == 0.5
    assert plain["tokens_per_forward"] is None
    assert report["target"] == MODEL
    assert report["provenance"]["vllm"] == "0.32.0"
    assert report["lossless"]["other"]["identical"] == 6
    assert report["results"]["other"]["errors"]["failed"] == 0


def test_different_answers_are_put_before_the_baseline(two: tuple[Fake, Fake]) -> None:
    base, other = two
    other.chunks = lambda prompt, max_tokens: [*ordinary(prompt, max_tokens)[:-1], [7]]
    report = compared(base, other, near_tie_tolerance=0.15)
    assert report["lossless"]["other"]["near_ties"] == 6  # the server gives 7 the second place, 0.1 below
    assert compared(base, other, near_tie_tolerance=0.05)["lossless"]["other"]["different"] == 6


def test_losslessness_is_null_where_token_ids_are_not_told(two: tuple[Fake, Fake]) -> None:
    two[1].tells_ids = False
    report = compared(*two)
    assert report["lossless"]["other"] is None
    assert report["loops"]["other"] == {"prompts": 0, "looping": 0}
    assert "other: not compared with the answers of base: token ids are not told." in notes(report)


def test_later_turn_follows_the_words_of_the_baseline(two: tuple[Fake, Fake]) -> None:
    turns = (Prompt("1.1", "x", "a"), Prompt("1.2", "x", "b", follows="1.1"), Prompt("p", "x", "c"))
    arms = [arm_of(two[0], "base"), arm_of(two[1], "other")]
    shared = Workload("made-up", "0" * 64, turns)
    report = run_compare(None, arms, shared, SETTINGS, baseline="base", endpoint_settings=QUICK)
    first = {row["id"]: row["prompt_tokens"] for row in report["prompts"]}
    assert first["1.2"] == len("u:a;a:......;u:b;")


def test_secrets_reach_the_server_and_no_report(two: tuple[Fake, Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGING_KEY", "my-key")
    value = {"endpoint": two[1].url, "model": MODEL, "api_key_env": "STAGING_KEY", "headers": {"X-Team": "my-header"}}
    text = f"other={json.dumps(value)}"
    arms = [arm_of(two[0], "base"), parse_arm(text)]
    argv = ["specplug", "compare", "--arm", text, f"--arm={text}"]
    report = run_compare(None, arms, workload(), SETTINGS, baseline="base", argv=argv, endpoint_settings=QUICK)
    assert two[1].headers[-1]["X-Team"] == "my-header"
    assert two[1].headers[-1]["Authorization"] == "Bearer my-key"
    written = json.dumps(report) + render_page(report) + repr(arms)
    assert "my-key" not in written
    assert "my-header" not in written
    assert json.loads(json.dumps(report["arms"][1]["endpoint"])) == {
        "url": two[1].url,
        "model": MODEL,
        "api_key_env": "STAGING_KEY",
        "header_names": ["X-Team"],
    }


def test_command_writes_all_outputs_and_forgets_no_secret_in_any(
    two: tuple[Fake, Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, other = two
    spoil(other, "text 1")
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "text {"1" * n}"}}\n' for n in range(4)))
    headers = {"X-Team": "my-header"}
    (tmp_path / "arms.yaml").write_text(
        f"prompts: prompts.jsonl\nbase: {{endpoint: '{base.url}', model: tiny}}\n"
        f"other: {{endpoint: '{other.url}', model: tiny, headers: {json.dumps(headers)}}}\n"
    )
    more = json.dumps({"endpoint": other.url, "model": MODEL, "headers": headers})
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html", "md", "xml")}
    given = ["compare", "--arms", str(tmp_path / "arms.yaml"), "--arm", f"third={more}", "--baseline", "base"]
    given += ["--max-tokens", "4", "--timeout-s", "20", "--out", str(files["json"]), "--html", str(files["html"])]
    given += ["--markdown", str(files["md"]), "--junit", str(files["xml"]), "--json"]
    assert main([*given, "--fail-if", 'other.verdict == "faster"']) == 0
    written = {kind: file.read_text() for kind, file in files.items()} | {"out": capsys.readouterr().out}
    assert not [kind for kind, text in written.items() if "my-header" in text]
    assert "2 of 8 requests failed" in written["md"]
    assert json.loads(written["out"])["results"]["other"]["errors"]["kinds"] == {"http_500": 2}
    assert len(list(tmp_path.iterdir())) == len(files) + 2  # no journal is left


def test_command_line_that_cannot_be_read_is_masked_as_a_whole() -> None:
    assert without_secrets(['a={"headers": {"X": "secret"']) == ["a=***"]
    assert without_secrets(["--arm", "a=null"]) == ["--arm", "a=null"]
    with pytest.raises(CompareError) as caught:
        parse_arm('a={"endpoint": "http://h/v1", "headers": {"X": "secret"}')
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"endpoint": "localhost:8000", "model": "m"}',
            "'endpoint' is 'localhost:8000', expected for example",
        ),
        ('{"endpoint": "http://h:port/v1", "model": "m"}', "'endpoint' is 'http://h:port/v1', expected"),
        ('{"endpoint": "http://u:word@h/v1", "model": "m"}', "must hold no password; use 'api_key_env'"),
        ('{"endpoint": "http://h/v1"}', "'model' of an endpoint must be a text, found None"),
        ('{"endpoint": "http://h/v1", "model": "m", "api_key": "k"}', "has no 'api_key'.*Did you mean 'api_key_env'"),
        ('{"endpoint": "http://h/v1", "model": "m", "api_key_env": "sk-1"}', "must be the name of an environment var"),
        ('{"endpoint": "http://h/v1", "model": "m", "headers": {"X": 1}}', "'headers' must be an object of texts"),
    ],
)
def test_address_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompareError, match=message) as caught:
        parse_arm(f"a={text}")
    assert "sk-1" not in str(caught.value)
    assert "word@" not in str(caught.value)
