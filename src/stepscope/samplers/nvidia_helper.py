"""The process that calls the NVIDIA driver: one line of JSON in, one out. It ends when its input is closed.

A call into a stuck driver cannot be interrupted, so only this process makes such calls. `nvidia_dialog` starts it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any

from stepscope.samplers.nvidia_read import Reader


def main(arguments: list[str]) -> int:
    """Answer requests until the input is closed; if the driver cannot be used, the answer is the reason."""
    del arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    output = os.dup(1)
    os.dup2(2, 1)  # output of the driver's library is not an answer
    try:
        import pynvml
    except ImportError as error:
        _write(output, {"error": "binding", "reason": str(error)})
        return 0
    try:
        reader = Reader(pynvml)
    except pynvml.NVMLError as error:
        _write(output, {"error": error.value, "reason": str(error)})
        return 0
    gc.freeze()
    _serve(output, reader, pynvml.NVMLError)
    return 0


def _serve(output: int, reader: Reader, error_type: type[Exception]) -> None:
    while line := sys.stdin.buffer.readline():
        try:
            answer = reader.read(json.loads(line))
        except error_type as error:  # of the driver as a whole: an error of one GPU stays with that GPU
            _write(output, {"error": getattr(error, "value", 999), "reason": str(error)})
            return
        _write(output, answer)
        reader.idle()


def _write(output: int, answer: dict[str, Any]) -> None:
    data = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(output, data) :]
