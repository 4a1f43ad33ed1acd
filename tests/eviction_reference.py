"""The slow twins of the eviction scores: plain loops over plain numbers, in float64.

Each function is as close to the sentence that defines it as code can be.
"""

import math

import numpy as np


def key_norms(k):
    G, S, D = k.shape
    return [[-math.sqrt(sum(float(k[g, s, d]) ** 2 for d in range(D))) for s in range(S)] for g in range(G)]


def group_mean(per_head, G, g, s):
    """Mean over the query heads of key head g."""
    size = len(per_head) // G
    return sum(float(per_head[h, s]) for h in range(g * size, (g + 1) * size)) / size


def observed(column_sums, G, window):
    S = column_sums.shape[1]
    before = max(0, S - window)
    scores = np.zeros((G, S))
    for g in range(G):
        for s in range(before):
            neighbours = [i for i in range(s - 2, s + 3) if 0 <= i < before]
            scores[g, s] = sum(group_mean(column_sums, G, g, i) for i in neighbours) / 5
        scores[g, before:] = max([*scores[g, :before], 0.0])
    return scores


def last_query(weights, G):
    H, S = weights.shape
    return [[sum(float(weights[h, s]) for h in range(H)) / H for s in range(S)] for _ in range(G)]


def column_sums(weights, factors=None):
    """Attention weights (B, H, T, S) added up over the queries, each times its factor (B, T)."""
    B, H, T, S = weights.shape
    sums = np.zeros((B, H, S))
    for b in range(B):
        for h in range(H):
            for t in range(T):
                factor = 1.0 if factors is None else float(factors[b, t])
                for s in range(S):
                    sums[b, h, s] += factor * float(weights[b, h, t, s])
    return sums


def heavy_hitters(weights, G, decay):
    """H2O's sums after all queries of (H, T, S) weights, each query counting less by its age."""
    T, S = weights.shape[1:]
    scores = np.zeros((G, S))
    for g in range(G):
        for s in range(S):
            scores[g, s] = sum(decay ** (T - 1 - t) * group_mean(weights[:, t], G, g, s) for t in range(T))
    return scores


def rotation(frequencies, magnitude, position, D, interleaved):
    """The D x D matrix by which a column vector is turned at a position."""
    matrix = np.eye(D)
    pairs = len(frequencies)
    for pair, frequency in enumerate(frequencies):
        i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pairs + pair)
        cosine, sine = math.cos(position * frequency), math.sin(position * frequency)
        matrix[i, i], matrix[i, j] = magnitude * cosine, -magnitude * sine
        matrix[j, i], matrix[j, j] = magnitude * sine, magnitude * cosine
    return matrix


def expected(mean, covariance, k, v, *, scale=None, sinks=0, epsilon=0.0):
    (H, D), (G, S, _) = mean.shape, k.shape
    mean, covariance, k, v = (x.astype(np.float64) for x in (mean, covariance, k, v))
    scale = 1 / math.sqrt(D) if scale is None else scale
    attention = np.zeros((G, S))
    for h in range(H):
        g = h // (H // G)
        logits = [
            scale * (mean[h] @ k[g, s]) + scale**2 * (k[g, s] @ covariance[h] @ k[g, s]) / 2
            for s in range(sinks, S)
        ]
        total = sum(math.exp(logit - max(logits)) for logit in logits)
        for s, logit in zip(range(sinks, S), logits, strict=True):
            attention[g, s] += math.exp(logit - max(logits)) / total / (H // G)
    scores = np.zeros((G, S))
    for g in range(G):
        for s in range(sinks, S):
            scores[g, s] = (attention[g, s] + epsilon) * math.sqrt(sum(x * x for x in v[g, s]))
        scores[g, :sinks] = max([*scores[g, sinks:], 0.0])
    return scores


def keep(scores, budget, sinks, recent):
    """Drop the lowest score that may be dropped, the earlier of two, until the budget holds."""
    rows = []
    for row in scores:
        held = list(range(len(row)))
        while len(held) > budget:
            droppable = [s for s in held if sinks <= s < len(row) - recent]
            held.remove(min(droppable, key=lambda s: (math.inf if math.isnan(row[s]) else row[s], s)))
        rows.append(held)
    return rows
