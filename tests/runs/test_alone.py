import subprocess
import sys

CODE = """
import sys
import chop.runs
own = sorted(name for name in sys.modules if name.split(".")[0] == "chop")
heavy = {"torch", "numpy", "psutil", "rich", "transformers"} & set(sys.modules)
print(*own, *heavy)
"""
ROOMS = ("config", "documents", "errors", "files", "locks", "notices", "runs", "temporary")
ALLOWED = {"chop", *(f"chop.{room}" for room in ROOMS)}


def test_the_room_imports_nothing_above_it():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120
    )
    found = {name for name in done.stdout.split() if not name.startswith("chop.runs.")}
    # Import hooks of `chop` itself.
    found -= {"chop.aliases", "chop.moved", "chop.on_import", "chop.virtual"}
    assert found == ALLOWED
