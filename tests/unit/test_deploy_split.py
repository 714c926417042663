"""The split between arms, against the binomial distribution and the promises of rendezvous hashing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from deploy.split import checked_weights, keyed_hash, ranking, uniform
from vllm_specplug.errors import DeployError

UNITS = [f"user {number}" for number in range(4000)]
ARMS = st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=6, unique=True)
WEIGHTS = ARMS.flatmap(
    lambda arms: st.fixed_dictionaries(
        {arm: st.floats(0, 100).map(lambda w: w if w > 1e-3 else 0.0) for arm in arms}
    ).filter(lambda weights: any(weights.values()))
)
UNIT = st.text(max_size=20)
SEED = st.integers(0, 2**63 - 1)


def counts(weights: dict[str, float], seed: int) -> dict[str, int]:
    first = [ranking(weights, unit, seed)[0] for unit in UNITS]
    return {arm: first.count(arm) for arm in weights}


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.01])
def test_share_of_users_is_binomial_in_the_weights(share: float, seed: int) -> None:
    found = counts({"a": share, "b": 1 - share}, seed)
    assert binomtest(found["a"], len(UNITS), share).pvalue > 0.001


def test_shares_of_many_arms_follow_their_weights() -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 10.0}
    found = counts(weights, seed=7)
    assert chisquare([found[arm] for arm in weights], [len(UNITS) * w / 16 for w in weights.values()]).pvalue > 0.001


def test_weight_times_u_would_fail_this_test() -> None:
    """The obvious mistake, so that the two tests above are known to see it: P(2u1 > u2) is 3/4, not 2/3."""
    wins = sum(2 * uniform(0, "a", unit) > uniform(0, "b", unit) for unit in UNITS)
    assert binomtest(wins, len(UNITS), 2 / 3).pvalue < 1e-6
    assert binomtest(counts({"a": 2.0, "b": 1.0}, 0)["a"], len(UNITS), 2 / 3).pvalue > 0.001


def test_second_choices_of_one_arms_users_follow_the_others_weights() -> None:
    weights = {"a": 5.0, "b": 1.0, "c": 3.0}
    second = [order[1] for order in (ranking(weights, unit, 11) for unit in UNITS) if order[0] == "a"]
    assert len(second) > 2000
    assert binomtest(second.count("b"), len(second), 1 / 4).pvalue > 0.001


def test_another_seed_is_an_independent_draw() -> None:
    weights = {"a": 1.0, "b": 1.0}
    same = sum(ranking(weights, unit, 0)[0] == ranking(weights, unit, 1)[0] for unit in UNITS)
    assert binomtest(same, len(UNITS), 1 / 2).pvalue > 0.001


@given(WEIGHTS, UNIT, SEED)
def test_same_arguments_give_the_same_order_whatever_the_order_of_arms(
    weights: dict[str, float], unit: str, seed: int
) -> None:
    assert ranking(weights, unit, seed) == ranking(dict(reversed(weights.items())), unit, seed)


def test_another_process_gives_the_same_order() -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 0.5}
    code = f"""
import json
from deploy.split import ranking
print(json.dumps([ranking({weights}, unit, 3) for unit in {UNITS[:50]}]))
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(out) == [ranking(weights, unit, 3) for unit in UNITS[:50]]


@given(WEIGHTS, UNIT, SEED)
def test_arm_of_weight_0_never_gets_a_unit(weights: dict[str, float], unit: str, seed: int) -> None:
    assert set(ranking(weights, unit, seed)) == {arm for arm, weight in weights.items() if weight > 0}


@given(WEIGHTS, UNIT, SEED, st.floats(0.01, 100))
def test_new_arm_only_takes_units(weights: dict[str, float], unit: str, seed: int, weight: float) -> None:
    before, after = ranking(weights, unit, seed), ranking({**weights, "new": weight}, unit, seed)
    assert [arm for arm in after if arm != "new"] == before


@given(WEIGHTS, UNIT, SEED, st.floats(1, 50))
def test_change_of_one_weight_only_moves_units_to_or_from_its_arm(
    weights: dict[str, float], unit: str, seed: int, factor: float
) -> None:
    arm = max(weights, key=lambda name: weights[name])
    before, after = ranking(weights, unit, seed)[0], ranking({**weights, arm: weights[arm] * factor}, unit, seed)[0]
    assert after in (before, arm)


def test_new_arm_moves_the_share_it_should_and_no_more() -> None:
    before = {"a": 1.0, "b": 1.0}
    after = {**before, "c": 1.0}
    moved = [ranking(after, u, 5)[0] for u in UNITS if ranking(before, u, 5)[0] != ranking(after, u, 5)[0]]
    assert set(moved) == {"c"}
    assert binomtest(len(moved), len(UNITS), 1 / 3).pvalue > 0.001


@given(st.lists(UNIT, max_size=4))
def test_uniform_is_strictly_between_0_and_1(parts: list[str]) -> None:
    assert 0 < uniform(0, *parts) < 1


@pytest.mark.parametrize(("digest", "expected"), [("0" * 16, 0.5 / 2**52), ("f" * 16, 1 - 2**-53)])
def test_uniform_excludes_its_ends_at_the_extreme_hashes(
    monkeypatch: pytest.MonkeyPatch, digest: str, expected: float
) -> None:
    monkeypatch.setattr("deploy.split.keyed_hash", lambda *args: digest)
    assert uniform(0) == expected
    assert ranking({"a": 1.0}, "u", 0) == ["a"]  # no logarithm of 0, no division by it


def test_keyed_hash_is_blake2b_of_the_parts_with_their_lengths() -> None:
    content = (2).to_bytes(8, "big") + b"ab" + (1).to_bytes(8, "big") + b"c"
    assert keyed_hash(b"key", "ab", "c") == hashlib.blake2b(content, key=b"key", digest_size=8).hexdigest()
    assert keyed_hash(b"key", "ab", "c") != keyed_hash(b"key", "a", "bc")
    assert keyed_hash(b"key", "ab") != keyed_hash(b"other", "ab")


def test_half_a_character_is_a_unit_like_any_other() -> None:
    unit = json.loads('"\\ud800"')  # what JSON may hold and UTF-8 may not
    assert ranking({"a": 1.0, "b": 1.0}, unit, 0)


def test_checked_weights_are_floats_in_the_order_of_the_arms() -> None:
    found = checked_weights({"b": 2, "a": 0}, ["a", "b"])
    assert found == {"a": 0.0, "b": 2.0}
    assert list(found) == ["a", "b"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, "weights: expected a number for each of a, b; found None"),
        ({"a": 1}, "weights: 'b' has none; expected a number for each of a, b"),
        ({"a": 1, "b": 1, "c": 1}, "weights: 'c' is no arm; expected a number for each of a, b"),
        ({"a": 1, "b": -1}, "weights: 'b' is -1; expected a number from 0 to 1e+09"),
        ({"a": 1, "b": "2"}, "weights: 'b' is '2'; expected a number from 0 to 1e+09"),
        ({"a": 1, "b": True}, "weights: 'b' is True; expected a number from 0 to 1e+09"),
        ({"a": 1, "b": float("nan")}, "weights: 'b' is nan; expected a number from 0 to 1e+09"),
        ({"a": 1, "b": 10**400}, f"weights: 'b' is {10**400}; expected a number from 0 to 1e+09"),
        ({"a": 0, "b": 0}, "weights: all are 0, so nobody would answer; give one arm a weight above 0"),
    ],
)
def test_wrong_weights_are_refused_in_one_line(weights: object, message: str) -> None:
    with pytest.raises(DeployError) as error:
        checked_weights(weights, ["a", "b"])
    assert str(error.value) == message
