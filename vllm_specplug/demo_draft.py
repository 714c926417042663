"""The draft model behind `specplug demo`: layers shipped with this package, embeddings of the demo model.

The two are put together once, in the user's cache, since vLLM reads whole models.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from vllm_specplug.demo_model import cache_home
from vllm_specplug.errors import ModelError

#: What is shipped; how it was made stands beside it.
SHIPPED = Path(__file__).with_name("demo_draft")


def demo_draft_path(target: Path) -> Path:
    """Directory of the demo draft, made on the first call.

    Args:
        target: directory of the demo model.
    Raises:
        ModelError: a file cannot be read, or the cache cannot be written.
    """
    from vllm_specplug import model_files
    from vllm_specplug.directories import replace_directory
    from vllm_specplug.train import draft_files

    told = model_files.hashes([SHIPPED / draft_files.LAYERS, SHIPPED / "config.json", target / "provenance.json"])
    name = hashlib.sha256(repr(sorted(told.items())).encode()).hexdigest()[:12]
    place = cache_home() / f"{target.name}-draft-{name}"
    if not place.exists():
        ours = {file.name for file in SHIPPED.iterdir()} | draft_files.replaceable(target)
        try:
            replace_directory(place, ours, lambda made: draft_files.with_embeddings(SHIPPED, target, made))
        except ModelError:
            if not place.exists():  # another process may have been faster
                raise
    return place
