"""Generated code touches nothing outside its buffers, at odd sizes, whole and in pieces (see guarded.py).

`make soak` tries more random programs: THERMIT_TEST_PROGRAMS.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = os.environ.get("THERMIT_TEST_PROGRAMS", "20")


def test_no_access_out_of_bounds():
    done = subprocess.run([sys.executable, HERE / "guarded.py", "0", PROGRAMS], capture_output=True, text=True, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-3000:]
    assert int(done.stdout.split()[-2]) > 200
