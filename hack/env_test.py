"""Tests of env.sh: python3 -m unittest discover -s hack -p '*_test.py'."""
import pathlib
import subprocess
import tempfile
import unittest

ENV = pathlib.Path(__file__).with_name("env.sh")


def bash(script, *args):
    return subprocess.run(["bash", "-c", f'source "{ENV}"; {script}', "bash", *args], capture_output=True, text=True, check=False)


class TestEnv(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.tmp = pathlib.Path(tmp.name)

    def test_a_failure_under_a_lock_in_a_substitution_ends_the_script(self):
        p = bash('build() { false; echo stale; }; x=$(once "$1/lock" build); echo "went on with $x"', self.tmp)
        self.assertEqual((p.returncode, p.stdout), (1, ""))

    def test_one_at_a_time_under_a_lock(self):
        p = bash('''count() { local n; n=$(cat "$1"); sleep 0.05; echo $((n + 1)) >"$1"; }
                    echo 0 >"$1/n"; for _ in 1 2 3 4; do once "$1/lock" count "$1/n" & done; wait; cat "$1/n"''', self.tmp)
        self.assertEqual(p.stdout.strip(), "4", p.stderr)

    def test_a_digest_is_of_names_and_contents_only(self):
        def digest():
            p = bash('cd "$1"; digest . -not -path "*/tests/*"', self.tmp)
            self.assertEqual(p.returncode, 0, p.stderr)
            return p.stdout
        (self.tmp / "tests").mkdir()
        (self.tmp / "a").write_text("1")
        first = digest()
        (self.tmp / "a").chmod(0o600)
        (self.tmp / "tests/x").write_text("of a package's own tests")
        (self.tmp / "x_test.go").write_text("of tests of Go")
        self.assertEqual(digest(), first)
        (self.tmp / "a").write_text("2")
        self.assertNotEqual(digest(), first)
        (self.tmp / "a").write_text("1")
        (self.tmp / "a").rename(self.tmp / "b")
        self.assertNotEqual(digest(), first)


if __name__ == "__main__":
    unittest.main()
