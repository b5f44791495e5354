"""A headless Chromium that a test drives over its debugging pipe: no driver and no websocket between them."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

#: Debian's name, and Google's.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """Where it is, if it is there."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page."""

    def __init__(self, width: int = 1440, height: int = 1000, patience_s: float = 60.0) -> None:
        program = find_chromium()
        assert program is not None
        self._patience_s = patience_s
        self._profile = tempfile.TemporaryDirectory(prefix="dovetail-chromium-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        command = ["bash", "-c", shell, program, *FLAGS, f"--user-data-dir={self._profile.name}"]
        command += [f"--window-size={width},{height}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._data = b""
        self._number = 0
        self._session = ""
        #: What the page complains of: exceptions, errors of the console, what its policy forbids.
        self.complaints: list[str] = []
        #: Addresses that it has asked for.
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask the browser for something."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            said = self._receive()
            if said.get("id") == self._number:
                assert "error" not in said, said["error"]
                return said["result"]

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + self._patience_s
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser says nothing"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._data += more
        line, _, self._data = self._data.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        parameters = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif said.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])
        elif said.get("method") == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])
        return said

    def open(self, url: str) -> None:
        """Go there."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript, promises awaited."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until it is true."""
        end = time.monotonic() + self._patience_s
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"it never came to be: {expression}"
            time.sleep(0.1)
        return value

    def press(self, key: str) -> None:
        """A key goes down and up."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def dark(self, on: bool = True) -> None:
        """What the system is said to prefer."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()
