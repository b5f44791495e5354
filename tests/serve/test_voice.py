"""What the server says: never lost without a word, never waited for."""

from __future__ import annotations

import logging
import os
import re

from tests.serve.support import until

from dovetail.serve import voice as voices
from dovetail.serve.voice import MAX_WAITING_BYTES, SELDOM_SECONDS, LogToVoice, Seldom, Voice, stamp


def test_a_line_has_the_time_before_it_and_a_line_for_programs_has_not():
    read, write = os.pipe()
    voice = Voice(write, now=lambda: 1_700_000_000.25)
    voice.say("one\ntwo")
    voice.line('{"ready": true}')
    voice.close()
    os.close(write)
    with os.fdopen(read) as reader:
        when = "2023-11-14T22:13:20.250Z"
        assert stamp(1_700_000_000.25) == when
        assert reader.read() == f'{when} dovetail: one\n{when} dovetail: two\n{{"ready": true}}\n'


def test_what_nobody_reads_is_bounded_and_counted(monkeypatch):
    monkeypatch.setattr(voices, "LAST_WORDS_SECONDS", 0.01)
    read, write = os.pipe()
    voice = Voice(write, now=lambda: 0.0)
    said = 3 * MAX_WAITING_BYTES // 1000
    for _ in range(said):
        voice.say("x" * 1000)
    assert voice._waiting_bytes <= MAX_WAITING_BYTES
    got = b""
    while voice._lines:
        got += os.read(read, 1 << 20)
    voice.say("after")
    while b"after" not in got:
        got += os.read(read, 1 << 20)
    # Some may have been lost and told of before the pipe was full.
    told = [int(number) for number in re.findall(rb"(\d+) line\(s\) were lost here", got)]
    assert got.count(b"x" * 1000) == said - sum(told) and sum(told) > said // 3
    until(lambda: not voice._waiting_bytes)
    voice.close()
    os.close(read)
    os.close(write)


def test_text_that_utf8_cannot_hold_and_a_closed_descriptor_are_no_trouble():
    read, write = os.pipe()
    voice = Voice(write)
    os.close(read)
    os.close(write)
    voice.say("\ud800 is no text")
    voice.close()


def test_what_is_logged_is_said_even_if_it_is_wrong():
    said: list[str] = []
    handler = LogToVoice(said.append)
    handler.handle(logging.makeLogRecord({"msg": "%d of %s", "args": (1,), "levelno": logging.ERROR}))
    handler.handle(logging.makeLogRecord({"msg": "%d left", "args": (1,), "levelno": logging.ERROR}))
    assert said == ["%d of %s", "1 left"]


def test_what_repeats_itself_is_said_seldom():
    said: list[str] = []
    now = [0.0]
    seldom = Seldom(said.append, lambda: now[0])
    for _ in range(1000):
        seldom("no more descriptors")
    now[0] = SELDOM_SECONDS
    seldom("no more descriptors")
    assert said == ["no more descriptors", "no more descriptors (999 times more meanwhile)"]
