"""Programs where kernels are compiled: in this process they may have been made for the interpreter.

One process more imports everything once, and every program is a fork of it.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]


@cache
def _server():
    environment = {n: x for n, x in os.environ.items() if n != "TRITON_INTERPRET"}
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    server = subprocess.Popen(
        [sys.executable, "-m", __name__], cwd=ROOT, env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(_end, server)
    return server


def _end(server):
    server.kill()
    server.wait()


def run(code, *args):
    """The lines that a program prints."""
    with tempfile.TemporaryDirectory() as folder:
        server = _server()
        try:
            server.stdin.write(json.dumps([code, [str(x) for x in args], folder]) + "\n")
            server.stdin.flush()
            ended = server.stdout.readline()
        except BaseException:  # a time limit: the next program shall not get this one's answer
            _end(server)
            _server.cache_clear()
            raise
        out, err = (Path(folder, name) for name in ("out", "err"))
        assert ended == "0\n", (ended, err.read_text()[-2000:] if err.exists() else "")
        return out.read_text().splitlines()


def _run(code, args, folder):
    """In a fork."""
    for number, name in ((1, "out"), (2, "err")):
        with open(Path(folder, name), "w") as file:
            os.dup2(file.fileno(), number)
    status = 1
    try:
        sys.argv = ["-c", *args]
        exec(code, {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve():
    from cosformer.ops.triton import run  # noqa: F401
    from tests.ops.triton import compiling  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
