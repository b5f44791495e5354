"""Trace files: the formats, what is refused, and the real ones where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dovetail.errors import ScenarioError
from dovetail.sim.recorded import Recorded
from dovetail.units import MS, SECOND

DATA = Path(os.environ.get("DOVETAIL_DATA", Path(__file__).parents[3] / "shared" / "data"))


def times(path: Path, text: str, **options: object) -> list[int]:
    path.write_text(text)
    return list(Recorded(str(path), **options).times_ns())  # type: ignore[arg-type]


def test_times_in_seconds_count_from_the_first(tmp_path: Path) -> None:
    assert times(tmp_path / "t.csv", "10.5\n10.5\n11.75\n\n12\n") == [0, 0, 1_250 * MS, 1_500 * MS]


def test_a_header_and_other_columns_are_skipped(tmp_path: Path) -> None:
    assert times(tmp_path / "t.csv", "when,who\n1.0,a\n1.001,b\n") == [0, MS]


def test_functions_arrive_at_their_end_less_their_duration_and_are_sorted(tmp_path: Path) -> None:
    text = "app,func,end_timestamp,duration\na,f,1.0,0.25\na,g,60.0,59.5\nb,f,2.0,0.0\n"
    assert times(tmp_path / "t.csv", text) == [0, 250 * MS, 1_500 * MS]


def test_language_models_have_iso_times_with_seven_digits(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    text = head + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    assert times(tmp_path / "t.csv", text) == [0, 4_314_579_000]
    zoned = head + "2024-05-10 00:00:00.009930+00:00,1,1\n2024-05-10 02:00:01+02:00,1,1\n"
    assert times(tmp_path / "t.csv", zoned) == [0, 990_070_000]


def test_speed_and_limit(tmp_path: Path) -> None:
    assert times(tmp_path / "t.csv", "0\n1\n2\n", speed=4.0) == [0, SECOND // 4, SECOND // 2]
    assert times(tmp_path / "t.csv", "0\n1\n2\n", limit=2) == [0, SECOND]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "has no arrivals"),
        ("1\n2\n1.5\n", {}, r"t\.csv:3: the time goes back"),
        ("1\nsoon\n", {}, r"t\.csv:2: there should be a time, not 'soon'"),
        ("1\ninf\n", {}, r"t\.csv:2: there should be a time, not 'inf'"),
        ("app,func,end_timestamp,duration\na,f,1.0\n", {}, r"t\.csv:2: there should be a time, not nothing"),
        ("a,b\n1,2\n", {"format": "azure-llm"}, "no column 'timestamp'; the columns are: a, b"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, text: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        times(tmp_path / "t.csv", text, **options)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"1.0\n\xff\xfe\n")
    with pytest.raises(ScenarioError, match="not comma-separated text in UTF-8"):
        list(Recorded(str(tmp_path / "t.csv")).times_ns())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot read the trace .*nothing\.csv: No such file"):
        list(Recorded(str(tmp_path / "nothing.csv")).times_ns())


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "count", "hours"),
    [("azure_functions_sample/Azure2021_200.csv", 199, 1.0), ("azure_llm/conversation_1h.csv", 10_000, 1.1)],
)
def test_published_traces_can_be_read(name: str, count: int, hours: float) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    found = list(Recorded(str(path)).times_ns())
    assert len(found) >= count
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] < hours * 3600 * SECOND
