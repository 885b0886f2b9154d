import subprocess
import sys

CODE = """
import sys
import chop.runs
own = sorted(name for name in sys.modules if name.split(".")[0] == "chop")
heavy = {"torch", "numpy", "psutil", "rich", "transformers"} & set(sys.modules)
print(*own, *heavy)
"""
ROOMS = {"base", "config", "errors", "paths", "runs"}


def test_the_room_imports_nothing_above_it():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120
    )
    own = [name.split(".") for name in done.stdout.split() if name != "chop"]
    assert {name[0] for name in own} == {"chop"}
    assert {room for _, room, *_ in own} == ROOMS
