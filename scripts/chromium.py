"""A real browser for pages, in tests and a benchmark: Debian's chromium, driven over two pipes by its debugger."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 240.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class BrowserFailed(Exception):
    """There is none, it does not answer, or what was waited for does not come."""


class Browser:
    """One page in one browser."""

    def __init__(self, program: str, profile: Path) -> None:
        ours_in, written = os.pipe()
        read, ours_out = os.pipe()
        theirs_in, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, written))
        os.close(read)
        os.close(written)
        # The browser reads from descriptor 3 and writes to descriptor 4.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out = os.fdopen(ours_out, "wb", buffering=0)
        self._in = os.fdopen(ours_in, "rb", buffering=0)
        self._answers: dict[int, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._number, self._session, self._has_ended = 0, "", False
        self.complaints: list[str] = []
        """What the page has written to the console as a warning or an error, what it threw, what a policy blocked."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something; its answer.

        Raises:
            BrowserFailed: it has ended, or says nothing, or no.
        """
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        with self._news:
            self._news.wait_for(lambda: number in self._answers or self._has_ended, LIMIT_S)
            answer = self._answers.pop(number, {"error": "the browser has ended" if self._has_ended else "silence"})
        if "error" in answer:
            raise BrowserFailed(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression in the page.

        Raises:
            BrowserFailed: it throws.
        """
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserFailed(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, what: str, limit_s: float = LIMIT_S) -> Any:
        """Until an expression is true; what it came to.

        Raises:
            BrowserFailed: it is not within ``limit_s``.
        """
        give_up_s = time.monotonic() + limit_s
        while not (found := self.value(expression)):
            if time.monotonic() > give_up_s:
                raise BrowserFailed(f"waited {limit_s:.0f} s for {what}")
            time.sleep(0.1)
        return found

    def look(self, *, width: int, height: int, is_dark: bool = False, is_phone: bool = False) -> None:
        """Show the page on a screen of so many points."""
        scale = 2 if is_phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """What is on the screen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End it and all of its processes."""
        self._session = ""
        if self._process.poll() is None:
            try:
                self.call("Browser.close")
                self._process.wait(10.0)
            except (BrowserFailed, OSError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, 9)
                self._process.wait(10.0)
        self._reader.join(10.0)
        self._out.close()
        self._in.close()

    def _read(self) -> None:
        waiting = b""
        while piece := self._in.read(1 << 16):
            *messages, waiting = (waiting + piece).split(b"\0")
            for message in messages:
                self._hear(json.loads(message))
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _hear(self, message: dict[str, Any]) -> None:
        if "id" in message:
            with self._news:
                self._answers[message["id"]] = message
                self._news.notify_all()
            return
        told = message.get("params", {})
        match message["method"]:
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(told["entry"]["text"])


def browser_program() -> str:
    """The browser on this machine.

    Raises:
        BrowserFailed: there is none.
    """
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise BrowserFailed(f"none of {', '.join(BROWSERS)} is installed: apt-get install chromium")
    return found


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """A browser that is gone afterwards."""
    opened = Browser(browser_program(), directory / "profile")
    try:
        yield opened
    finally:
        opened.close()
