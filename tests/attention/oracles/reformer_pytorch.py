"""reformer-pytorch's LSH attention, within buckets and without counting a pair twice.

It keeps 1e-9 in a logarithm, which bounds the agreement.
"""

import torch

from cosformer import attention
from tests.attention.oracles._common import both, inputs

MECHANISM, PACKAGE, TOLERANCE = "reformer", "reformer-pytorch", 1e-8
LENGTH, CHUNK, ROUNDS = 128, 16, 3


def compare():
    from reformer_pytorch.reformer_pytorch import LSHAttention

    options = {"allow_duplicate_attention": False, "attend_across_buckets": False}
    q, k, v = inputs(length=LENGTH)
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, v)]

    sizes = {"rounds": ROUNDS, "chunk": CHUNK, "head_dim": 16}
    run = attention.build("reformer", buckets=LENGTH // CHUNK, **sizes).double()
    theirs = LSHAttention(bucket_size=CHUNK, n_hashes=ROUNDS, **options)
    torch.manual_seed(7)
    run.rotations.copy_(torch.randn(1, 16, ROUNDS, LENGTH // CHUNK // 2, dtype=q.dtype)[0].transpose(0, 1))
    torch.manual_seed(7)  # the rotations are the first thing it draws
    expected = theirs(*flat)[0].unflatten(0, (2, 4)).transpose(1, 2)
    yield from both("bidirectional", run(q, k, v), expected, [q, v], "qv")

    # Causal, both see the same where no bucket has more tokens than a chunk: hence many buckets.
    run = attention.build("reformer", buckets=64, **sizes).double()
    buckets = run.hash(q.transpose(1, 2), None)
    assert torch.nn.functional.one_hot(buckets).sum(-2).max() <= CHUNK
    theirs = LSHAttention(bucket_size=CHUNK, n_hashes=ROUNDS, causal=True, **options)
    apart = buckets + 64 * torch.arange(ROUNDS)[:, None]
    theirs.hash_vectors = lambda *_, **__: apart.flatten(2).flatten(0, 1)
    expected = theirs(*flat)[0].unflatten(0, (2, 4)).transpose(1, 2)
    yield from both("causal", run(q, k, v, causal=True), expected, [q, v], "qv")
