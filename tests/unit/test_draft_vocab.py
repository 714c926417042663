"""The list of tokens that can be drafted: where it is looked for, and what is no such list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_specplug import draft_vocab
from vllm_specplug.errors import ModelError


def test_what_was_written_is_read_in_order_and_once(tmp_path: Path) -> None:
    draft_vocab.write(tmp_path / "list.json", [5, 1, 3])
    assert (tmp_path / "list.json").read_text() == "[1,3,5]\n"
    assert draft_vocab.read(tmp_path / "list.json", 6) == [1, 3, 5]
    (tmp_path / "list.json").write_text("[3, 1, 3, 0]")
    assert draft_vocab.read(tmp_path / "list.json", 6) == [0, 1, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["list.json"]


def test_an_option_goes_before_the_list_stored_with_the_draft(tmp_path: Path) -> None:
    draft, other = tmp_path / "draft", tmp_path / "other.json"
    draft.mkdir()
    assert draft_vocab.find(None, str(draft), 32) is None
    draft_vocab.write(other, [7])
    assert draft_vocab.find(str(other), str(draft), 32) == [7]
    draft_vocab.write(draft / draft_vocab.FILE, [1, 2])
    assert draft_vocab.find(None, str(draft), 32) == [1, 2]
    assert draft_vocab.find(str(other), str(draft), 32) == [7]
    assert draft_vocab.find("all", str(draft), 32) is None
    assert draft_vocab.find(None, "organisation/name-on-a-hub", 32) is None


def test_every_token_of_the_target_can_be_named_and_none_beyond(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps(list(range(32))))
    assert draft_vocab.read(path, 32) == list(range(32))
    with pytest.raises(ModelError) as error:
        draft_vocab.read(path, 31)
    assert str(error.value) == (
        f"draft_vocab {path} holds token 31, but 0 to 30 can be drafted; make the list for this target"
    )
    path.write_text("[-2, 99]")
    with pytest.raises(ModelError, match="holds token -2, but 0 to 31 can be drafted"):
        draft_vocab.read(path, 32)


@pytest.mark.parametrize("text", ["[]", "{}", "null", "3", '"all"', '["1"]', "[1.0]", "[true]", "[1, null]", "[[1]]"])
def test_whatever_is_no_list_of_ids_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(ModelError) as error:
        draft_vocab.read(path, 32)
    assert str(error.value) == f"draft_vocab {path} should be a JSON list of token ids, and not empty"


@pytest.mark.parametrize("content", [None, b"", b"[1, 2", b"\xff\xfe[1]"], ids=str)
def test_a_file_that_is_not_json_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "list.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as error:
        draft_vocab.find(str(path), "", 32)
    text = str(error.value)
    assert text.startswith(f"draft_vocab {path} cannot be read (")
    assert text.endswith("); give a JSON list of token ids")
    assert "\n" not in text


def test_a_directory_given_as_the_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        draft_vocab.find(str(tmp_path), "", 32)
