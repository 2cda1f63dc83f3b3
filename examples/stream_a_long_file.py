"""Stream a text of 100,000 tokens through a model in constant memory: piece by piece, the state carried.

python examples/stream_a_long_file.py [FOLDER of a saved model] --file some.txt
"""

import argparse
from pathlib import Path
from sysconfig import get_path

import torch

from cosformer.models import CosformerCache, CosformerConfig, CosformerForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("folder", nargs="?", help="a saved model; left out, one with random weights")
parser.add_argument("--file", type=Path, help="left out, Python's own source")
parser.add_argument("--tokens", type=int, default=100_000)
parser.add_argument("--piece", type=int, default=2048)
args = parser.parse_args()

files = [args.file] if args.file else sorted(Path(get_path("stdlib")).glob("*.py"))
text = b"".join(path.read_bytes() for path in files)[: args.tokens]
ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()[None]

if args.folder:
    model = CosformerForCausalLM.from_pretrained(args.folder).eval()
else:
    config = CosformerConfig(hidden_size=64, num_hidden_layers=2, max_position_embeddings=2**20)
    model = CosformerForCausalLM(config).eval()

cache = CosformerCache(model.config)
with torch.inference_mode():
    for at, piece in enumerate(ids.split(args.piece, dim=1)):
        logits = model(piece, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        seen = at * args.piece + piece.shape[1]
        print(f"{seen:>9,} tokens read; {cache.nbytes:,} bytes carried; next byte: {logits.argmax():d}")
cache.save("after.safetensors")  # to go on tomorrow: CosformerCache.load("after.safetensors", model.config)
