"""The prompts a drafter is trained on: made from templates, or read from a file. Knows no engine and no tokens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specplug import jsonl
from vllm_specplug.errors import ConfigError

TEMPLATES = Path(__file__).with_name("prompts") / "specplug-train-v1.json"

_SLOT = re.compile(r"\{(?:(\d+)-(\d+)|([a-z_]+?)(\d?)(_cap|_low)?)\}")
_ATTEMPTS = 20
"""How often a draw is repeated that gave a text made before."""


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """One user message."""

    text: str
    category: str
    group: str
    """The topic; prompts of a group are held out together."""


def make_prompts(count: int | None, seed: int = 0) -> list[TrainingPrompt]:
    """Make `count` prompts of different texts; None: as many as there are.

    A smaller count with the same seed gives the first ones of a larger count. Each hundred prompts, counted from the
    first, hold every kind of work in its fixed share.

    Raises:
        ConfigError: the count is below 1, or more than the templates give.
    """
    if count is not None and count < 1:
        raise ConfigError(f"cannot make {count} training prompts; ask for 1 or more")
    source = json.loads(TEMPLATES.read_text(encoding="utf-8"))
    shares: dict[str, int] = source["shares"]
    rng = random.Random(seed)
    made: set[str] = set()
    decks = {category: _deck(source, category, rng, made) for category in shares}
    blocks = min(len(decks[category]) // share for category, share in shares.items())
    available = blocks * sum(shares.values())
    count = available if count is None else count
    if count > available:
        raise ConfigError(
            f"cannot make {count} training prompts; the templates give {available} with seed {seed}. "
            "Ask for fewer, or give a file of your own prompts"
        )
    block = [category for category, share in shares.items() for _ in range(share)]
    prompts: list[TrainingPrompt] = []
    while len(prompts) < count:
        rng.shuffle(block)
        prompts += [decks[category].pop() for category in block]
    return prompts[:count]


def load_prompts(path: str | Path) -> list[TrainingPrompt]:
    """Read prompts from a JSONL file.

    Each line is an object with `prompt`; `category` and `group` are optional, other keys are ignored. Without `group`
    the prompt's own text is its group, so that repeated prompts stay together.

    Raises:
        ConfigError: the file cannot be read or holds no prompts, or a line is malformed (file:line is named).
    """
    file = Path(path)
    text = jsonl.read_text(file, "the training prompts", ConfigError)
    rows = jsonl.objects(text, file, ConfigError, "a JSON object with 'prompt'")
    prompts = [_parse(row, f"{file}:{number}") for number, row in rows]
    if not prompts:
        raise ConfigError(f"{file} holds no training prompts; expected one JSON object a line with 'prompt'")
    return prompts


def overlap(text: str, others: Iterable[str], n: int = 5) -> float:
    """Largest share of the text's word n-grams that occur in one of the others.

    Case and punctuation do not count. A text of fewer than n words is compared as a whole.

    Returns:
        In [0, 1]; 0 for a text without words, or when there are no others.
    """
    size = min(n, len(_words(text)))
    if size < 1:
        return 0.0
    grams = _ngrams(text, size)
    return max((len(grams & _ngrams(other, size)) / len(grams) for other in others), default=0.0)


def _words(text: str) -> list[str]:
    return re.sub(r"[^\w\s]", "", text.lower()).split()


def _ngrams(text: str, size: int) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def _deck(source: Mapping[str, Any], category: str, rng: random.Random, made: set[str]) -> list[TrainingPrompt]:
    """Everything that can be made of one category, in a random order; adds the texts to `made`."""
    deck: list[TrainingPrompt] = []
    for template in source["templates"]:
        if template["category"] != category:
            continue
        for topic in source["topics"][template["topics"]]:
            for _ in range(template.get("draws", 1)):
                for _ in range(_ATTEMPTS):
                    text = _Draw(source["topics"], topic, rng).fill(template["text"])
                    text = text[0].upper() + text[1:]
                    if text not in made:
                        made.add(text)
                        deck.append(TrainingPrompt(text, category, _group(topic)))
                        break
    rng.shuffle(deck)
    return deck


def _group(topic: str | Mapping[str, Any]) -> str:
    return topic if isinstance(topic, str) else str(topic["name"])


class _Draw:
    """The words chosen for one prompt.

    `{topic}` is the topic; in a passage, `{question}` is about one of its sentences. `{3-9}` is a new number each
    time. `{name}` is drawn from the list of that name and stays the same, `{name2}` is another one. `{name_cap}` and
    `{name_low}` change the first letter.
    """

    def __init__(self, lists: Mapping[str, list[Any]], topic: str | Mapping[str, Any], rng: random.Random) -> None:
        self._lists = lists
        self._rng = rng
        self._words: dict[str, dict[str, str]] = {}
        self._fixed: dict[str, str] = {}
        if isinstance(topic, str):
            self._fixed["topic"] = self.fill(topic)
        elif "text" in topic:
            self._fixed["topic"] = self.fill(topic["text"])
        else:
            first, *rest = topic["sentences"]
            chosen = sorted(rng.sample(range(len(rest)), rng.randint(2, len(rest))))
            passage = [first, *(rest[index] for index in chosen)]
            self._fixed["topic"] = " ".join(self.fill(sentence) for sentence, _ in passage)
            self._fixed["question"] = self.fill(rng.choice(passage)[1])

    def fill(self, text: str) -> str:
        return _SLOT.sub(self._slot, text)

    def _slot(self, match: re.Match[str]) -> str:
        low, high, word, number, case = match.groups()
        if low is not None:
            return str(self._rng.randint(int(low), int(high)))
        value = self._fixed.get(word) or self._word(word, number)
        if case == "_cap":
            return value[0].upper() + value[1:]
        if case == "_low":
            return value[0].lower() + value[1:]
        return value

    def _word(self, name: str, number: str) -> str:
        used = self._words.setdefault(name, {})
        if number not in used:
            used[number] = self._rng.choice([word for word in self._lists[name] if word not in used.values()])
        return used[number]


def _parse(row: Mapping[str, Any], where: str) -> TrainingPrompt:
    if "prompt" not in row:
        raise ConfigError(f"{where}: key 'prompt' is missing; expected an object with 'prompt'")
    values = {"category": "own", "group": row["prompt"], **row}  # logged traffic repeats itself
    for key in ("prompt", "category", "group"):
        if not isinstance(values[key], str) or not values[key].strip():
            raise ConfigError(f"{where}: {key!r} must be a text that is not empty, found {values[key]!r}")
    return TrainingPrompt(values["prompt"], values["category"], values["group"])
