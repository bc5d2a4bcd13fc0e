#!/usr/bin/env python3
"""Writes the list of tests at the end of docs/faults.md: for each id of its table the test cases named after it, by file.

With --check it writes nothing and fails if the list is not what the test sources say, or if an id has no test.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/faults.md"
HEAD = """## The tests of each row

Written by `scripts/list_fault_tests.py` from the test sources; edit the names there.
"""


def ids():
    """The ids of the page's table, in its order, with True where the host backend has a meaning for them."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|.*\| (host and GPU|GPU) \|$", PAGE.read_text(), re.M)
    return {fault: where != "GPU" for fault, where in rows}


def is_named_after(name, fault):
    """Whether a test case's name lists `fault` before its last colon."""
    return re.search(rf"(^|[ ,]){fault}([ ,:]|$)", name.rpartition(":")[0]) is not None


def cases():
    """The name of every doctest case with the file it is in, below the repository."""
    found = []
    for path in sorted(path for kind in ("cpp", "cu", "cuh", "hpp") for path in (ROOT / "tests").rglob(f"*.{kind}")):
        # a name may be literals one after the other, on several lines
        for literals in re.findall(r'\bTEST_CASE(?:_TEMPLATE|_FIXTURE)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', path.read_text()):
            name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')
            found.append((name, path.relative_to(ROOT)))
    return found


def section():
    """The list as it must stand in the page, and the ids without a test."""
    text, without, every = HEAD, [], cases()
    for fault in ids():
        of = [(path, name) for name, path in every if is_named_after(name, fault)]
        if not of:
            without.append(fault)
            continue
        text += f"\n`{fault}`\n"
        for path, name in of:
            text += f"- [{path}](../{path}): {name}\n"
    return text, without


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    options = parser.parse_args()
    list_of_tests, without = section()
    if without:
        sys.exit(f"no test is named after {', '.join(without)}")
    before = PAGE.read_text()
    after = before.partition(HEAD.splitlines()[0])[0].rstrip() + "\n\n" + list_of_tests
    if options.check and after != before:
        sys.exit(f"{PAGE.relative_to(ROOT)} does not list the tests as they are: run scripts/list_fault_tests.py")
    if not options.check:
        PAGE.write_text(after)


if __name__ == "__main__":
    main()
