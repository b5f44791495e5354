"""Run schemathesis against a server of ours, by the description that the server gives of itself.

    python -m venv build/schemathesis && build/schemathesis/bin/pip install schemathesis==4.32.5
    python scripts/check_openapi.py --st build/schemathesis/bin/st --examples 300

The server is `dovetail serve` with an application of three workflows. An answer with a status of 500 or above, but
501, is a failure, and so is an answer that is not as described. Exit code 0: there was none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

APP = """
import numpy as np
from dovetail import App, stage, tensor, workflow

@stage
def add(xs): return [x + 1 for x in xs]

@stage
def shout(texts): return [bytes(text).upper() for text in texts]

@stage(outputs=("words", "count"))
def count(texts, flags): return [(list(text), len(text)) for text in texts]

@workflow(slo="1s")
def numbers(x: tensor("float32", -1, 4)) -> tensor("float32", -1, 4): return add(x)

@workflow(slo="1s")
def loud(text: tensor("bytes", 1)) -> tensor("bytes", 1): return shout(text)

@workflow(slo="1s")
def words(text: tensor("bytes", -1), flags: tensor("bool", 2)): return count(text, flags)

app = App(numbers, loud, words)
"""
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "use_after_free,unsupported_method"
)


def main() -> int:
    """Serve, test, stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--st", default="st", help="schemathesis' command")
    parser.add_argument("--examples", type=int, default=100, help="requests for each operation")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "checked_app.py").write_text(APP)
        command = [sys.executable, "-m", "dovetail", "serve", "checked_app:app", "--port", "0", "--shared-memory"]
        server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        try:
            port = next(json.loads(line)["port"] for line in server.stderr if line.startswith('{"ready": true'))
            url = f"http://127.0.0.1:{port}"
            flags = ["--checks", CHECKS, "--max-examples", str(args.examples), "--seed", str(args.seed), "--no-color"]
            tested = subprocess.run([args.st, "run", f"{url}/openapi.json", *flags], check=False, cwd=folder)
        finally:
            server.terminate()
            said = server.stderr.read()
    print(said)
    return tested.returncode or server.wait(30)


if __name__ == "__main__":
    sys.exit(main())
