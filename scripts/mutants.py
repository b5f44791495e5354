"""Do the tests bite? Rules are changed on purpose, one at a time, and some test has to fail.

    python scripts/mutants.py rules              the changes written down in mutant_rules/: each promise has some
    python scripts/mutants.py sample             changes drawn by chance from the pure packages, with a fixed seed
    python scripts/mutants.py report             what the last samples found, by package, and who survived

Rules of this file
- Nothing is changed in place: the tree is copied, and the copy is changed (`mutant_tree`).
- A change is `killed` if a test fails, or if the tests take far more processor time than before or sleep for ever
  (`mutant_tree` judges that without a clock, so a run that is paused kills nothing). It `survived` if all tests
  that reach it pass; it is `unreached` if there is no such test, which counts as survived. A change that cannot be
  tried (its text is not there any more, or the tests fail without it) is `stale`, and a fault of ours.
- Each result is written down at once (`out/mutants/*.json`). Whoever is stopped goes on where it was. What survived
  is tried again when its tests have changed; what was killed is not. `--again` forgets all.
- Which changes are drawn depends on the seed and on the changes alone, not on what else is in the tree: the sample
  stays nearly the same while the code around it is rewritten.
- Bounded: `--seconds` ends a run in time, and every single change has its own limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mutant_map import MAP_FILE, MAP_SOURCE, Reach
from mutant_points import Mutant, mutants_of
from mutant_tree import OUT, ROOT, Book, Tree, digest, sources, text_of

PACKAGES = ("state", "plan", "place", "scale", "predict", "device", "schedule", "control")
#: Tests that need no process, socket or model.
PURE_TESTS = (
    "tests/state", "tests/plan", "tests/place", "tests/scale", "tests/predict", "tests/device", "tests/schedule",
    "tests/control", "tests/golden", "tests/laws", "tests/sim", "tests/record", "tests/profile",
)  # fmt: skip
#: Files that only check or only declare.
UNTOUCHED = ("validate.py", "protocol.py", "__init__.py")
#: Tests of one change take about so long at most: the nearest and quickest of those that reach it.
TESTS_SECONDS = 25.0
#: A change may take so many times the processor time of the tests unchanged, and this for the start.
PATIENCE, START_SECONDS, LONGEST_SECONDS = 4.0, 20.0, 600.0
GOAL_PCT = 85
SURVIVORS = ROOT / "docs" / "mutants.md"


# -- rules ----------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """One change: in this file this text, which is there once, becomes that, and these tests have to notice."""

    about: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def rules() -> list[Rule]:
    """All that are written down, in `mutant_rules/`."""
    found: list[Rule] = []
    for path in sorted(Path(__file__).with_name("mutant_rules").glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["rule"]:
            entry["file"] = f"src/dovetail/{entry['file']}"
            found.append(Rule(**{**entry, "tests": tuple(entry["tests"])}))
    return found


def try_rules(chosen: Iterable[Rule], book: Book, until: float) -> tuple[int, list[str]]:
    """Try each; how many were killed, and the names of those that were not."""
    killed, wrong = 0, []
    #: Tests -> how they ended unchanged, and after how long.
    unchanged: dict[tuple[str, ...], tuple[str, float]] = {}
    tree: Tree | None = None
    for rule in chosen:
        path = ROOT / rule.file
        before = path.read_text() if path.exists() else ""
        key = digest(rule.name, before, rule.old, rule.new, *rule.tests, text_of(rule.tests))
        if key not in book.results or book.results[key]["verdict"] == "stale":
            if time.monotonic() > until:
                print("time is up; the next run goes on from here")
                break
            tree = tree or Tree()
            book.put(key, {"name": rule.name, **_try_rule(tree, rule, before, unchanged)})
        known = book.results[key]
        print(f"{known['verdict']:9} {rule.about:12} {rule.name}  [{known['by']}]", flush=True)
        if known["verdict"] == "killed":
            killed += 1
        else:
            wrong.append(rule.name)
    if tree is not None:
        tree.close()
    return killed, wrong


def _try_rule(
    tree: Tree, rule: Rule, before: str, unchanged: dict[tuple[str, ...], tuple[str, float]]
) -> dict[str, str]:
    if before.count(rule.old) != 1:
        return {"verdict": "stale", "by": f"{rule.file} has its text {before.count(rule.old)} times"}
    if rule.tests not in unchanged:
        verdict, by, took = tree.test(rule.tests, LONGEST_SECONDS, "-x")
        unchanged[rule.tests] = (f"{verdict} {by}".strip(), took)
    said, seconds = unchanged[rule.tests]
    if said != "passed":
        return {"verdict": "stale", "by": f"unchanged, its tests: {said}"}
    with tree.changed(rule.file, before.replace(rule.old, rule.new)):
        verdict, by, _ = tree.test(rule.tests, PATIENCE * seconds + START_SECONDS, "-x")
    return {"verdict": _judged(verdict), "by": by or verdict}


def _judged(verdict: str) -> str:
    return {"passed": "survived", "failed": "killed", "timeout": "killed"}.get(verdict, "stale")


# -- samples --------------------------------------------------------------------------------------------------------


def draw(package: str, count: int, seed: int) -> list[Mutant]:
    """So many changes of a package, always the same ones for a seed."""
    found: list[Mutant] = []
    for path in sources(f"src/dovetail/{package}"):
        if path.name not in UNTOUCHED:
            found += mutants_of(str(path.relative_to(ROOT)), path.read_text())
    return sorted(found, key=lambda mutant: digest(str(seed), mutant.ident))[:count]


def reach(*, as_it_is: bool) -> Reach:
    """Which tests reach which lines, found out again if sources or tests are not what they were."""
    path = OUT / "map.json"
    now = digest(*(p.read_text() for p in sources("src/dovetail", *PURE_TESTS)))
    if path.exists():
        known = Reach(path)
        if as_it_is or known.digest == now:
            return known
    print("which tests reach which lines? (some minutes)", flush=True)
    tree = Tree()
    OUT.mkdir(parents=True, exist_ok=True)
    fresh = OUT / "map.new"
    environment = {MAP_FILE: str(fresh), MAP_SOURCE: str(tree.root / "src" / "dovetail")}
    there = [place for place in PURE_TESTS if (ROOT / place).exists()]
    verdict, by, _ = tree.test(there, 1800.0, "-p", "mutant_map", "-m", "not cpu", environment=environment)
    if verdict not in ("passed", "failed") or not fresh.exists():
        sys.exit(f"the tests have to end before anything is changed: {verdict} {by}")
    found = json.loads(fresh.read_text())
    files = {
        str(p.relative_to(tree.root)): digest(p.read_text()) for t in there for p in (tree.root / t).rglob("*.py")
    }
    fresh.write_text(json.dumps({**found, "digest": now, "files": files}))
    tree.close()
    fresh.replace(path)
    known = Reach(path)
    for test in known.failed:
        print(f"left out, for it fails already: {test}")
    return known


def tests_for(mutant: Mutant, known: Reach) -> list[str]:
    """Tests that reach the change: the nearest first, then the quickest, as many as there is time for.

    Of files of tests that are newer than the map it is not known what they reach: the nearest of them run as a whole.
    """
    found = known.of(mutant.file, *mutant.lines)
    if not found and mutant.defines:
        uses = re.compile(r"\b(" + "|".join(map(re.escape, mutant.defines)) + r")\b")
        for path in sources("src/dovetail"):
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                if uses.search(line):
                    found |= known.of(str(path.relative_to(ROOT)), number, number)
        found |= known.of_file(mutant.file)
    near = f"tests/{mutant.file.split('/')[2]}/"
    ordered = sorted(found, key=lambda test: (not known.tests[test].startswith(near), known.seconds[test], test))
    chosen: list[str] = []
    total = 0.0
    for test in ordered:
        total += known.seconds[test]
        if chosen and total > TESTS_SECONDS:
            break
        chosen.append(known.tests[test])
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sources(near)}
    newer = [f for f, text in texts.items() if "/test_" in f and known.files.get(f) != digest(text)]
    return newer + [test for test in chosen if test.partition("::")[0] not in newer]


def try_sample(packages: Sequence[str], count: int, seed: int, known: Reach, book: Book, until: float) -> bool:
    """Try each change of the sample that is not known yet; false if time was up."""
    tree: Tree | None = None
    done = True
    for package in packages:
        for mutant in draw(package, count, seed):
            tests = tests_for(mutant, known)
            tested = digest(text_of(tests))
            before = book.results.get(mutant.ident)
            if before is not None and (before["verdict"] == "killed" or before["tested"] == tested):
                continue
            if time.monotonic() > until:
                done = False
                break
            tree = tree or Tree()
            verdict, by = _try(tree, mutant, tests, known)
            book.put(
                mutant.ident,
                {
                    "package": package,
                    "file": mutant.file,
                    "function": mutant.function,
                    "line": str(mutant.lines[0]),
                    "old": mutant.old,
                    "new": mutant.new,
                    "verdict": verdict,
                    "by": by,
                    "tested": tested,
                },
            )
            print(f"{verdict:9} {mutant.ident} {_shown(book.results[mutant.ident])}  [{by}]", flush=True)
    if tree is not None:
        tree.close()
    return done


def _try(tree: Tree, mutant: Mutant, tests: list[str], known: Reach) -> tuple[str, str]:
    if not tests:
        return "unreached", ""
    usual = sum(known.usual(test, START_SECONDS) for test in tests)
    with tree.changed(mutant.file, mutant.text):
        verdict, by, _ = tree.test(tests, PATIENCE * usual + START_SECONDS, "-x")
    return _judged(verdict), by or (verdict if verdict != "passed" else f"{len(tests)} tests pass")


def _shown(result: dict[str, str]) -> str:
    old, new = (" ".join(result[side].split()) for side in ("old", "new"))
    change = f"{old[:70]} -> {new[:70]}" if old else "returns at once"
    return f"{result['file'].removeprefix('src/dovetail/')}:{result['line']} {result['function']}: {change}"


def report(packages: Sequence[str], count: int, seed: int, book: Book) -> bool:
    """Print what is known of the sample; whether the goal is reached and every survivor is explained."""
    explained = SURVIVORS.read_text() if SURVIVORS.exists() else ""
    killed = total = untried = 0
    silent: list[str] = []
    for package in packages:
        verdicts = {m.ident: book.results.get(m.ident) for m in draw(package, count, seed)}
        tried = {ident: result for ident, result in verdicts.items() if result is not None}
        of_package = sum(result["verdict"] == "killed" for result in tried.values())
        untried += len(verdicts) - len(tried)
        killed, total = killed + of_package, total + len(tried)
        share = f"{100 * of_package / len(tried):.0f} %" if tried else "-"
        print(
            f"{package:9} {of_package:4} of {len(tried):4} killed ({share}), {len(verdicts) - len(tried)} not tried"
        )
        for ident, result in tried.items():
            if result["verdict"] != "killed":
                noted = ident in explained
                print(f"  {result['verdict']:9} {'' if noted else 'UNEXPLAINED '}{ident} {_shown(result)}")
                silent += [] if noted else [ident]
    print(f"in all    {killed:4} of {total:4} killed, goal {GOAL_PCT} %; {untried} not tried")
    return not untried and not silent and killed * 100 >= GOAL_PCT * total


def main() -> int:
    """Exit code 0: all rules were killed, or the sample's goal is reached and every survivor has its reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rules", "sample", "report"))
    parser.add_argument("--only", default="", help="rules that are about this, or whose name contains it")
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--count", type=int, default=40, help="changes drawn from each package")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3600.0, help="end the run after this time")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument(
        "--map-as-it-is", action="store_true", help="do not find out anew which tests reach which lines"
    )
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    book = Book(options.what if options.what == "rules" else "sample", again=options.again)
    if options.what == "rules":
        chosen = [rule for rule in rules() if options.only in f"{rule.about} {rule.name}"]
        killed, wrong = try_rules(chosen, book, until)
        print(f"{killed} of {len(chosen)} killed" + "".join(f"\n  not killed: {name}" for name in wrong))
        return killed < len(chosen)
    if options.what == "sample":
        known = reach(as_it_is=options.map_as_it_is)
        if not try_sample(options.packages, options.count, options.seed, known, book, until):
            print("time is up; the next run goes on from here")
    return not report(options.packages, options.count, options.seed, book)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "1":  # the same order of sets in every run; and one thread, for the forks
        fixed = {**os.environ, "PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], fixed)
    sys.exit(main())
