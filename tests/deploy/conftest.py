"""Each file begins and ends without Ray in this process.

Ray starts by itself when something asks for a cluster (`serve.get_replica_context`, a meter), and then refuses to be
started on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(autouse=True, scope="module")
def no_ray_behind() -> Iterator[None]:
    yield
    if ray.is_initialized():
        ray.shutdown()
