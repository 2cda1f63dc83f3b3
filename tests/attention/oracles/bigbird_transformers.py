"""BigBird's layer in transformers, given our random blocks."""

import torch

from cosformer import attention
from cosformer.attention.bigbird import choose
from tests.attention.oracles._common import both

MECHANISM, PACKAGE, TOLERANCE = "bigbird", "transformers", 1e-10


def compare():
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    for block, blocks, drawn in ((4, 12, 3), (8, 9, 2)):
        length = block * blocks
        x = torch.randn(2, length, 64, dtype=torch.float64, requires_grad=True)
        config = BigBirdConfig(
            hidden_size=64,
            num_attention_heads=4,
            block_size=block,
            num_random_blocks=drawn,
            max_position_embeddings=length,
        )
        theirs = BigBirdBlockSparseAttention(config).double().eval()
        run = attention.build(
            "bigbird", block=block, random_blocks=drawn, num_kv_heads=4, max_length=length
        ).double()
        chosen = choose(run.draws, torch.full((1, 1, 1, 1), blocks), 1, 1, 1)[0, :, 1:-1]
        theirs._bigbird_block_rand_mask_with_head = lambda *_, chosen=chosen, **__: list(chosen.numpy())
        real = torch.ones(2, length, dtype=torch.bool)
        real[1, -block // 2 :] = False  # the last block is still there: it is the same one for both
        masks = BigBirdModel.create_masks_for_block_sparse_attn(real.double(), block)
        blocked, band, rows, columns = masks
        expected = theirs(
            x,
            band_mask=band,
            from_mask=rows,
            to_mask=columns,
            from_blocked_mask=blocked,
            to_blocked_mask=blocked,
        )[0]
        heads = (f(x).unflatten(2, (4, -1)) for f in (theirs.query, theirs.key, theirs.value))
        ours = run(*heads, key_mask=real).flatten(2)
        yield from both(f"{blocks} blocks of {block}", ours[real], expected[real], [x], "x")
