"""Who is to serve a request.

Knows names, weights and the health of arms; not how they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deploy import failures
from deploy.arm import Arm
from deploy.record import By
from deploy.router_settings import RouterSettings
from deploy.split import checked_weights, ranking


@dataclass(frozen=True)
class Target:
    """What a request says of who is to serve it.

    Attributes:
        forced: an arm; None: the weights decide.
        unit: what the draw is by.
        is_sticky: whether `unit` is a session or user, rather than the request itself.
    """

    forced: str | None
    unit: str
    is_sticky: bool

    @property
    def by(self) -> By:
        """Why a request belongs to its first choice."""
        if self.forced is not None:
            return "forced"
        return "sticky" if self.is_sticky else "weight"


class Routing:
    """The arms, and how requests are shared out among them.

    Attributes:
        weights: arm to its share, relative to the others'.
    """

    def __init__(self, settings: RouterSettings, arms: Mapping[str, Arm]) -> None:
        """Equal weights, until others are set."""
        self.weights = dict.fromkeys(settings.arms, 1.0)
        self._settings = settings
        self._arms = arms
        self._by_model = {arm.model: arm.name for arm in arms.values()}

    @property
    def models(self) -> list[str]:
        """All names that clients may ask for."""
        return [self._settings.model, *self._by_model]

    def set_weights(self, weights: object) -> None:
        """Share out requests anew; those under way stay where they are.

        Raises:
            DeployError: the weights are wrong; the old ones stay.
        """
        self.weights = checked_weights(weights, self._settings.arms)

    def forced_arm(self, model: str | None, header: str | None) -> str | None:
        """The arm that a request asks for by its model or by the header.

        Raises:
            RequestError: there is no such model or arm, or the two differ.
        """
        if model is not None and model not in self.models:
            raise failures.unknown_model(model, self.models)
        if header and header not in self._arms:
            raise failures.unknown_arm(self._settings.arm_header, header, list(self._arms))
        named = self._by_model.get(model or "")
        if named and header and named != header:
            raise failures.RequestError(
                "refused",
                400,
                "unknown_arm",
                f"the model is {model!r}, but {self._settings.arm_header} is {header!r}; name one arm",
            )
        return named or header or None

    def first_choice(self, target: Target) -> Arm:
        """The arm that a request belongs to, however that arm fares."""
        return self._order(target)[0]

    def choose(self, target: Target, tried: Sequence[str] = ()) -> Arm:
        """The arm that a request goes to now.

        Args:
            tried: arms that have failed it.
        Raises:
            RequestError: every arm that may have it is down.
        """
        order = self._order(target)
        able = self._able(order, tried)
        if not able:
            raise failures.no_arm(max(0.0, min(arm.health.check_in_s for arm in order)))
        return able[0]

    def starting(self, target: Target) -> Arm | None:
        """The arm that a request belongs to, if no arm may have it and that one has never been up."""
        if all(arm.health.has_been_up for arm in self._arms.values()):
            return None  # as nearly always: no order is made out for that
        order = self._order(target)
        return None if self._able(order) or order[0].health.has_been_up else order[0]

    @staticmethod
    def _able(order: Sequence[Arm], tried: Sequence[str] = ()) -> list[Arm]:
        fresh = [arm for arm in order if arm.name not in tried]
        able = [arm for arm in fresh if arm.health.is_candidate]
        return able + [arm for arm in (*fresh, *order) if arm.health.is_last_resort]  # again: by another replica

    @property
    def out(self) -> list[str]:
        """Arms that are not up: they get no requests, or one at a time."""
        return [name for name, arm in self._arms.items() if arm.health.state != "up"]

    def _order(self, target: Target) -> list[Arm]:
        if target.forced is not None:
            return [self._arms[target.forced]]
        return [self._arms[name] for name in ranking(self.weights, target.unit, self._settings.seed)]
