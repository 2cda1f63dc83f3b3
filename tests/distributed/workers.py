"""Four processes with gloo between them, forked once from the tests' own and given one function after
another: importing torch four times would take longer than all tests."""

import datetime
import multiprocessing
import time
import traceback

import torch
import torch.distributed as dist

from cosformer.distributed import SequenceGroup

SIZE = 4
SECONDS = 30


class Workers:
    def __init__(self, folder, size=SIZE):
        context = multiprocessing.get_context("fork")
        self.pipes, self.processes, self.broken = [], [], False
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(rank, size, folder, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function, *args, size=SIZE):
        """What function(group, *args) returned on each of the first `size` ranks; group is of these. Raises
        where one of them did, or did not answer."""
        assert not self.broken, "an earlier failure left the ranks apart"
        self.broken = True
        for pipe in self.pipes[:size]:
            pipe.send((function, size, args))
        found, end = [], time.monotonic() + 2 * SECONDS
        for pipe in self.pipes[:size]:
            try:
                answered = pipe.poll(max(0, end - time.monotonic()))
                found.append(pipe.recv() if answered else ("no answer", None))
            except EOFError:
                found.append(("died, as a rank does whose message another one did not expect", None))
        wrong = [f"rank {rank} of {size}:\n{error}" for rank, (error, _) in enumerate(found) if error]
        assert not wrong, "\n".join(wrong)
        self.broken = False
        return [result for _, result in found]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


def _work(rank, size, folder, pipe):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    groups = {n: dist.new_group(range(n)) for n in range(1, size + 1)}
    while True:
        function, n, args = pipe.recv()
        try:
            torch.manual_seed(0)
            pipe.send((None, function(SequenceGroup(groups[n]), *args)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
