"""images/Containerfile and hack/images.sh build the same images: python3 -m unittest discover -s hack -p '*_test.py'."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTAINERFILE = (ROOT / "images/Containerfile").read_text()
SCRIPT = (ROOT / "hack/images.sh").read_text()


def stages():
    """Name of each stage with its lines."""
    parts = re.split(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


class TestContainerfile(unittest.TestCase):
    def test_images_are_the_same(self):
        for stage in ("operator", "worker"):
            name = f"subagent-{stage}"
            with self.subTest(stage):
                line = re.search(rf'^image {name} --user (\S+) --entrypoint (\S+) "\$programs/{name}:(\S+)"$', SCRIPT, re.M)
                self.assertIsNotNone(line, f"hack/images.sh builds no {name}")
                user, entrypoint, place = line.groups()
                self.assertEqual(stages()[stage].strip().splitlines(),
                                 [f"COPY --from=build /out/{name} {place}", f"USER {user}", f'ENTRYPOINT ["{entrypoint}"]'])

    def test_programs_are_compiled_the_same_way(self):
        def command(text):
            text = text.replace("\\\n", "")
            flags, cargo = re.search(r'(RUSTFLAGS="[^"]*")\s+(cargo build .*? --target "\$target")', text).groups()
            return flags, cargo
        self.assertEqual(command(stages()["build"]), command(SCRIPT))


if __name__ == "__main__":
    unittest.main()
