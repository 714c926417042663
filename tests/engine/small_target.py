"""What the tests of sampled text share: a target of 8 tokens (the fixture `eight`), and what it is asked.

With 8 tokens the distribution of an answer of four is known exactly (the fixture `target`), and each pair and triple of
consecutive tokens is counted often enough to be tested one by one.
"""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 8
#: Holds every token and what followed it, so that prompt lookup always drafts.
PROMPT = [1, 5, 2, 7, 0, 3, 6, 4, 1, 3]
NUM_TOKENS = 4
NUM_DRAFTS = 3
#: A wrong engine is rejected at this p.
MUTANT_LEVEL = 1e-6
#: Arguments of its engines.
SETTINGS: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 256}
