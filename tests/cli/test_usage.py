"""What is wrong with a command line is said in a line or two, with the place and the remedy."""

from __future__ import annotations

import pytest

from dovetail.cli import main


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "--port", "99999", "a:b"], "dovetail serve: --port: '99999' must be a port from 0 to 65535"),
        (["serve", "--prot", "1", "a:b"], "dovetail serve: there is no '--prot'; did you mean --port?"),
        (["serve", "--quite-another", "a:b"], "dovetail serve: there is no '--quite-another'"),
        (
            ["serve", "--lead", "1", "a:b"],
            "dovetail serve: --lead: duration '1' has no unit; write for example '300ms'",
        ),
        (["serve", "--arena", "0", "a:b"], "dovetail serve: --arena: size '0' has no unit; write for example '14GB'"),
        (["serve", "--drain", "-1", "a:b"], "dovetail serve: --drain: '-1' must be a number of seconds from 0 on"),
        (["load", "--rate", "5/s"], "dovetail load: the following arguments are required: model"),
    ],
)
def test_a_wrong_flag_is_one_line_and_the_way_to_all_of_them(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"{says}\nsee dovetail {words[0]} --help\n"
