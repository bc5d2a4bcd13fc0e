"""What the tests in Python share: every test method is one case of the closing line."""

import sys
import unittest


def run_and_exit():
    """Runs the main module's tests and exits; the program's own arguments are not unittest's."""
    result = unittest.main(module="__main__", argv=sys.argv[:1], exit=False, verbosity=2).result
    # a method counts once, however many of its subtests failed
    failed = {(case.test_case if hasattr(case, "test_case") else case).id() for case, _ in result.failures + result.errors}
    skipped = len(result.skipped)
    print(f"{result.testsRun - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped", flush=True)
    sys.exit(1 if failed else 0)
