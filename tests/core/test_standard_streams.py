"""The numbers of closed standard streams."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
from stepscope.core.standard_streams import closed_streams_reserved
os.close(1)
with closed_streams_reserved():
    ours = os.open("/dev/null", os.O_RDONLY)
os.write(2, b"%d %d" % (ours, os.open("/dev/null", os.O_RDONLY)))
"""


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    """A file that is opened meanwhile has another number; afterwards the number is free as before."""
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    ours, after = map(int, said.stderr.split())
    assert ours > 2
    assert after == 1
