"""A stream beside the current one, for kernels that need nothing of those that run at the same time."""

import threading

import torch


class SideStream:
    """`fork`: what was launched before comes first. `join`: what is launched later waits. Kernels of the side
    stream have priority: they are few, and long ones of the main stream fill the rest of the GPU."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.forked, self.joined = torch.cuda.Event(), torch.cuda.Event()

    def fork(self) -> None:
        self.forked.record(torch.cuda.current_stream(self.device))
        self.stream.wait_event(self.forked)

    def join(self) -> None:
        self.joined.record(self.stream)
        torch.cuda.current_stream(self.device).wait_event(self.joined)


_thread = threading.local()


def side_stream(device: torch.device) -> SideStream:
    """Of this thread, for two threads must not share an event."""
    found: dict[torch.device, SideStream] = _thread.__dict__.setdefault("streams", {})
    if device not in found:
        found[device] = SideStream(device)
    return found[device]
