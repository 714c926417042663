"""Imported by every Python that starts with this folder on its path, vLLM's worker processes among them."""

import os
import sys

# Two ranks compile their part of the embedding, and the compiler would ask Triton for a CPU.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
if not any("resource_tracker" in word for word in sys.orig_argv):  # which needs nothing, and soon
    import v2_on_cpu  # noqa: F401
