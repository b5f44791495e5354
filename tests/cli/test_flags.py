"""Flags that contradict each other are refused with the reason, before anything is read, loaded or measured."""

from __future__ import annotations

import pytest

from dovetail.cli import main

CONTRADICTIONS = {
    "serve nowhere:app --policy dovetail --share 50": "does not look at it; these do: first-come, by-class",
    "serve nowhere:app --policy esg --max-batch 2": "--max-batch: the policy 'esg' does not look at it",
    "serve nowhere:app --policy place --lead 2ms": "--lead: the policy 'place' does not look at it",
    "serve nowhere:app --policy plaice": "did you mean 'place'?",
    "serve nowhere:app --share 50": "the policy 'dovetail' does not look at it",
    "serve nowhere:app --max-batch 2": "the policy 'dovetail' does not look at it",
    "serve nowhere:app --device emulated:v100 --kernel-log k": "--kernel-log: an emulated device does not look at it",
    "serve nowhere:app --device emulated:v100 --ageing 5ms": "--ageing: an emulated device does not look at it",
    "serve tests.cli.without_like:app --hosts 2": "--hosts: tests.cli.without_like:app has no Python stage",
    "trace --log nowhere.jsonl --policy fikit": "--policy: it is for a simulation, and --log draws what was recorded",
    "trace --log nowhere.jsonl --tasks 2": "--tasks: it is for a simulation",
    "profile nowhere:app --forget": "--forget lets go of what --kernels or --learned shows",
    "profile nowhere:app --kernels --learned": "--kernels and --learned show different things",
    "profile nowhere:app --status --quick": "--quick: --status measures nothing",
    "profile nowhere:app --kernels --stage a": "--stage: --kernels shows what was learned while serving",
    "profile": "which application?",
    "reproduce --quick": "--quick: say which experiment",
    "catalogue workflows --device v100": "--device: workflows are the same for every device; it goes with models",
    "explain --id --worst 3": "--id: say which request has that id",
    "explain 7 --worst 3": "--worst lists requests of an outcome",
}


@pytest.mark.parametrize("command", CONTRADICTIONS)
def test_a_contradiction_is_refused_with_the_reason(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert CONTRADICTIONS[command] in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("serve nowhere:app --port 70000", "must be a port from 0 to 65535"),
        ("serve nowhere:app --hang 0", "must be above 0"),
        ("serve nowhere:app --drain -1", "must be a number of seconds"),
        ("serve nowhere:app --workers 0", "must be a whole number from 1 on"),
        ("serve nowhere:app --workers 1..", "or two of them such as 1..3"),
        ("serve nowhere:app --workers 0..0", "from 1 on, or two of them such as 1..3 or 0..3"),
        ("serve nowhere:app --workers 3..2", "3 at the least are more than 2 at the most"),
    ],
)
def test_a_value_that_cannot_be_is_refused(command: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(command.split())
    assert refused.value.code == 2
    assert reason in capsys.readouterr().err
