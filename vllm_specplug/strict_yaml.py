"""YAML files as people write them by hand: a mapping, in which no key comes twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_specplug import jsonl
from vllm_specplug.errors import SpecplugError


def load_mapping(file: Path, what: str, error: type[SpecplugError], expected: str) -> Mapping[Any, Any]:
    """Read a YAML file that holds one mapping.

    Args:
        what: how errors name what it holds, e.g. "the arms".
        error: what to raise.
        expected: how that error names what should stand in it, e.g. "a mapping, for example 'baseline: null'".
    """
    text = jsonl.read_text(file, what, error)
    try:
        import yaml
    except ImportError as missing:
        raise error(f"{file} needs PyYAML, which is not installed; pip install 'vllm-specplug[compare]'") from missing

    class Loader(yaml.SafeLoader):
        """Refuses what YAML's own loader overwrites in silence: a key that comes twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            line = node.start_mark.line + 1
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise error(f"{file}: merge keys ('<<') are not read, as in what begins at line {line}; write them out")
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise error(f"{file}: {key!r} is there {keys.count(key)} times in what begins at line {line}")
            return super().construct_mapping(node, deep)

    try:
        found = yaml.load(text, Loader)
    except yaml.YAMLError as wrong:
        mark = getattr(wrong, "problem_mark", None)
        where = "" if mark is None else f":{mark.line + 1}"
        problem = " ".join(str(getattr(wrong, "problem", None) or wrong).split())
        raise error(f"{file}{where}: not YAML ({problem})") from wrong
    except RecursionError as wrong:
        raise error(f"{file}: nested too deep to be read") from wrong
    except SpecplugError:
        raise
    except ValueError as wrong:  # an integer of thousands of digits, a month of 13
        raise error(f"{file}: a value cannot be read ({wrong})") from wrong
    if not isinstance(found, dict) or not found:
        raise error(f"{file}: expected {expected}; found {found!r}")
    return found
