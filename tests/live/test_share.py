"""The directory at which fronts share workers: who has which place in it, and whom it is closed to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import DeclarationError
from dovetail.live.front.share import FirstFront, JoinedFront, Serves
from dovetail.live.links.wire import MOST_INGRESSES
from dovetail.state import WorkerSpec
from dovetail.workflow.graph import StageSpec

READ = StageSpec("read", "onnx", (1, 2), model="abc123")
JOIN = StageSpec("join", "python", model="def456")
SERVES = Serves((READ, JOIN), "cpu", (WorkerSpec("cpu-0", "cpu", ("onnx",)),), (), 2, (1, 2), False, 1 << 20)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "share"


def join(place: Path) -> JoinedFront:
    return JoinedFront(place, SERVES.stages)


def replaced(**changes: object) -> tuple[StageSpec, ...]:
    return (msgspec.structs.replace(READ, **changes), JOIN)


def test_whoever_joins_gets_a_number_and_all_that_the_first_has_decided(place):
    first = FirstFront(place, SERVES)
    assert (place.stat().st_mode & 0o777, first.ingress) == (0o700, 0)
    fronts = [join(place) for _ in range(3)]
    assert [f.ingress for f in fronts] == [1, 2, 3]
    assert all(f.serves == SERVES and f.origin_ns == first.origin_ns for f in fronts)
    fronts[1].close()
    assert join(place).ingress == 2, "the first free one"


def test_no_more_can_join_than_there_are_numbers(place):
    FirstFront(place, SERVES)
    fronts = [join(place) for _ in range(MOST_INGRESSES)]
    assert fronts[-1].ingress == MOST_INGRESSES
    with pytest.raises(DeclarationError, match=f"{MOST_INGRESSES} fronts have joined already"):
        join(place)


def test_nothing_is_left_behind(place):
    first = FirstFront(place, SERVES)
    other = join(place)
    (place / "cpu-0-1.sock").touch()
    other.close()
    first.close()
    first.close()
    assert list(place.iterdir()) == []


def test_the_place_of_a_process_that_was_killed_is_free(place):
    FirstFront(place, SERVES)
    program = (
        "import sys, signal, os; from pathlib import Path; from tests.live.test_share import join; "
        "front = join(Path(sys.argv[1])); print(front.ingress, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(place)], capture_output=True, text=True, timeout=60)
    assert killed.stdout == "1\n"
    assert (place / "ingress-1").exists(), "it had no time to remove it"
    front = join(place)
    assert front.ingress == 1
    assert (place / "ingress-1").read_text() == f"{os.getpid()}\n"


def test_two_cannot_both_be_the_first(place):
    first = FirstFront(place, SERVES)
    with pytest.raises(DeclarationError, match=f"process {os.getpid()} shares its workers there already"):
        FirstFront(place, SERVES)
    first.close()
    FirstFront(place, SERVES)


def test_without_a_first_front_nobody_joins(place):
    with pytest.raises(DeclarationError, match="no such directory"):
        join(place)
    place.mkdir(mode=0o700)
    with pytest.raises(DeclarationError, match="nobody shares workers there"):
        join(place)
    first = FirstFront(place, SERVES)
    stayed = join(place)
    first.close()
    with pytest.raises(DeclarationError, match="is gone; start it again"):
        join(place)
    stayed.close()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_may_write_to_is_refused(place, mode):
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(DeclarationError, match="others may write to"):
        FirstFront(place, SERVES)
    place.chmod(0o755)
    FirstFront(place, SERVES)
    place.chmod(mode)
    with pytest.raises(DeclarationError, match="others may write to"):
        join(place)


def test_a_file_is_no_directory(place):
    place.touch()
    with pytest.raises(DeclarationError, match="not a directory"):
        FirstFront(place, SERVES)


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (replaced(model="abc124"), "stage 'read' has another model there (abc123, here abc124)"),
        ((READ, msgspec.structs.replace(JOIN, model="x")), "stage 'join' has another function there"),
        (replaced(outputs=("a", "b")), "other outputs, pad or like"),
        (replaced(name="spell"), "it has no stage spell; it has read, which this one has not"),
    ],
)
def test_another_application_cannot_join(place, stages, told):
    FirstFront(place, SERVES)
    with pytest.raises(DeclarationError) as refusal:
        JoinedFront(place, stages)
    assert told in str(refusal.value)
    JoinedFront(place, replaced(batch=(1,), path="elsewhere.onnx"))  # neither is the workers' concern


def test_a_file_of_another_version_or_none_at_all_is_refused_by_name(place):
    FirstFront(place, SERVES)
    app = place / "app.json"
    app.write_text(json.dumps({"version": 99}))
    with pytest.raises(DeclarationError, match="version 99"):
        join(place)
    app.write_bytes(b"\xff{")
    with pytest.raises(DeclarationError, match="cannot be read"):
        join(place)


def test_who_begins_again_while_others_stay_goes_on_counting(place):
    first = FirstFront(place, SERVES)
    assert [first.number(), first.number()] == [1, 2]
    stayed = join(place)
    first.close()
    again = FirstFront(place, SERVES)
    assert again.origin_ns == stayed.origin_ns
    assert again.number() == 3, "those who stayed may still read what worker 1 has left"
    again.close()
    with pytest.raises(DeclarationError, match="have joined it for another application"):
        FirstFront(place, msgspec.structs.replace(SERVES, stages=replaced(model="new")))
    stayed.close()
    afresh = FirstFront(place, SERVES)
    assert afresh.origin_ns > again.origin_ns
    assert afresh.number() == 1


def test_a_path_that_no_socket_can_have_is_refused(tmp_path):
    front = FirstFront(tmp_path / ("x" * 100), SERVES)
    with pytest.raises(DeclarationError, match="shorter path"):
        front.socket_of("cpu-0", 1)
