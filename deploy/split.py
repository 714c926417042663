"""Which arm a user gets: weighted rendezvous hashing, the same answer in every router and after every restart.

Each arm draws a number u in (0, 1) from a keyed hash of (seed, arm, unit) and scores -w / ln(u); the highest score
wins. -ln(u) is exponential with rate 1, so -ln(u) / w is exponential with rate w, and the least of independent
exponentials is arm i's with probability w_i / sum(w). An arm's score depends on no other arm, hence

- a unit stays where it is as long as the weights stand;
- an arm that is new, or whose weight goes up, only takes units, and one whose weight goes down only gives some away;
- when a unit's arm is out, its next arm is again drawn by weight among the others.

Source: Thaler and Ravishankar 1998, https://doi.org/10.1109/90.663936 (rendezvous hashing); Schindelhauer and
Schomaker, Weighted Distributed Hash Tables, SPAA 2005 (the logarithm).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping

from vllm_specplug.errors import DeployError

MOST_WEIGHT = 1e9


def ranking(weights: Mapping[str, float], unit: str, seed: int) -> list[str]:
    """Arms in the order in which they are to serve a unit; those of weight 0 are left out.

    Args:
        weights: arm to weight, as `checked_weights` gives them.
        unit: whoever must stay with one arm, such as a session; a request's id where nobody must.
        seed: another seed is another, independent draw.
    """
    scores = {arm: _score(weight, arm, unit, seed) for arm, weight in weights.items() if weight > 0}
    return sorted(scores, key=lambda arm: (-scores[arm], arm))


def _score(weight: float, arm: str, unit: str, seed: int) -> float:
    return -weight / math.log(uniform(seed, "arm", arm, unit))


def uniform(seed: int, *parts: str) -> float:
    """A number in (0, 1), both ends excluded, that only its arguments decide."""
    # 52 bits and a half: the greatest value is 1 - 2**-53, which a float can still tell from 1.
    return ((int(keyed_hash(seed.to_bytes(16, "big", signed=True), *parts), 16) >> 12) + 0.5) / 2**52


def keyed_hash(key: bytes, *parts: str) -> str:
    """16 hexadecimal digits of the parts; ("ab", "c") differs from ("a", "bc").

    Args:
        key: at most 64 bytes.
    """
    digest = hashlib.blake2b(key=key, digest_size=8)
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")  # JSON may hold half a character
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


def checked_weights(weights: object, arms: Collection[str]) -> dict[str, float]:
    """The weights of all arms, in the order of `arms`.

    Raises:
        DeployError: it is no mapping, an arm is missing or unknown, a weight is negative or no number, or all are 0.
    """
    if not isinstance(weights, Mapping):
        raise DeployError(f"weights: expected a number for each of {', '.join(arms)}; found {weights!r}")
    missing = [arm for arm in arms if arm not in weights]
    unknown = [str(arm) for arm in weights if arm not in arms]
    if missing or unknown:
        what = f"{missing[0]!r} has none" if missing else f"{unknown[0]!r} is no arm"
        raise DeployError(f"weights: {what}; expected a number for each of {', '.join(arms)}")
    for arm, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= MOST_WEIGHT:
            raise DeployError(f"weights: {arm!r} is {weight!r}; expected a number from 0 to {MOST_WEIGHT:g}")
    if not any(weights.values()):
        raise DeployError("weights: all are 0, so nobody would answer; give one arm a weight above 0")
    return {arm: float(weights[arm]) for arm in arms}
