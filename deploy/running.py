"""`python -m deploy run`: a deployment in the foreground, from nothing to nothing."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from deploy import cluster, preflight, serving, shared_memory
from deploy.progress import Progress
from deploy.staging import DEMO_MODEL, Http, Staging, load_staging
from vllm_specplug.errors import DeployError

_WATCH_S = 2.0


def main(path: str, address: str | None, *, num_cpus: int | None, dashboard: bool) -> int:
    """Deploy, say what happens, and serve until a signal.

    Args:
        path: the staging file.
        address: as `cluster.find` takes it.
        num_cpus: of a cluster of its own; None: all.
        dashboard: whether a cluster of its own has one.
    Returns:
        0: it was up and was told to end.
    Raises:
        DeployError: it cannot be served, or did not come up.
    """
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    staging = load_staging(path)
    preflight.require(staging, quick=True)
    found = cluster.find(address)
    if found == cluster.LOCAL:
        preflight.require_here(staging)
        staging = staging.model_copy(update={"http": _free_address(staging.http)})
    elif not staging.http.port:
        raise DeployError(f"{path}: http.port is 0, which needs a cluster of its own; name a port for that at {found}")
    if staging.source == DEMO_MODEL:
        from vllm_specplug.demo_model import demo_model_path

        demo_model_path(progress=say)
    options = {"num_cpus": num_cpus, "include_dashboard": dashboard}
    up = False
    with (
        _told(signal.SIGHUP) as reload,
        _stopping(say) as stop_on_signals,
        shared_memory.swept() as segments,
        cluster.connected(found, **options) as ray,
    ):
        stop_on_signals()  # once more: Ray has set a handler of its own
        say(f"Ray {ray.address}, {'started' if ray.is_ours else 'there already'}; logs in {ray.log_folder}")
        with serving.deployed(staging, ray), segments.noted_at_end():
            progress = Progress(staging)
            serving.wait_until_up(staging, progress, say)
            up = True
            say(f"serving {staging.model!r} at {_base_url(staging)} (arms: {', '.join(staging.arms)})")
            say(f"metrics at {', '.join(ray.metrics)}")
            _watch(path, staging, progress, say, reload)
    say("ended")
    return 0 if up else 130


def _watch(path: str, staging: Staging, progress: Progress, say: serving.Say, reload: Callable[[], bool]) -> NoReturn:
    """Say what changes, and read the file again when told to, until an exception ends it.

    Raises:
        DeployError: the application is gone.
    """
    while True:
        time.sleep(_WATCH_S)
        application = serving.status(staging)
        if application is None:
            raise DeployError("the application is gone: somebody took it away")
        for line in progress.changes(application):
            say(line)
        if reload():
            staging = _again(path, staging, say)


def _again(path: str, staging: Staging, say: serving.Say) -> Staging:
    """Apply the file as it is now; a wrong one changes nothing."""
    try:
        new = load_staging(path).model_copy(update={"http": staging.http})
        preflight.require(new, quick=True)
        if new.name != staging.name:
            raise DeployError(f"{path}: name was {staging.name!r} and is {new.name!r}; that needs a new start")
        serving.apply(new)
    except DeployError as error:
        print(f"deploy: error: {error}", file=sys.stderr, flush=True)
        say("going on as before")
        return staging
    say(f"read {path} again; weights: {', '.join(f'{arm} {weight:g}' for arm, weight in new.weights.items())}")
    return new


def _base_url(staging: Staging) -> str:
    host = f"[{staging.http.host}]" if ":" in staging.http.host else staging.http.host
    return f"http://{host}:{staging.http.port}{staging.route_prefix.rstrip('/')}/v1"


def _free_address(http: Http) -> Http:
    """The address with a port that is free now.

    Raises:
        DeployError: it is taken, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((http.host, http.port))
        except OSError as error:
            raise DeployError(
                f"http: cannot listen on {http.host} port {http.port} ({error.strerror}); "
                + (
                    "set http.host to an address of this machine"
                    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
                    else "set another port, or 0 for any free one"
                )
            ) from error
        return http.model_copy(update={"port": probe.getsockname()[1]})


class _Stop(BaseException):
    """A signal told us to end."""


@contextlib.contextmanager
def _stopping(say: serving.Say) -> Iterator[Callable[[], None]]:
    """End the block, in peace, at the first SIGINT or SIGTERM; later ones change nothing.

    Yields:
        What sets the handlers again.
    """
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, _frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        say(f"{signal.Signals(number).name}: ending")
        raise _Stop

    def set_handlers() -> None:
        for one in signals:
            signal.signal(one, stop)

    before = {one: signal.getsignal(one) for one in signals}
    set_handlers()
    try:
        yield set_handlers
    except _Stop:
        pass
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def _told(number: signal.Signals) -> Iterator[Callable[[], bool]]:
    """A function that says whether the signal came since it was last asked."""
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True

    def ask() -> bool:
        nonlocal came
        answer, came = came, False
        return answer

    before = signal.signal(number, note)
    try:
        yield ask
    finally:
        signal.signal(number, before)
