"""A real browser for tests: headless Chromium, driven by its DevTools protocol. Nothing is downloaded.

What a page does is recorded: requests that leave it, messages on its console, exceptions of its scripts.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One tab."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._next_id = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; its result."""
        self._next_id += 1
        self._connection.send(json.dumps({"id": self._next_id, "method": method, "params": parameters}))
        return self._receive(lambda message: message.get("id") == self._next_id)["result"]

    def open(self, page: Path, width: int = 1000, height: int = 1500, dark: bool = False) -> None:
        """Show a file and wait until it is loaded; forgets what was recorded before."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events = []
        self.call("Page.navigate", url=page.as_uri())
        self._receive(lambda message: message.get("method") == "Page.loadEventFired")
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """One key, such as "Tab" or "Enter"."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path: Path) -> None:
        """What is visible, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [parameters["request"]["url"] for parameters in sent]

    def complaints(self) -> list[dict[str, Any]]:
        """Whatever is on the console."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def _receive(self, wanted: Any, timeout_s: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            message: dict[str, Any] = json.loads(self._connection.recv(timeout=deadline - time.monotonic()))
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                assert "error" not in message, message
                return message


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser while the block runs; skips the test where none is installed.

    Args:
        folder: for its profile.
    """
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed")
    client = pytest.importorskip("websockets.sync.client", reason="no websockets to talk to the browser with")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--no-first-run", "--disable-background-networking", "--remote-debugging-port=0"]
    command += [f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port, path = _address(process, folder / "DevToolsActivePort")
        with client.connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as root:
            root.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            targets = json.loads(root.recv(timeout=30))["result"]["targetInfos"]
        tab = next(target["targetId"] for target in targets if target["type"] == "page")
        with client.connect(f"ws://127.0.0.1:{port}/devtools/page/{tab}", max_size=None) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait(30)


def _address(process: subprocess.Popen[bytes], file: Path) -> tuple[str, str]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        lines = file.read_text().split() if file.exists() else []
        if len(lines) == 2:
            return lines[0], lines[1]
        time.sleep(0.1)
    raise AssertionError("the browser did not come up in 60 s")
