"""A worker that never answers and does not stop when it is asked to. Imports nothing: it is there at once."""

import signal
import time


def serve(connection, *_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.recv()
    time.sleep(600)
