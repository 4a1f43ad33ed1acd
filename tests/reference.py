"""The slow twins: plain loops over plain numbers, in float64, with no cleverness.

Each function here is as close to the sentence that defines it as code can be. Everything fast
is compared with it.
"""

import math

import numpy as np


def attend(
    q,
    k,
    v,
    *,
    mask=None,
    bias=None,
    causal=False,
    window=None,
    scale=None,
    softcap=None,
    sinks=None,
    alibi_slopes=None,
    q_lengths=None,
    kv_lengths=None,
):
    """Attention by loops over B, H, T, S and D: ``(output, weights, lse)`` in float64."""
    B, H, T, D = q.shape
    G, S = k.shape[1:3]
    output = np.zeros((B, H, T, v.shape[3]))
    weights = np.zeros((B, H, T, S))
    lse = np.full((B, H, T), -math.inf)
    scale = 1 / math.sqrt(D) if scale is None else scale
    mask = None if mask is None else np.broadcast_to(mask, (B, H, T, S))
    bias = None if bias is None else np.broadcast_to(bias, (B, H, T, S))
    for b in range(B):
        q_length = T if q_lengths is None else int(q_lengths[b])
        kv_length = S if kv_lengths is None else int(kv_lengths[b])
        offset = 0 if causal == "top_left" else kv_length - q_length
        for h in range(H):
            g = h // (H // G)
            for t in range(T):
                own = t + offset
                scores = {}
                for s in range(kv_length if t < q_length else 0):
                    hidden = mask is not None and not mask[b, h, t, s]
                    if hidden or not _in_reach(s - own, causal, window):
                        continue
                    score = scale * sum(float(q[b, h, t, d]) * float(k[b, g, s, d]) for d in range(D))
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    if bias is not None:
                        score += float(bias[b, h, t, s])
                    if alibi_slopes is not None:
                        score -= float(alibi_slopes[h]) * abs(s - own)
                    if score != -math.inf:
                        scores[s] = score
                logits = [*scores.values(), *([] if sinks is None else [float(sinks[h])])]
                if not logits:
                    continue
                highest = max(logits)
                denominator = sum(math.exp(logit - highest) for logit in logits)
                lse[b, h, t] = highest + math.log(denominator)
                for s, score in scores.items():
                    weights[b, h, t, s] = math.exp(score - highest) / denominator
                    for d in range(v.shape[3]):
                        output[b, h, t, d] += weights[b, h, t, s] * float(v[b, g, s, d])
    return output, weights, lse


def _in_reach(distance, causal, window):
    """Whether a key ``distance`` positions after the query's own (negative: before) is in reach."""
    if causal and distance > 0:
        return False
    if window is None:
        return True
    if isinstance(window, int):
        return -window < distance <= 0
    left, right = window
    return (left is None or distance >= -left) and (right is None or distance <= right)


def softmax(x):
    """Softmax of a list of numbers."""
    highest = max(x)
    exponentials = [math.exp(value - highest) for value in x]
    return [value / sum(exponentials) for value in exponentials]


def rms_norm(x, weight, eps):
    """Each row divided by its root mean square, times ``weight``."""
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        row = [float(value) for value in x[index]]
        root = math.sqrt(sum(value * value for value in row) / len(row) + eps)
        out[index] = [value / root * float(w) for value, w in zip(row, weight, strict=True)]
    return out


def layer_norm(x, weight, bias, eps):
    """Each row with mean 0 and variance 1, times ``weight`` plus ``bias``."""
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        row = [float(value) for value in x[index]]
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        out[index] = [
            (value - mean) / math.sqrt(variance + eps) * float(w) + float(b)
            for value, w, b in zip(row, weight, bias, strict=True)
        ]
    return out


def rotate(x, positions, frequencies, interleaved=False):
    """Each pair of each head turned by ``position * frequency``: x is ``(..., T, D)``."""
    out = np.array(x, dtype=np.float64)
    half = len(frequencies)
    for index in np.ndindex(x.shape[:-1]):
        for pair, frequency in enumerate(frequencies):
            first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
            angle = float(positions[index[-1]]) * float(frequency)
            a, b = float(x[index][first]), float(x[index][second])
            out[index][first] = a * math.cos(angle) - b * math.sin(angle)
            out[index][second] = a * math.sin(angle) + b * math.cos(angle)
    return out
