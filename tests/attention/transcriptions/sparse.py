"""Child et al., 2019, section 4.3: the sets A^(1) and A^(2), merged, one query at a time."""

import math

import torch

PARAMETERS = [
    {},
    {"kind": "strided"},
    {"kind": "strided", "stride": 5},
    {"kind": "strided", "stride": 1},
    {"kind": "fixed", "stride": 6, "summary": 2},
    {"kind": "fixed", "stride": 4, "summary": 9},
]


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    length = k.shape[1]
    stride = math.ceil(math.sqrt(mechanism.max_length)) if mechanism.stride is None else mechanism.stride
    out = []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            if mechanism.kind == "strided":
                first = {j for j in range(length) if abs(i - j) <= stride}
                second = {j for j in range(length) if (i - j) % stride == 0}
            else:
                first = {j for j in range(length) if j // stride == i // stride}
                ends = range(max(0, stride - mechanism.summary), stride)
                second = {j for j in range(length) if j % stride in ends}
            seen = sorted(
                j for j in first | second if (not causal or j <= i) and (key_mask is None or key_mask[b, j])
            )
            # An empty sum is zero.
            scores = torch.einsum("hd,jhd->hj", q[b, i], k[b, seen]) / math.sqrt(q.shape[3])
            out.append(torch.einsum("hj,jhd->hd", scores.softmax(-1), v[b, seen]))
    return torch.stack(out).view_as(v)
