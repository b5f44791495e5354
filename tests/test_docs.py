"""The documents: links lead somewhere, code runs, named tests exist, and nothing of this machine is in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def tracked() -> list[Path]:
    """All files that belong to the project, also those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout to know which files belong to the project")
    return [PROJECT / line for line in listed if (PROJECT / line).is_file()]


def anchors(path: Path) -> set[str]:
    """Headings as GitHub makes links of them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        found = (document.parent / file).resolve() if file else document
        assert found.exists(), f"{name(document)} links to {target}, which does not exist"
        assert found.is_relative_to(PROJECT), f"{name(document)} links out of the project: {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{name(document)} links to {target}, which has no such heading"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:src|tests|docs|examples|bench|scripts)/[\w./-]+\.\w+)(?:::\w+)?`", text):
        assert (PROJECT / path).exists(), f"{name(document)} names {path}, which does not exist"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_tests_that_are_named_exist(document: Path) -> None:
    for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document.read_text(encoding="utf-8")):
        assert f"def {test}(" in (PROJECT / path).read_text(encoding="utf-8"), (
            f"{name(document)} names {path}::{test}"
        )


def test_tests_that_are_named_without_their_file_exist() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted((PROJECT / "tests").rglob("*.py")))
    defined = set(re.findall(r"def (test_\w+)\(", sources))
    for document in DOCUMENTS:
        for test in re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8")):
            assert test in defined, f"{name(document)} names {test}"


def test_invariants_are_numbered_as_validate_numbers_them() -> None:
    promises = re.findall(r"^\*\*(\d)\. ", (PROJECT / "docs/invariants.md").read_text(), re.MULTILINE)
    assert promises == [str(n) for n in range(1, len(promises) + 1)]
    cited = set(re.findall(r"\[(\d)\]\"", (PROJECT / "src/dovetail/control/validate.py").read_text()))
    assert cited == {"1", "2", "3", "4"}


@pytest.mark.cpu
def test_python_of_the_workflow_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (PROJECT / "docs/workflows.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 6
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/workflows.md", "exec"), scope)
    assert set(scope["app"].workflows) == {"which_way", "loud", "headline"}  # type: ignore[attr-defined]


@pytest.mark.cpu
def test_python_of_the_page_on_bringing_models_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    text = (PROJECT / "docs/bring.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/bring.md", "exec"), {})
    assert "output" in capsys.readouterr().out


def test_python_of_the_device_page_runs() -> None:
    text = (PROJECT / "docs/device.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/device.md", "exec"), scope)


def test_states_of_the_device_page_are_those_of_the_code() -> None:
    from dovetail.device.task import TRANSITIONS

    text = (PROJECT / "docs/device.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| state \|.*?\n((?:\|.*\n)+)", text, re.MULTILINE)
    told = {}
    for row in table.splitlines()[1:]:
        state, _, after = (cell.strip() for cell in row.strip("|").split("|"))
        told[state.strip("`")] = set(re.findall(r"`(\w+)`", after))
    assert told == {state.value: {s.value for s in after} for state, after in TRANSITIONS.items()}


def test_every_event_and_action_of_a_device_is_on_its_page() -> None:
    from typing import get_args

    from dovetail.device.events import DeviceAction, DeviceEvent

    text = (PROJECT / "docs/device.md").read_text(encoding="utf-8")
    for kinds, heading in ((DeviceEvent, "event"), (DeviceAction, "action")):
        (table,) = re.findall(rf"^\| {heading} \|.*?\n((?:\|.*\n)+)", text, re.MULTILINE)
        told = {word for row in table.splitlines() for word in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert told == {kind.__name__ for kind in get_args(kinds)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_lines_are_short(document: Path) -> None:
    for line in FENCE.sub("", document.read_text(encoding="utf-8")).splitlines():
        assert len(line) <= 120, f"{name(document)}: {len(line)} characters: {line[:60]}…"


def test_nothing_of_this_machine_and_no_registry_is_in_the_project() -> None:
    # Registries are written in pieces, so that this file does not find itself.
    forbidden = [f"{PROJECT}/", f"{Path.home()}/", "pypi" + ".org", "pythonhosted" + ".org", "artif" + "actory"]
    for path in tracked():
        if path.suffix in {".png", ".gz", ".onnx", ".npy"}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for word in forbidden:
            assert word not in text, f"{name(path)} contains {word}"
