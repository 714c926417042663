"""What the target answers and the hidden states it answers from, written down while vLLM serves it.

`HiddenStateRecorder` is a proposer that drafts nothing: it sits where a drafter sits, so it sees exactly the states a
drafter will see, on whatever model and however many devices vLLM runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np

from vllm_specplug.atomic import save_tensors
from vllm_specplug.errors import ConfigError
from vllm_specplug.proposer import Capabilities, DraftBatch, Drafts, EngineInfo, Proposer, ProposerOptions, Target

JOURNAL = "journal.bin"
TARGET = "target.safetensors"


def row_type(hidden_size: int) -> np.dtype[Any]:
    """One line of the journal: which request, how many tokens it has, the newest of them, the state it came from.

    States are bfloat16, kept as the 16 bits they are.
    """
    return np.dtype(
        [("request", "<u8"), ("num_tokens", "<i4"), ("token", "<i4"), ("state", "<i2", (hidden_size,))], align=False
    )


class RecorderOptions(ProposerOptions):
    """Where `HiddenStateRecorder` writes."""

    folder: str
    """Exists already; gets the journal and what heads need of the target."""


class HiddenStateRecorder(Proposer):
    """Drafts nothing and writes each new token with its hidden state to a journal."""

    Options = RecorderOptions
    capabilities = Capabilities(reads_hidden_states=True)

    def __init__(self, options: RecorderOptions, engine: EngineInfo) -> None:
        super().__init__(options, engine)
        self._folder = Path(options.folder)
        if not self._folder.is_dir():
            raise ConfigError(f"folder {options.folder!r} to record into does not exist; make it first")
        self._row_type = row_type(engine.hidden_size)
        self._file: IO[bytes] | None = None
        self._failed = False

    def load(self, target: Target) -> None:
        """Keep the target's embeddings and output layer, for training to use."""
        embeddings, output = target.input_embeddings(), target.output_embeddings()
        if self.engine.tp_rank:
            return
        tensors = {"input_embeddings": embeddings.cpu().bfloat16().clone()}
        if output.data_ptr() != embeddings.data_ptr():
            tensors["output_embeddings"] = output.cpu().bfloat16().clone()
        save_tensors(self._folder / TARGET, tensors)

    def propose(self, batch: DraftBatch) -> Drafts:
        """Write down the rows that got a token in this step."""
        import torch

        assert batch.hidden_states is not None
        rows = np.flatnonzero(batch.num_new_tokens == 1)
        if len(rows):
            written = np.zeros(len(rows), self._row_type)
            written["request"] = [_number(batch.req_ids[row]) for row in rows]
            written["num_tokens"] = batch.num_tokens[rows]
            written["token"] = batch.token_ids[rows, batch.num_tokens[rows] - 1]
            states = batch.hidden_states[torch.from_numpy(rows).to(batch.hidden_states.device)]
            written["state"] = states.bfloat16().cpu().view(torch.int16).numpy()
            self._write(written.tobytes())
        return Drafts.none(batch.num_reqs)

    def forget(self, req_ids: Collection[str]) -> None:
        """Nothing is kept of a request."""

    def _write(self, rows: bytes) -> None:
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = (self._folder / JOURNAL).open("ab")
            self._file.write(rows)
            self._file.flush()  # whoever waits for the answers finds all of their rows in the file
        except OSError:
            self._failed = True  # half a row may stand there: all that came behind it would be misread
            raise


def _number(req_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(req_id.encode(), digest_size=8).digest(), "little")
