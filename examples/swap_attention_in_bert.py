"""Put cosFormer into BERT: the same weights, another attention, and a few steps of training.

python examples/swap_attention_in_bert.py
"""

import argparse

import torch
from transformers import BertConfig, BertForMaskedLM

from cosformer.integrations.transformers import enable, report, verify

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=10)
args = parser.parse_args()
enable()
# For trained weights: BertForMaskedLM.from_pretrained("...", attn_implementation="cosformer").
config = BertConfig(
    vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    attention_probs_dropout_prob=0.0,  # linear attention has no weights to drop
)  # fmt: skip
model = BertForMaskedLM(config)
model.set_attn_implementation("cosformer")
verify(model)  # raises unless every attention of the model was reached
for use in report(model):
    print(use)

MASK = 3
ids = torch.randint(10, 1000, (4, 128))
real = torch.ones_like(ids)
real[1, 90:] = 0  # the second text is shorter
hidden = torch.rand(ids.shape).lt(0.15) & real.bool()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    labels = ids.where(hidden, -100)
    loss = model(input_ids=ids.masked_fill(hidden, MASK), attention_mask=real, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step + 1}: loss {loss:.3f}")
