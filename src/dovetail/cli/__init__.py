"""The command line: results on stdout, diagnostics on stderr, an exit code that says whether the objective held.

Exit codes: 0 all is well; 1 the run is fine but an objective or a claim did not hold; 2 the input was wrong; 130
interrupted. Each verb is one module with `HELP`, `configure(parser)` and `run(args) -> int`, imported when it is
used, so that `dovetail --help` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..errors import DovetailError
from ..version import __version__

__all__ = ["main"]

#: Verb -> module of this package and its one-line help.
VERBS = {
    "serve": ("serve", "serve an application over HTTP (Open Inference Protocol v2)"),
    "keys": ("keys", "make, show and revoke the keys that clients of a server need"),
    "config": ("config", "show the settings that serve would have, and where each comes from"),
    "demo": ("demo", "serve the document workflow, send it requests at a rising rate, and show a table"),
    "top": ("top", "show what a server does, live, in the terminal"),
    "load": ("load", "send requests to a server at a fixed rate, and say what became of them"),
    "simulate": ("simulate", "run a scenario against simulated devices"),
    "profile": ("profile", "measure each stage of a workflow on this machine"),
    "interference": ("interference", "measure what the models of a workflow cost each other on this machine"),
    "plan": ("plan", "choose batch, cores and share for each stage of a workflow, and show what else there is"),
    "replay": ("replay", "run the controller again on a recorded log and compare its actions"),
    "explain": ("explain", "tell the story of a request from a log"),
    "trace": ("trace", "draw the lanes of a device kernel by kernel, simulated or from a live log"),
    "spans": ("spans", "hand a log to a collector of OpenTelemetry, as spans"),
    "slices": ("slices", "list what clients have of the devices of a running server, and change it"),
    "verify-shares": ("verify_shares", "run real models against the slices that they declare, and say what each got"),
    "reproduce": ("reproduce", "run an experiment and judge its claims"),
    "catalogue": ("catalogue", "list the devices, models and workflows that can be simulated"),
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line: nobody reads an error above which all flags are listed."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        message = message.removeprefix("argument ")
        self.exit(2, f"{self.prog}: {message}\nsee {self.prog} --help\n")


def _refuse_unknown(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """These words are no flags of the verb."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    word = unknown[0]
    close = difflib.get_close_matches(word.partition("=")[0], flags, 1)
    parser.error(f"there is no {word!r}" + (f"; did you mean {close[0]}?" if close else ""))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(
        prog="dovetail",
        description="Serve machine-learning workflows within their latency objectives, or simulate it.",
    )
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    for verb, (module_name, summary) in VERBS.items():
        sub = verbs.add_parser(verb, help=summary, description=summary)
        if verb == wanted:
            module = importlib.import_module(f".{module_name}", __package__)
            module.configure(sub)
            sub.set_defaults(run=module.run)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse_unknown(verbs.choices[args.verb], unknown)
    args.words = arguments[arguments.index(args.verb) + 1 :]
    try:
        return int(args.run(args))
    except DovetailError as error:
        with contextlib.suppress(OSError):  # nobody may be there to read it
            print(f"dovetail {args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) went away; Python would complain again while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
