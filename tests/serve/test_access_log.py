"""One line for each answer, whatever it was."""

from __future__ import annotations

import json

import pytest
from tests.serve.support import infer, request

from dovetail.errors import LogError
from dovetail.serve.access_log import AccessLog


def test_each_answer_has_a_line(make_server, tmp_path):
    server = make_server()
    server.http.access_log = AccessLog(tmp_path / "access.log")
    with server.wire() as wire:
        assert wire.send(request("GET", "/v2/health/live", User_Agent="me/1")).reply().status == 200
        assert wire.send(infer("late")).reply("POST").status == 200
        assert wire.send(infer("crash")).reply("POST").status == 500
        assert wire.send(b"not HTTP\r\n\r\n").reply().status == 400
    server.http.access_log.close()
    first, second, third, last = map(json.loads, (tmp_path / "access.log").read_text().splitlines())
    assert (first["method"], first["path"], first["status"]) == ("GET", "/v2/health/live", 200)
    assert (first["client"], first["agent"], first["bytes_in"], first["bytes_out"]) == ("127.0.0.1", "me/1", 0, 13)
    assert (second["path"], second["status"]) == ("/v2/models/late/infer", 200)
    assert second["bytes_in"] > 0 and second["bytes_out"] > 0 and second["ms"] >= 0
    assert third["status"] == 500
    assert last["status"] == 400 and "path" not in last
    assert first["time"].endswith("Z")


def test_it_is_added_to_and_what_cannot_be_written_is_told(tmp_path):
    for _ in range(2):
        log = AccessLog(tmp_path / "access.log")
        log.answered("c", None, 400, 0.0, 0)
        log.close()
    assert len((tmp_path / "access.log").read_text().splitlines()) == 2
    with pytest.raises(LogError, match="cannot write the access log"):
        AccessLog(tmp_path / "nowhere" / "access.log")
