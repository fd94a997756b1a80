"""Tests of test-summary: python3 -m unittest discover -s hack -p '*_test.py'."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CARGO_GOOD = """running 2 tests
test a::b ... ok
test a::c ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s

running 0 tests

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
exit code 0
"""
CARGO_BAD = """test a::b ... FAILED
test a::c ... ignored
test result: FAILED. 4 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
exit code 101
"""
GO_GOOD = """=== RUN   TestX
=== RUN   TestX/part
--- PASS: TestX (0.00s)
    --- PASS: TestX/part (0.00s)
PASS
ok  \texample/x\t0.1s
exit code 0
"""
GO_BAD = "--- FAIL: TestX (0.00s)\n    --- FAIL: TestX/part (0.00s)\n--- SKIP: TestY (0.00s)\nFAIL\nexit code 1\n"
PYTHON_BAD = "Ran 5 tests in 0.2s\n\nFAILED (failures=1, errors=1, skipped=1)\nexit code 1\n"


class TestSummary(unittest.TestCase):
    def summary(self, *logs):
        with tempfile.TemporaryDirectory() as tmp:
            paths = []
            for i, text in enumerate(logs):
                paths.append(pathlib.Path(tmp, f"{i}.log"))
                paths[-1].write_text(text)
            p = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("test-summary"), "--list", *paths],
                               capture_output=True, text=True, check=False)
        lines = p.stdout.splitlines()
        return lines[-1], p.returncode, lines[:-1]

    def test_good_logs_are_added_up(self):
        self.assertEqual(self.summary(CARGO_GOOD, GO_GOOD), ("3 passed, 0 failed, 0 skipped", 0, []))

    def test_failed_ones_are_named(self):
        line, code, named = self.summary(CARGO_BAD, GO_BAD)
        self.assertEqual((line, code), ("4 passed, 2 failed, 2 skipped", 1))
        self.assertEqual(named, ["failed:", "  a::b", "  TestX"])

    def test_parts_of_a_python_run(self):
        self.assertEqual(self.summary(PYTHON_BAD)[:2], ("2 passed, 2 failed, 1 skipped", 1))

    def test_a_skipped_test_alone_is_no_success(self):
        self.assertEqual(self.summary(CARGO_GOOD, "--- SKIP: TestY (0.00s)\nexit code 0\n")[:2], ("2 passed, 0 failed, 1 skipped", 1))

    def test_a_run_that_failed_without_a_failed_test_counts_as_one(self):
        line, code, named = self.summary(CARGO_GOOD, "error: could not compile `x`\nexit code 101\n")
        self.assertEqual((line, code), ("2 passed, 1 failed, 0 skipped", 1))
        self.assertIn("exit code 101", named[1])

    def test_a_run_that_was_cut_off_counts_as_one(self):
        self.assertEqual(self.summary(CARGO_GOOD.replace("exit code 0\n", ""))[:2], ("2 passed, 1 failed, 0 skipped", 1))

    def test_no_test_at_all_is_no_success(self):
        self.assertEqual(self.summary("exit code 0\n")[:2], ("0 passed, 0 failed, 0 skipped", 1))
