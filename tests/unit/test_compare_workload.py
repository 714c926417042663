"""Prompts and arms: what is read, selected and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_specplug.compare.arms import Arm, parse_arm, with_baseline
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.errors import CompareError


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


GOOD = '{"prompt": "Say hello.", "category": "chat"}'


def test_shipped_set_has_ten_categories_of_eight() -> None:
    workload = load_workload()
    assert workload.name == "specplug-v1"
    assert workload.sha256 == "9ee63d6d6eebbe6e34de254cec33af107203168872d70c49f3ac23ceb056aaf3"
    assert len(workload.categories) == 10
    assert len(workload.prompts) == 80


def test_limit_keeps_the_first_of_each_category() -> None:
    workload = load_workload(categories=["maths", "copying"], limit=2)
    assert [prompt.id for prompt in workload.prompts] == ["copying-01", "copying-02", "maths-01", "maths-02"]


def test_blocks_never_mix_categories() -> None:
    workload = load_workload(categories=["maths", "copying"], limit=3)
    blocks = [[prompt.id for prompt in block] for block in workload.blocks(2)]
    assert blocks == [["copying-01", "copying-02"], ["copying-03"], ["maths-01", "maths-02"], ["maths-03"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "x", ', "p.jsonl:3: not JSON (Expecting property name enclosed in double quotes at column 17)"),
        ("[1]", "p.jsonl:3: expected a JSON object, found list"),
        ('{"category": "chat"}', "p.jsonl:3: key 'prompt' is missing; expected 'prompt', 'messages' or 'turns'"),
        ('{"prompt": "x", "category": ""}', "p.jsonl:3: 'category' must be a text that is not empty, found ''"),
        ('{"prompt": 7, "category": "chat"}', "p.jsonl:3: 'prompt' must be a text that is not empty, found 7"),
        ('{"prompt": "x", "category": "c", "id": 3}', "p.jsonl:3: 'id' must be a text that is not empty, found 3"),
        ('{"prompt": "x", "category": "c", "id": "line-1"}', "p.jsonl:3: id 'line-1' was used in line 1 already"),
    ],
)
def test_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "p.jsonl", GOOD, "", line)  # the empty line counts but is allowed
    with pytest.raises(CompareError) as caught:
        load_workload(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unusual_line_separators_inside_a_text_do_not_split_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", '{"prompt": "a\u2028b\x85c", "category": "chat"}')
    assert load_workload(path).prompts[0].text == "a\u2028b\x85c"


def test_what_selects_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="unknown category 'math' in specplug-v1; it has: copying, "):
        load_workload(categories=["math"])
    with pytest.raises(CompareError, match="unknown category '' in specplug-v1; it has: copying, "):
        load_workload(categories=[""])
    with pytest.raises(CompareError, match="no category is asked for; name some of specplug-v1, which has: copying, "):
        load_workload(categories=[])
    with pytest.raises(CompareError, match="a limit of 0 prompts"):
        load_workload(limit=0)
    with pytest.raises(CompareError, match="holds no prompts"):
        load_workload(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(CompareError, match="No such file"):
        load_workload(tmp_path / "absent.jsonl")


def log(*arrivals: str) -> list[str]:
    """A line for each time, which is written as it is; "" leaves the key out."""
    return [f'{{"prompt": "x", "arrival_s": {time}}}' if time else '{"prompt": "x"}' for time in arrivals]


def test_arrivals_are_those_of_the_log_also_after_a_selection(tmp_path: Path) -> None:
    lines = log("0", "0.5", "0.5", "2e1")
    lines[1] = lines[1].replace("{", '{"category": "rare", ')
    path = write(tmp_path / "p.jsonl", *lines)
    assert load_workload(path).arrivals() == (0.0, 0.5, 0.5, 20.0)
    assert load_workload(path, ["all"], limit=2).arrivals() == (0.0, 0.5)
    assert load_workload().arrivals() is None


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        (("1", ""), "p.jsonl:2: 'arrival_s' is missing, but line 1 has it; all lines have it or none"),
        (("", "", "1"), "p.jsonl:3: has 'arrival_s', but line 2 has none; all lines have it or none"),
        (("1", "2.5", "2"), "p.jsonl:3: 'arrival_s' is 2.0, less than the 2.5 of line 2; sort the lines by it"),
        (("-1",), "p.jsonl:1: 'arrival_s' must be a number of seconds, 0 or more, found -1"),
        (("NaN",), "p.jsonl:1: 'arrival_s' must be a number of seconds, 0 or more, found nan"),
        (("1e999",), "p.jsonl:1: 'arrival_s' must be a number of seconds, 0 or more, found inf"),
        (("1" + 400 * "0",), "p.jsonl:1: 'arrival_s' must be a number of seconds, 0 or more, found 1000000"),
        (("true",), "p.jsonl:1: 'arrival_s' must be a number of seconds, 0 or more, found True"),
        (('"1"',), "p.jsonl:1: 'arrival_s' must be a number of seconds, 0 or more, found '1'"),
    ],
)
def test_log_that_cannot_be_replayed_is_refused(tmp_path: Path, arrivals: tuple[str, ...], message: str) -> None:
    with pytest.raises(CompareError) as caught:
        load_workload(write(tmp_path / "p.jsonl", *log(*arrivals)))
    assert message in str(caught.value)


def test_arm_is_a_name_and_a_config() -> None:
    assert parse_arm("plain=null") == Arm("plain")
    text = 'ngram={"method": "ngram", "num_speculative_tokens": 5, "engine_args": {"max_num_seqs": 4}}'
    assert parse_arm(text) == Arm("ngram", {"method": "ngram", "num_speculative_tokens": 5}, {"max_num_seqs": 4})
    assert parse_arm('eager={"engine_args": {"enforce_eager": true}}') == Arm("eager", None, {"enforce_eager": True})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram", "arm 'ngram' is not NAME=JSON"),
        ("a/b=null", "arm 'a/b=null' is not NAME=JSON"),
        ("ngram={'method': 1}", "arm 'ngram': not JSON"),
        ("ngram=5", "arm 'ngram': expected a JSON object or null, found '5'"),
        ('ngram={"engine_args": 3}', "arm 'ngram': 'engine_args' must be a JSON object, found 3"),
    ],
)
def test_malformed_arm_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompareError) as caught:
        parse_arm(text)
    assert message in str(caught.value)


def test_baseline_comes_first_and_is_added_when_missing() -> None:
    a, b = Arm("a", {"method": "x"}), Arm("b")
    assert [arm.name for arm in with_baseline([a])] == ["baseline", "a"]
    assert [arm.name for arm in with_baseline([a, Arm("baseline")])] == ["baseline", "a"]
    assert [arm.name for arm in with_baseline([a, b], "b")] == ["b", "a"]


def test_arms_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(CompareError, match="arm name 'a' is used 2 times"):
        with_baseline([Arm("a"), Arm("a")])
    with pytest.raises(CompareError, match=r"'plian' is not among the arms: plain, a. Did you mean 'plain'\?"):
        with_baseline([Arm("plain"), Arm("a")], "plian")
    with pytest.raises(CompareError, match="one arm alone"):
        with_baseline([Arm("baseline")])
