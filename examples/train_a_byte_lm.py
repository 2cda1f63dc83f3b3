"""Train a language model over bytes on the source of Python's standard library, and let it write.

python examples/train_a_byte_lm.py --steps 300
"""

import argparse
import math
from pathlib import Path
from sysconfig import get_path

import torch

from cosformer.models import CosformerConfig, CosformerForCausalLM, byte_tokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--length", type=int, default=512)
args = parser.parse_args()

text = b"\n".join(path.read_bytes() for path in sorted(Path(get_path("stdlib")).glob("*.py")))
data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
config = CosformerConfig(hidden_size=128, max_position_embeddings=8192, position="rotary")
model = CosformerForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for step in range(1, args.steps + 1):
    starts = torch.randint(len(data) - args.length, (8,)).tolist()
    batch = torch.stack([data[s : s + args.length] for s in starts]).long()
    loss = model(batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 or step == args.steps:
        print(f"step {step}: {loss.item() / math.log(2):.2f} bits per character")

tokenizer = byte_tokenizer()
prompt = tokenizer("def ", return_tensors="pt")
written = model.eval().generate(**prompt, max_new_tokens=100, do_sample=True, temperature=0.8)
print(tokenizer.decode(written[0]))
