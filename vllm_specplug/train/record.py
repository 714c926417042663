"""What the target reads, what it answers and the hidden states it answers from, written down while vLLM serves it.

`HiddenStateRecorder` is a proposer that drafts nothing: it sits where a drafter sits, so it sees exactly the states a
drafter will see, on whatever model and however many devices vLLM runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vllm_specplug.atomic import save_tensors
from vllm_specplug.errors import ConfigError
from vllm_specplug.proposer import Capabilities, DraftBatch, Drafts, EngineInfo, Proposer, ProposerOptions, Target

JOURNAL = "journal.bin"
CONTEXTS = "contexts.bin"
TARGET = "target.safetensors"


def row_type(hidden_size: int) -> np.dtype[Any]:
    """One line of the journal: which request, how many tokens it has, the newest of them, the state it came from.

    States are bfloat16, kept as the 16 bits they are.
    """
    return np.dtype(
        [("request", "<u8"), ("num_tokens", "<i4"), ("token", "<i4"), ("state", "<i2", (hidden_size,))], align=False
    )


def read_contexts(path: Path, offset: int = 0) -> dict[tuple[int, int], NDArray[np.int32]]:
    """What the recorder wrote of the tokens in front of answers.

    Returns:
        By request and number of tokens: all of them.
    """
    numbers = np.fromfile(path, "<i4", offset=offset)
    found, place = {}, 0
    while place < len(numbers):
        request, length = int(numbers[place : place + 2].view("<u8")[0]), int(numbers[place + 2])
        found[request, length] = numbers[place + 3 : place + 3 + length]
        place += 3 + length
    return found


class RecorderOptions(ProposerOptions):
    """Where `HiddenStateRecorder` writes."""

    folder: str
    """Exists already; gets the journal, the contexts and what training needs of the target."""


class HiddenStateRecorder(Proposer):
    """Drafts nothing and writes each new token with its hidden state to a journal.

    The tokens in front of an answer go to a file beside it, once: where the answer begins, or goes on behind a gap.
    """

    Options = RecorderOptions
    capabilities = Capabilities(reads_hidden_states=True)

    def __init__(self, options: RecorderOptions, engine: EngineInfo) -> None:
        super().__init__(options, engine)
        self._folder = Path(options.folder)
        if not self._folder.is_dir():
            raise ConfigError(f"folder {options.folder!r} to record into does not exist; make it first")
        self._row_type = row_type(engine.hidden_size)
        self._files: dict[str, IO[bytes]] = {}
        self._failed = False
        self._num_written: dict[str, int] = {}

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
            self._write(CONTEXTS, b"".join(self._contexts(batch, rows)))
            written = np.zeros(len(rows), self._row_type)
            written["request"] = [_number(batch.req_ids[row]) for row in rows]
            written["num_tokens"] = batch.num_tokens[rows]
            written["token"] = batch.token_ids[rows, batch.num_tokens[rows] - 1]
            states = batch.hidden_states[torch.from_numpy(rows).to(batch.hidden_states.device)]
            written["state"] = states.bfloat16().cpu().view(torch.int16).numpy()
            self._write(JOURNAL, written.tobytes())
        return Drafts.none(batch.num_reqs)

    def forget(self, req_ids: Collection[str]) -> None:
        """A request that comes back has its context written again."""
        for req_id in req_ids:
            self._num_written.pop(req_id, None)

    def _contexts(self, batch: DraftBatch, rows: NDArray[np.intp]) -> Iterator[bytes]:
        for row in rows:
            req_id, length = batch.req_ids[row], int(batch.num_tokens[row]) - 1
            if self._num_written.get(req_id) != length:
                yield np.uint64(_number(req_id)).tobytes() + np.int32(length).tobytes()
                yield batch.token_ids[row, :length].astype("<i4").tobytes()
            self._num_written[req_id] = length + 1

    def _write(self, name: str, entries: bytes) -> None:
        if self._failed:
            return
        try:
            if name not in self._files:
                self._files[name] = (self._folder / name).open("ab")
            self._files[name].write(entries)
            self._files[name].flush()  # whoever waits for the answers finds all of their rows in the file
        except OSError:
            self._failed = True  # half an entry may stand there: all that came behind it would be misread
            raise


def _number(req_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(req_id.encode(), digest_size=8).digest(), "little")
