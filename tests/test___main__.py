import subprocess
import sys


def test_the_package_is_a_program():
    done = subprocess.run([sys.executable, "-m", "foretell", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("foretell ")
