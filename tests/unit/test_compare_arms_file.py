"""Arms from a YAML file, and the command line that takes them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from vllm_specplug.compare import command
from vllm_specplug.compare.arms import Arm, target_of
from vllm_specplug.compare.arms_file import ArmsFile, load_arms
from vllm_specplug.errors import CompareError

MEDUSA = {"method": "specplug:medusa", "model": "heads", "num_speculative_tokens": 3}


def written(folder: Path, text: str) -> Path:
    file = folder / "arms.yaml"
    file.write_text(text)
    return file


def test_file_holds_engines_and_endpoints_in_its_own_order(tmp_path: Path) -> None:
    found = load_arms(
        written(
            tmp_path,
            """
            model: path/to/target
            prompts: prompts.jsonl
            staging: {endpoint: "http://localhost:8000/v1/", model: name, api_key_env: STAGING_KEY, headers: {X-A: b}}
            medusa:
              speculative_config: {method: "specplug:medusa", model: heads, num_speculative_tokens: 3}
              engine_args: {max_num_seqs: 8}
            baseline: null
            eager: {engine_args: {enforce_eager: true}}
            """,
        )
    )
    staging, *engines = found.arms
    assert staging.endpoint is not None
    assert (staging.name, staging.endpoint.url) == ("staging", "http://localhost:8000/v1")
    assert (staging.endpoint.model, staging.endpoint.header_names) == ("name", ("X-A",))
    assert engines == [
        Arm("medusa", MEDUSA, {"max_num_seqs": 8}),
        Arm("baseline"),
        Arm("eager", None, {"enforce_eager": True}),
    ]
    assert found.model == "path/to/target"
    assert found.prompts == tmp_path / "prompts.jsonl"


def test_defaults_may_be_left_out(tmp_path: Path) -> None:
    assert load_arms(written(tmp_path, "baseline:\n")) == ArmsFile((Arm("baseline"),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: null\na: null\n", r"arms\.yaml: 'a' is there 2 times in what begins at line 1"),
        ("a: {speculative_config: {method: x, method: y}}", r"'method' is there 2 times"),
        ("a: [unfinished", r"arms\.yaml:1: not YAML"),
        ("", r"expected a mapping of arms' names, for example 'baseline: null'; found None"),
        ("- a\n", r"expected a mapping of arms' names"),
        ("a: 3", r"arm 'a': expected speculative_config, engine_args or an endpoint, or null; found 3"),
        ("a: {method: ngram}", r"unknown key 'method'.* A speculative config goes under 'speculative_config'\."),
        ("a: {enginge_args: {}}", r"unknown key 'enginge_args'.* Did you mean 'engine_args'\?"),
        ("a: {speculative_config: ngram}", r"arm 'a': 'speculative_config' must be a mapping or null, found 'ngram'"),
        ("model: {speculative_config: {}}", r"'model' must be a text, found .*; no arm can have this name"),
        ("a b: null", r"'a b' cannot be the name of an arm; expected letters"),
        ("3: null", r"3 cannot be the name of an arm"),
        ("a: {endpoint: 'http://h/v1'}", r"arms\.yaml: arm 'a': 'model' of an endpoint must be a text, found None"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CompareError, match=message):
        load_arms(written(tmp_path, text))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match=r"cannot read the arms .*none\.yaml: No such file"):
        load_arms(tmp_path / "none.yaml")


def test_no_object_of_a_program_is_made(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="not YAML"):
        load_arms(written(tmp_path, "a: !!python/object/apply:os.getcwd []"))


def test_model_is_needed_by_engines_alone(tmp_path: Path) -> None:
    arms = load_arms(
        written(tmp_path, "a: {endpoint: 'http://h/v1', model: m}\nb: {endpoint: 'http://i/v1', model: n}")
    )
    assert target_of(None, arms.arms) == "m"
    assert target_of("given", arms.arms) == "given"
    with pytest.raises(CompareError, match=r"arm 'c' is an engine of our own, which needs --model$"):
        target_of(None, [*arms.arms, Arm("c", MEDUSA)])


def test_command_line_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "of the file"}\n')
    (tmp_path / "other.jsonl").write_text('{"prompt": "of the command line"}\n')
    file = written(tmp_path, "model: of-the-file\nprompts: mine.jsonl\na: null\n")
    asked: list[tuple[str, list[str], str]] = []

    class AskedError(Exception):
        pass

    def note(model, arms, workload, *args, **kwargs):
        asked.append((model, [arm.name for arm in arms], workload.prompts[0].text))
        raise AskedError

    monkeypatch.setattr(command, "run_and_show", note)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = ["--arms", str(file), "--arm", "b=null"]
    for more in ([], ["--model", "given", "--prompts", str(tmp_path / "other.jsonl")]):
        with pytest.raises(AskedError):
            command.main(parser.parse_args(given + more))
    assert asked == [
        ("of-the-file", ["a", "b"], "of the file"),
        ("given", ["a", "b"], "of the command line"),
    ]
