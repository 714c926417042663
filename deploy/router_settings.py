"""What may be set of the router between arms.

Knows the names, defaults and bounds; neither Ray nor how the router works. Weights are not among them: they change
while the router runs, so they are the deployment's `user_config`.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from deploy.settings import Settings
from deploy.values import check_folder
from vllm_specplug.errors import DeployError


class Shadow(Settings):
    """Copies of some requests for one arm, whose answers nobody sees."""

    arm: str
    share: float = Field(ge=0, le=1)
    """Of the requests that other arms answer and no header forces."""
    max_in_flight: int = Field(default=4, ge=1)
    """Copies at once in one router; one more is dropped, and counted."""


class ExposureLog(Settings):
    """Files that say which arm each request met, and how it ended."""

    directory: Annotated[str, AfterValidator(check_folder)]
    """On each node with a router, made if need be; a file for each router."""
    max_file_mb: float = Field(default=64.0, gt=0)
    max_files: int = Field(default=16, ge=2)
    """Of one router; the oldest is removed when another one begins."""
    max_queued: int = Field(default=10_000, ge=1)
    """Lines that wait for the disk; one more is dropped, and counted."""


class Limits(Settings):
    """How long the router waits, and when it takes an arm out."""

    first_byte_timeout_s: float = Field(default=120.0, gt=0)
    """Until a stream begins; then the request goes to another arm."""
    chunk_timeout_s: float = Field(default=120.0, gt=0)
    """Between two chunks of a stream; then it ends with an error."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Until a stream has begun, or a whole answer is there, on whatever arms: then status 504."""
    max_moves: int = Field(default=2, ge=0)
    """How often a request that has no answer yet goes to another arm or replica."""
    unhealthy_after: int = Field(default=3, ge=1)
    """Failures in a row that take an arm out; the death of a replica or engine does so at once."""
    probe_timeout_s: float = Field(default=5.0, gt=0)
    """Until an arm must have answered the router's health check."""
    probe_period_s: float = Field(default=5.0, gt=0)
    """Between two checks of an arm that has answered nothing meanwhile."""
    retry_s: float = Field(default=1.0, gt=0)
    """Until an arm that is out is checked again, twice as long after each check that fails."""
    max_retry_s: float = Field(default=15.0, gt=0)


class RouterOptions(Settings):
    """`router` of a staging file."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the draw that gives each user an arm: the same in all routers, or users change arms between them."""
    session_header: str = "X-Session-Id"
    """Whose value stays with one arm; without it the `user` of the request's body does."""
    arm_header: str = "X-Specplug-Arm"
    """In a request: the arm that must serve it. In an answer: the arm that did."""
    api_key_env: str | None = None
    """Environment variable of the router's replicas with the key that clients must send; never the key itself."""
    unit_key_env: str | None = None
    """The same with a secret for the hashes that stand for users in the exposure log. Without it, whoever reads the log
    and knows the seed can check who a hash may be."""
    admin: bool = False
    """The route with weights, health and counts; with a key it is there in any case."""
    shadow: Shadow | None = None
    exposure: ExposureLog | None = None
    limits: Limits = Limits()

    @field_validator("session_header", "arm_header")
    @classmethod
    def _header(cls, value: str) -> str:
        if not value or not value.isascii() or not value.replace("-", "").isalnum():
            raise ValueError(f"{value!r} cannot be the name of a header; expected letters, digits and -")
        return value

    @field_validator("api_key_env", "unit_key_env")
    @classmethod
    def _variable(cls, value: str | None) -> str | None:
        if value is not None and not (value.isascii() and value.isidentifier()):
            # Not quoted: it may be the key itself.
            raise ValueError("not the name of an environment variable; expected letters, digits and _, not the secret")
        return value

    def secret(self, option: Literal["api_key_env", "unit_key_env"]) -> str | None:
        """What the environment variable holds that an option names; None: it names none.

        Raises:
            DeployError: it holds nothing.
        """
        variable: str | None = getattr(self, option)
        if variable is None:
            return None
        value = os.environ.get(variable)
        if not value:
            raise DeployError(
                f"router.{option} is {variable!r}, but this environment variable of the router is not set; export it"
            )
        return value

    @model_validator(mode="after")
    def _two_headers(self) -> Self:
        if self.session_header.lower() == self.arm_header.lower():
            raise ValueError(
                f"session_header and arm_header are both {self.arm_header!r}, so that every session would be taken for "
                "an arm; give them different names"
            )
        return self


class RouterSettings(RouterOptions):
    """What a router is started with."""

    model: str
    """The name that clients ask for."""
    arms: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _shadow_is_an_arm(self) -> RouterSettings:
        if self.shadow is not None and self.shadow.arm not in self.arms:
            raise ValueError(f"shadow.arm is {self.shadow.arm!r}; expected one of {', '.join(self.arms)}")
        return self

    def full_name(self, arm: str) -> str:
        """The model that only this arm serves."""
        return f"{self.model}--{arm}"
