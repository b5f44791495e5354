"""docs/clients.md: its application is served as it says, and each of its calls is made."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu
PAGE = Path(__file__).resolve().parents[1] / "docs/clients.md"
PATIENCE_SECONDS = 60


def test_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    app, *calls = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert (len(calls), len(commands)) == (4, 2)
    (tmp_path / "shop.py").write_text(app)
    (tmp_path / "page.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    words = ["serve", "shop:app", "--port", "0", "--grpc-port", "0", "--shared-memory"]
    server = subprocess.Popen(
        [sys.executable, "-m", "dovetail", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        ready = next(json.loads(line) for line in server.stderr if line.startswith('{"ready": true'))
        ports = {"127.0.0.1:8000": f"127.0.0.1:{ready['port']}", "127.0.0.1:8001": f"127.0.0.1:{ready['grpc_port']}"}

        def here(code: str) -> str:
            for written, real in ports.items():
                code = code.replace(written, real)
            return code

        for call in calls:
            exec(compile(here(call), str(PAGE), "exec"), {"__name__": "page"})
            assert capsys.readouterr().out.strip() == "[1. 2. 3. 4.]"
        if shutil.which("curl") is not None:
            said = [
                json.loads(
                    subprocess.run(
                        here(command),
                        shell=True,
                        cwd=tmp_path,
                        capture_output=True,
                        timeout=PATIENCE_SECONDS,
                        check=True,
                    ).stdout
                )
                for command in commands
            ]
            assert [each["outputs"][0]["data"] for each in said] == [[2, 3, 4, 5], ["8 bytes"]]
    finally:
        server.terminate()
        server.stderr.read()
        server.stderr.close()
        assert server.wait(PATIENCE_SECONDS) == 0
