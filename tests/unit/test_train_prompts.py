"""Training prompts: varied, repeatable, and apart from the prompts that measure."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from vllm_specplug.compare.workload import load_workload
from vllm_specplug.errors import ConfigError
from vllm_specplug.train.prompts import TEMPLATES, TrainingPrompt, load_prompts, make_prompts, overlap

COUNT = 8_000


@pytest.fixture(scope="module")
def prompts() -> list[TrainingPrompt]:
    return make_prompts(COUNT)


def grams(text: str, n: int = 5) -> set[tuple[str, ...]]:
    words = re.sub(r"[^\w\s]", "", text.lower()).split()
    return set(zip(*(words[start:] for start in range(min(n, len(words)))), strict=False))


def test_all_texts_are_different(prompts: list[TrainingPrompt]) -> None:
    assert len({prompt.text for prompt in prompts}) == len(prompts) == COUNT


def test_same_count_and_seed_give_the_same_prompts(prompts: list[TrainingPrompt]) -> None:
    assert make_prompts(COUNT, seed=0) == prompts
    assert make_prompts(200, seed=1) != prompts[:200]


def test_a_smaller_count_is_the_start_of_a_larger_one(prompts: list[TrainingPrompt]) -> None:
    assert make_prompts(150) == prompts[:150]


def test_each_hundred_prompts_hold_the_fixed_shares(prompts: list[TrainingPrompt]) -> None:
    shares = {
        "chat": 20, "stories": 15, "code": 12, "code_editing": 8, "formats": 9,
        "summary": 8, "reading": 8, "translation": 7, "maths": 6, "copying": 7,
    }  # fmt: skip
    for start in range(0, COUNT, 100):
        assert Counter(prompt.category for prompt in prompts[start : start + 100]) == shares


def test_no_slot_is_left_open(prompts: list[TrainingPrompt]) -> None:
    assert [prompt.text for prompt in prompts if re.search(r"\{[\w-]+\}", prompt.text)] == []


def test_prompts_are_short(prompts: list[TrainingPrompt]) -> None:
    lengths = sorted(len(prompt.text.split()) for prompt in prompts)
    assert lengths[-1] <= 120
    assert lengths[len(lengths) // 2] < 40


def test_every_template_is_used(prompts: list[TrainingPrompt]) -> None:
    by_category: dict[str, list[str]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt.text)
    templates = json.loads(TEMPLATES.read_text(encoding="utf-8"))["templates"]
    assert len(templates) >= 90
    for template in templates:
        pieces = re.split(r"\{[\w-]+\}", template["text"])
        pattern = re.compile(".+?".join(map(re.escape, pieces)), re.DOTALL)
        assert any(pattern.fullmatch(text) for text in by_category[template["category"]]), template["text"]


def test_topics_are_many_and_each_is_one_group(prompts: list[TrainingPrompt]) -> None:
    groups = Counter(prompt.group for prompt in prompts)
    assert len(groups) >= 250
    assert max(groups.values()) < COUNT / 50


def test_a_passage_question_is_about_a_sentence_that_is_there() -> None:
    source = json.loads(TEMPLATES.read_text(encoding="utf-8"))
    answers = {
        question: sentence for passage in source["topics"]["facts"] for sentence, question in passage["sentences"]
    }
    asked = 0
    for prompt in make_prompts(4_000):
        for question, sentence in answers.items():
            if question in prompt.text:
                asked += 1
                assert sentence in prompt.text
    assert asked > 50


@pytest.mark.parametrize("seed", [0, 1])
def test_no_training_prompt_resembles_a_shipped_prompt(seed: int) -> None:
    shipped = [grams(prompt.text) for prompt in load_workload().prompts]
    owners: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, known in enumerate(shipped):
        for gram in known:
            owners[gram].append(index)
    for prompt in make_prompts(COUNT, seed):
        mine = grams(prompt.text)
        for index, shared in Counter(owner for gram in mine for owner in owners.get(gram, ())).items():
            assert shared / len(mine) < 0.3, prompt.text
            assert shared / len(shipped[index]) < 0.3, prompt.text


def test_overlap_is_the_share_of_ngrams_in_the_closest_text() -> None:
    # two-grams: a b, b c, c d; the first other has one of them, the second has two
    assert overlap("A, b c. D", ["x a b y", "b c d", "a c"], n=2) == pytest.approx(2 / 3)
    assert overlap("one two three four five", ["Zero one two: three, four five!"]) == 1.0
    assert overlap("one two three four five", ["five four three two one"]) == 0.0


def test_overlap_compares_a_short_text_as_a_whole() -> None:
    assert overlap("Good morning", ["a very good morning to you"]) == 1.0
    assert overlap("Good evening", ["a very good morning to you"]) == 0.0


def test_overlap_of_nothing_is_zero() -> None:
    assert overlap("?!", ["?!"]) == 0.0
    assert overlap("some words", []) == 0.0


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_prompts(0)
    assert str(caught.value) == "cannot make 0 training prompts; ask for 1 or more"


def test_too_large_a_count_names_how_many_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        make_prompts(1_000_000)
    found = re.fullmatch(
        r"cannot make 1000000 training prompts; the templates give (\d+) with seed 0\. "
        r"Ask for fewer, or give a file of your own prompts",
        str(caught.value),
    )
    assert found is not None
    available = int(found[1])
    assert len(make_prompts(available)) == available >= COUNT
    with pytest.raises(ConfigError):
        make_prompts(available + 1)


def test_a_file_gives_its_prompts_in_order(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "Hi"}\n\n{"prompt": "Add 1 and 2", "category": "maths", "group": "sums", "x": 1}\n')
    assert load_prompts(file) == [
        TrainingPrompt("Hi", "own", "Hi"),
        TrainingPrompt("Add 1 and 2", "maths", "sums"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON (Expecting property name enclosed in double quotes at column 2); expected one object"),
        ('["Hi"]', "expected a JSON object with 'prompt', found list"),
        ('{"text": "Hi"}', "key 'prompt' is missing; expected an object with 'prompt'"),
        ('{"prompt": " "}', "'prompt' must be a text that is not empty, found ' '"),
        ('{"prompt": "Hi", "group": 3}', "'group' must be a text that is not empty, found 3"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "Hi"}\n' + line)
    with pytest.raises(ConfigError) as caught:
        load_prompts(file)
    assert str(caught.value) == f"{file}:2: {message}"


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    with pytest.raises(ConfigError) as caught:
        load_prompts(file)
    assert str(caught.value) == f"cannot read the training prompts {file}: No such file or directory"
    file.write_text("\n")
    with pytest.raises(ConfigError) as caught:
        load_prompts(file)
    assert str(caught.value) == f"{file} holds no training prompts; expected one JSON object a line with 'prompt'"
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ConfigError) as caught:
        load_prompts(file)
    assert str(caught.value) == f"cannot read the training prompts {file}: not UTF-8 (byte 12)"
