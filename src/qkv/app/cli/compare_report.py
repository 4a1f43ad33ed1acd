"""A comparison of cache policies and weights as a table of 80 columns, and as one JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from qkv.cache import Policy
from qkv.cache.elements import element_named
from qkv.engine.compared import Compared, Comparison, Divergence, NotCompared
from qkv.tokens import Tokenizer

NOTHING = "-"
"""Stands where there is no figure."""

CONTEXT_OF_A_TOKEN = 4
"""Tokens before one whose text is shown, so that it keeps its space and its bytes their character."""


def heading(found: Comparison, tokenizer: Tokenizer, scored: Sequence[int] | None) -> list[Text]:
    """Return how much was read and compared, and the text itself where it is new to the reader."""
    count = len(found.text_ids)
    counts = f"prompt of {len(found.prompt_ids):,} tokens, then {count:,}"
    if scored is not None:
        of_all = "" if count == len(scored) else f"the {len(scored):,} of "
        return [Text(f"{counts} of {of_all}the text\n", "italic")]
    whole = tokenizer.decode(found.prompt_ids + found.text_ids)
    return [Text(f"{counts} that the full cache makes most likely\n", "italic"), Text(f"{whole}\n", "dim")]


def comparison_table(found: Comparison, tokenizer: Tokenizer) -> Table:
    """Return a row per policy, and one per other weights, for a terminal of 80 columns or more."""
    unit, size = _unit(found)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("policy", overflow="fold")
    for name in ("KL\nnats", "top-1\n%", "Δppl", f"peak\n{unit}", f"final\n{unit}", "tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("differs after", overflow="fold")
    table.add_row("full, float32", *[NOTHING] * 3, *_costs(found.full, size), "")
    for row in found.rows:
        if isinstance(row, NotCompared):
            table.add_row(_row_name(row), *[NOTHING] * 6, "not run, see below", style="dim")
            continue
        table.add_row(
            _row_name(row),
            format_kl(row.mean_kl),
            f"{100 * row.agreement:.1f}",
            format_difference(row.perplexity - found.full.perplexity),
            *_costs(row, size),
            _differs(row.divergence, found, tokenizer),
        )
    return table


def notes(found: Comparison, weight_nbytes: Mapping[str, int]) -> list[str]:
    """Return what the figures mean, what may surprise in them, and why a policy has none.

    Parameters
    ----------
    found : Comparison
    weight_nbytes : mapping of str to int
        Bytes of the weights by their names, and of those of the model itself by "".
    """
    lines = [
        "KL(full || policy): mean per token; top-1: how often the same token is likeliest;",
        f"Δppl: perplexity of the text, beyond {found.full.perplexity:.4g} with the full cache; "
        "tok/s: decoding;",
        "differs after: how many tokens; then the first it prefers, not the full cache's",
    ]
    own = weight_nbytes[""]
    lines += [
        f"{name} weights: {nbytes:,} bytes, {nbytes / own:.2f} times the {own:,} of those as stored"
        for name, nbytes in weight_nbytes.items()
        if name
    ]
    idle = [
        row.policy for row in found.compared if row.policy.eviction is not None and not row.dropped_tokens
    ]
    if idle:
        lines.append(f"never over budget, so nothing was dropped: {_names(idle)}")
    closing = [row.policy for row in found.compared if element_named(row.policy.element).closes_pages]
    if closing:
        lines.append(f"newest tokens in float32 until their page is full: {_names(closing)}")
    return lines + [f"not run: {_row_name(row)}: {row.reason}" for row in found.not_compared]


def as_record(found: Comparison, tokenizer: Tokenizer, weight_nbytes: Mapping[str, int]) -> dict[str, Any]:
    """Return a comparison as plain values, for JSON; the bytes of weights as for `notes`."""
    return {
        "prompt": tokenizer.decode(found.prompt_ids),
        "text": tokenizer.decode(found.text_ids),
        "prompt_tokens": len(found.prompt_ids),
        "text_tokens": len(found.text_ids),
        "full": _figures(found.full, found, tokenizer),
        "policies": [_entry(row, found, tokenizer) for row in found.rows if not row.weights],
        "weight_bytes": weight_nbytes[""],
        "weights": [
            {"weights": row.weights, "weight_bytes": weight_nbytes[row.weights]}
            | _entry(row, found, tokenizer)
            for row in found.rows
            if row.weights
        ],
    }


def _entry(row: Compared | NotCompared, found: Comparison, tokenizer: Tokenizer) -> dict[str, Any]:
    if isinstance(row, NotCompared):
        return {"policy": _name(row.policy), "error": row.reason}
    return _figures(row, found, tokenizer)


def format_kl(nats: float) -> str:
    """Return a divergence in few characters.

    Examples
    --------
    >>> [format_kl(nats) for nats in (0.0, 4.7e-07, 0.00129, 2.5)]
    ['0', '5e-7', '0.0013', '2.5000']
    """
    if nats == 0:
        return "0"
    return f"{nats:.4f}" if nats >= 0.001 else f"{nats:.0e}".replace("e-0", "e-")


def format_difference(perplexity: float) -> str:
    """Return a difference with its sign, in few characters.

    Examples
    --------
    >>> [format_difference(by) for by in (0.0, 0.0123, -0.0004, 12345.6)]
    ['0', '+0.012', '-0.000', '+12,346']
    """
    if perplexity == 0:
        return "0"
    return f"{perplexity:+.3f}" if abs(perplexity) < 100 else f"{perplexity:+,.0f}"


def _unit(found: Comparison) -> tuple[str, int]:
    """Return the unit in which the largest cache is a number of few digits."""
    most = max(row.peak_nbytes for row in (found.full, *found.compared))
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if most >= 10 * size:
            return unit, size
    return "KiB", 2**10


def _costs(row: Compared, size: int) -> tuple[str, str, str]:
    speed = f"{row.decode_tokens_per_second:,.0f}" if row.decode_seconds else NOTHING
    return f"{row.peak_nbytes / size:,.1f}", f"{row.nbytes / size:,.1f}", speed


def _differs(divergence: Divergence | None, found: Comparison, tokenizer: Tokenizer) -> Text:
    if divergence is None:
        return Text("never")
    chosen, expected = _both_tokens(divergence, found, tokenizer)
    return Text(f"{divergence.position} {chosen!r} not {expected!r}")


def _both_tokens(divergence: Divergence, found: Comparison, tokenizer: Tokenizer) -> tuple[str, str]:
    before = (found.prompt_ids + found.text_ids[: divergence.position])[-CONTEXT_OF_A_TOKEN:]
    ids = divergence.chosen_id, divergence.expected_id
    return _token_behind(before, ids[0], tokenizer), _token_behind(before, ids[1], tokenizer)


def _token_behind(before: Sequence[int], token_id: int, tokenizer: Tokenizer) -> str:
    """Return a token's text where it stands; as the vocabulary spells it if it is no whole character."""
    stream = tokenizer.stream()
    for one in before:
        stream.push(one)
    text = stream.push(token_id)
    is_whole = text and "\ufffd" not in text
    return text if is_whole else tokenizer.token_of(token_id, skip_special_tokens=False) or f"#{token_id}"


def _figures(row: Compared, found: Comparison, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "policy": _name(row.policy),
        "mean_kl": row.mean_kl,
        "max_kl": row.max_kl,
        "top_1_agreement": row.agreement,
        "perplexity": row.perplexity,
        "perplexity_difference": row.perplexity - found.full.perplexity,
        "first_divergence": _divergence_record(row.divergence, found, tokenizer),
        "peak_bytes": row.peak_nbytes,
        "final_bytes": row.nbytes,
        "dropped_tokens": row.dropped_tokens,
        "prefill_seconds": row.prefill_seconds,
        "decode_seconds": row.decode_seconds,
        "decode_tokens_per_second": row.decode_tokens_per_second,
        "kl": row.kl,
        "agrees": row.agrees,
        "log_probs": row.log_probs,
    }


def _divergence_record(
    divergence: Divergence | None, found: Comparison, tokenizer: Tokenizer
) -> dict[str, Any] | None:
    if divergence is None:
        return None
    chosen, expected = _both_tokens(divergence, found, tokenizer)
    return {
        "position": divergence.position,
        "expected": expected,
        "expected_id": divergence.expected_id,
        "chosen": chosen,
        "chosen_id": divergence.chosen_id,
    }


def _name(policy: Policy) -> str:
    return str(policy) or "float32"


def _row_name(row: Compared | NotCompared) -> str:
    return f"{row.weights} weights" if row.weights else _name(row.policy)


def _names(policies: Sequence[Policy]) -> str:
    return "; ".join(map(_name, policies))
