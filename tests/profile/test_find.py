"""Which profile store is taken: one rule for all commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.profile.find import find_store

NAME = "profiles.sqlite"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The current directory, and that of an application."""
    here, beside = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    beside.mkdir()
    monkeypatch.chdir(here)
    return here, beside


def test_a_store_that_is_named_counts_and_nothing_is_said(folders: tuple[Path, Path]) -> None:
    here, beside = folders
    (here / NAME).touch()
    (beside / NAME).touch()
    found = find_store(Path("mine.sqlite"), beside)
    assert (found.path, found.note, found.conflict) == (Path("mine.sqlite"), "", False)


def test_without_any_it_will_be_made_in_the_current_directory(folders: tuple[Path, Path]) -> None:
    found = find_store(None, folders[1])
    assert found.path == Path(NAME) and not found.conflict
    assert "no profile store" in found.note


def test_one_beside_the_application_is_found_from_anywhere(folders: tuple[Path, Path]) -> None:
    (folders[1] / NAME).touch()
    found = find_store(None, folders[1])
    assert found.path == folders[1] / NAME and not found.conflict
    assert f"{folders[1] / NAME}, beside the application" in found.note


def test_one_below_the_current_directory_is_named_shortly(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders[1].parent)
    (folders[1] / NAME).touch()
    assert find_store(None, folders[1]).path == Path("there") / NAME


def test_of_two_the_current_directory_wins_and_the_other_is_reported(folders: tuple[Path, Path]) -> None:
    here, beside = folders
    (here / NAME).touch()
    (beside / NAME).touch()
    found = find_store(None, beside)
    assert found.path == Path(NAME) and found.conflict
    assert f"{beside / NAME} beside the application is not used: choose with --store" in found.note


def test_the_same_file_twice_is_no_conflict(folders: tuple[Path, Path]) -> None:
    here, _ = folders
    (here / NAME).touch()
    found = find_store(None, here)
    assert found.path == Path(NAME) and not found.conflict
    link = here.parent / "link"
    link.symlink_to(here)
    assert not find_store(None, (here, link)).conflict
    (here / NAME).rename(folders[1] / NAME)
    again = here.parent / "again"
    again.symlink_to(folders[1])
    assert not find_store(None, (folders[1], again)).conflict


def test_without_an_application_only_the_current_directory_is_looked_at(folders: tuple[Path, Path]) -> None:
    (folders[1] / NAME).touch()
    assert find_store(None).path == Path(NAME)
