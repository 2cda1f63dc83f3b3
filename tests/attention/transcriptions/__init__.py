"""The published equation of each mechanism, written out slowly: one file a mechanism, found by its name.

A file `<name>.py` imports torch alone and defines

    transcription(mechanism, q, k, v, *, causal, key_mask=None) -> out [B, T, H, Dv]

for q, k, v of one length and as many key heads as query heads, quadratically, with dense matrices or token
by token, reading nothing of the mechanism but its parameters, tensors and drawn numbers. Optionally it
defines `PARAMETERS`, a list of parameter sets (dicts): the laws are checked for each of them; without it,
for the defaults.
"""
