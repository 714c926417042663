"""Sends requests to a server when they are due, each in a thread of its own. Knows no HTTP; `pacing` is for engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


def send_paced(
    answer: Callable[[int, float], dict[str, Any]],
    arrival_s: Sequence[float],
    at_once: int | None = None,
    hurry: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Answer all requests, each sent when it has come and, with `at_once`, when one before it is answered.

    Args:
        answer: of the request with this index, which came at this `time.perf_counter`; runs in a thread.
        arrival_s: when each request comes, in s from the start, never going back.
        at_once: requests in flight at most; a request then comes when it is sent. None: no limit.
        hurry: whether there is no use in waiting for the time of the next one any more.
    Returns:
        What `answer` gave for each, with arrival_s and sent_s: when it came and when it was sent, s from the start.
    Raises:
        What `answer` raises, when all are done.
    """
    outputs: list[dict[str, Any] | BaseException | None] = [None] * len(arrival_s)
    free = None if at_once is None else threading.Semaphore(at_once)
    start = time.perf_counter()

    def one(index: int, came_s: float, sent_s: float) -> None:
        try:
            outputs[index] = {**answer(index, start + came_s), "arrival_s": came_s, "sent_s": sent_s}
        except BaseException as error:  # it must not get lost in this thread
            outputs[index] = error
        finally:
            if free is not None:
                free.release()

    threads = []
    for index, due_s in enumerate(arrival_s):
        wait_s = start + due_s - time.perf_counter()
        if wait_s > 0 and not hurry():
            time.sleep(wait_s)
        if free is not None:
            free.acquire()
        sent_s = time.perf_counter() - start
        # Daemons: who is interrupted does not wait for a server that does not answer.
        thread = threading.Thread(target=one, args=(index, due_s if free is None else sent_s, sent_s), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    done: list[dict[str, Any]] = []
    for output in outputs:
        if isinstance(output, BaseException):
            raise output
        assert output is not None
        done.append(output)
    return done
