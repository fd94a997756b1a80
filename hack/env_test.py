"""Tests of env.sh: python3 -m unittest discover -s hack -p '*_test.py'."""
import os
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

    def test_another_apt_is_waited_for_and_nothing_else(self):
        fake = 'sleep() { SECONDS=$((SECONDS + $1)); }; dir=$1 times=$2 says=$3; ' \
               'apt-get() { echo x >>"$dir/calls"; (($(wc -l <"$dir/calls") > times)) || { echo "E: $says" >&2; return 100; }; }; '
        cases = {
            "free": (0, "", 0, 1),
            "held": (3, "Could not get lock lists", 0, 4),
            "held for ever": (10_000, "Could not get lock lists", 1, None),
            "another failure": (1, "no network", 1, 1),
        }
        for name, (times, says, code, calls) in cases.items():
            with self.subTest(name):
                (self.tmp / "calls").unlink(missing_ok=True)
                p = bash(fake + "apt_update", self.tmp, str(times), says)
                self.assertEqual(p.returncode, code, p.stderr)
                if calls:
                    self.assertEqual(len((self.tmp / "calls").read_text().split()), calls, p.stderr)
                if code:
                    self.assertIn(says, p.stderr)

    def test_a_package_is_named_once(self):
        (self.tmp / "apt-get").write_text("#!/bin/sh\n")
        (self.tmp / "apt-get").chmod(0o755)
        script = ENV.with_name("debian-packages.sh")
        p = subprocess.run([script, "a test", "one:/no/a", "two:/no/b", "one:/no/c"], capture_output=True, text=True, check=False,
                           env={**os.environ, "PATH": f"{self.tmp}:{os.environ['PATH']}"})
        self.assertIn("one two", p.stderr)
        self.assertEqual(p.stderr.count("one"), 1, p.stderr)

    def test_a_kubeconfig_that_is_not_there_is_named(self):
        p = bash("KUBECONFIG_DEMO=$1/none; x=$(demo_kubeconfig); echo went on", self.tmp)
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn(f"KUBECONFIG_DEMO names {self.tmp}/none", p.stderr)


if __name__ == "__main__":
    unittest.main()
