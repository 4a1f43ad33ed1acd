"""A plan as text for a terminal of 80 columns, and as one JSON object."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from qkv.planner import Plan
from qkv.planner.advice import Advice, room
from qkv.planner.outcomes import Outcome, on_one_device
from qkv.planner.units import Units, show_bytes, units_for

WIDTH = 80
TITLE = 35
"""Columns of a strategy's name."""


def report(plan: Plan) -> str:
    """Return the table, the choice, the arithmetic and the warnings.

    Examples
    --------
    >>> from qkv.planner import plan
    >>> print(report(plan("llama-3-8b", users=100, context=4096)).splitlines()[0])
    llama-3-8b, 100 users of 4,096 tokens, engine: ideal
    """
    sections = (heading, table, choice, arithmetic, division, speed, utilisation)
    parts = [text for text in (section(plan) for section in sections) if text]
    notes = "\n".join(paragraph("note: ", warning) for warning in plan.warnings)
    return "\n\n".join([*parts, notes] if notes else parts)


def heading(plan: Plan) -> str:
    """Return who asks for how much."""
    request = plan.request
    users = _users(request.users)
    devices = f" on {request.tensor_parallel} devices" if request.tensor_parallel > 1 else ""
    shared = f", the first {request.shared_prefix:,} in common" if request.shared_prefix else ""
    bound = " (upper bound)" if plan.is_bound else ""
    return (
        f"{plan.model.name}{bound}, {users} of {request.context:,} tokens{shared}, "
        f"engine: {plan.engine}{devices}"
    )


def table(plan: Plan) -> str:
    """Return a row per strategy: memory in both units, percent, users in the budget."""
    baseline = next(outcome for outcome in plan.outcomes if outcome.strategy.text)
    budget = baseline.room_per_device if plan.budget is None else plan.budget
    units = units_for(baseline.total_bytes)
    head = f"  {'strategy':{TITLE}} {units.binary:>8} {units.decimal:>9} {'%':>5} {'users':>7} {'tokens':>9}"
    rows = [_row(outcome, plan, baseline, units) for outcome in _shown(plan)]
    where = "" if plan.budget is not None else "what the 100 % row takes, "
    each = " on each device" if plan.request.tensor_parallel > 1 else ""
    closing = (
        f"users, or tokens of {_users(plan.request.users)}, that fit in {where}{show_bytes(budget)}{each}"
    )
    return "\n".join([head, *rows, paragraph("  ", closing)])


def choice(plan: Plan) -> str:
    """Return the recommended strategy and its reason."""
    chosen = plan.recommended.outcome
    if chosen is None:
        return paragraph("take: ", plan.recommended.reason)
    setting = f" (--cache {chosen.strategy.text})"
    return paragraph("take: ", f"{chosen.strategy.title}{setting}: {plan.recommended.reason}.")


def arithmetic(plan: Plan) -> str:
    """Return the product behind the bytes of a token, and from there to the total."""
    lines = []
    for term in plan.terms:
        lines += [
            f"  {term.layers}:",
            *wrap(str(term), WIDTH - 4, initial_indent=" " * 4, subsequent_indent=" " * 4),
        ]
    devices = plan.request.tensor_parallel
    state_bytes = devices * on_one_device(plan.model, devices).state_bytes
    if state_bytes:
        lines.append(f"  states, whatever the length: {state_bytes:,} bytes a user")
    chosen = plan.chosen
    shared = f"{chosen.shared_bytes:,} shared + " if chosen.shared_bytes else ""
    lines += wrap(
        f"{shared}{_users(plan.request.users)} × {chosen.bytes_per_user:,} = {plan.bytes:,} bytes "
        f"= {show_bytes(plan.bytes)}",
        WIDTH - 2,
        initial_indent="  ",
        subsequent_indent="    ",
    )
    return "\n".join([f"{chosen.strategy.title}, per token", *lines])


def division(plan: Plan) -> str:
    """Return what a device's memory is used for; empty where no device was named."""
    memory = plan.memory
    if memory is None:
        return ""
    rows = [("weights", memory.weights), ("workspace, estimated", memory.workspace), ("cache", memory.cache)]
    if memory.reserve:
        rows.insert(0, ("left alone by the engine", memory.reserve))
    units = units_for(memory.weights)
    head = f"  {f'of {show_bytes(memory.device)}':{TITLE}} {units.binary:>9} {units.decimal:>9}"
    lines = [f"  {name:{TITLE}} {units.show(amount, 9, 9)}" for name, amount in rows]
    return "\n".join([head, *lines])


def speed(plan: Plan) -> str:
    """Return the bounds on speed; empty where no bandwidth was named."""
    bounds = plan.speed
    if bounds is None:
        return ""
    decode = (
        f"at best {bounds.decode_tokens_per_second:,.1f} tokens/s for each of {_users(plan.request.users)}: "
        f"{show_bytes(bounds.step_bytes)} are read for each step"
    )
    if bounds.prefill_seconds is None:
        return paragraph("decode: ", decode)
    prefill = (
        f"at least {bounds.prefill_seconds:,.3f} s for one prompt of {plan.request.context:,} tokens, "
        f"{bounds.prefill_operations / 1e12:,.2f} TFLOP"
    )
    return "\n".join([paragraph("decode: ", decode), paragraph("prefill: ", prefill)])


def utilisation(plan: Plan) -> str:
    """Return what slots would be used for; empty where no lengths were named."""
    compared = plan.utilisation
    if compared is None:
        return ""
    title = f"{compared.requests}, {compared.num_slots:,} slots"
    head = f"  {title:{TITLE - 2}} {'tokens':>8} {'reserved':>8} {'internal':>8} {'external':>8} {'batch':>8}"
    rows = [
        f"  {row.strategy:{TITLE - 2}} {100 * row.token_states:8.1f} {100 * row.reserved:8.1f} "
        f"{100 * row.internal:8.1f} {100 * row.external:8.1f} {row.batch:8.1f}"
        for row in compared.rows
    ]
    paged = compared.rows[-1]
    closing = (
        f"  of the pages taken {100 * paged.of_allocated:.1f} % is tokens; "
        f"L / (L + (P - 1) / 2) gives {100 * compared.closed_form:.1f} %"
    )
    return "\n".join([head, *rows, closing])


def as_record(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, for JSON."""
    memory, bounds = plan.memory, plan.speed
    return {
        "model": plan.model.name,
        "engine": plan.engine,
        "users": plan.request.users,
        "context": plan.request.context,
        "bytes": plan.bytes,
        "bytes_per_user": plan.bytes_per_user,
        "bytes_per_token": plan.bytes_per_token,
        "users_that_fit": plan.users_that_fit,
        "longest_context": plan.longest_context,
        "fits": plan.fits,
        "is_bound": plan.is_bound,
        "chosen": _outcome_record(plan.chosen),
        "strategies": [_outcome_record(outcome) for outcome in plan.outcomes],
        "recommended": _outcome_record(plan.recommended.outcome) if plan.recommended.outcome else None,
        "reason": plan.recommended.reason,
        "terms": [{"layers": term.layers, "factors": term.factors, "text": str(term)} for term in plan.terms],
        "kv_memory": plan.budget,
        "memory": memory and {
            "device": memory.device, "reserve": memory.reserve, "weights": memory.weights,
            "workspace": memory.workspace, "cache": memory.cache,
        },
        "speed": bounds and {
            "decode_tokens_per_second": bounds.decode_tokens_per_second,
            "step_bytes": bounds.step_bytes,
            "prefill_seconds": bounds.prefill_seconds,
        },
        "utilisation": plan.utilisation and asdict(plan.utilisation),
        "warnings": list(plan.warnings),
    }  # fmt: skip


def advice_report(advice: Sequence[Advice]) -> str:
    """Return a setting per engine, what it takes and why."""
    request = advice[0].plan.request
    parts = [f"{advice[0].plan.model.name}, {_users(request.users)}"]
    for each in advice:
        fits = bool(each.setting)
        lines = [
            f"{each.engine}, {each.plan.request.context:,} tokens" if fits else f"{each.engine}: nothing"
        ]
        if fits:
            lines += [f"  {each.setting}", paragraph("  ", room(each.plan))]
        parts.append("\n".join([*lines, paragraph("  why: ", each.reason)]))
    return "\n\n".join(parts)


def advice_record(advice: Sequence[Advice]) -> list[dict[str, Any]]:
    """Return advice as plain values, for JSON."""
    return [
        {
            "engine": each.engine,
            "setting": each.setting or None,
            "reason": each.reason,
            "context": each.plan.request.context,
            "strategy": _outcome_record(each.plan.recommended.outcome)
            if each.plan.recommended.outcome
            else None,
        }
        for each in advice
    ]


def paragraph(lead: str, text: str) -> str:
    """Return a text in lines of 80 columns, hanging under its lead."""
    return "\n".join(wrap(lead + text, WIDTH, subsequent_indent=" " * len(lead), break_long_words=False))


def _users(count: int) -> str:
    return f"{count:,} user{'s' if count > 1 else ''}"


def _shown(plan: Plan) -> list[Outcome]:
    """Return the rows: what is compared, then the choice and what was asked for where they are others."""
    rows = list(plan.outcomes)
    for outcome in (plan.recommended.outcome, plan.chosen):
        if outcome is not None and not any(_alike(outcome, row) for row in rows):
            rows.append(outcome)
    return rows


def _alike(one: Outcome, other: Outcome) -> bool:
    named_alike = one.strategy.text == other.strategy.text or one.strategy.title == other.strategy.title
    return named_alike and one.total_bytes == other.total_bytes


def _row(outcome: Outcome, plan: Plan, baseline: Outcome, units: Units) -> str:
    total, mark = outcome.total_bytes, " "
    if plan.recommended.outcome is not None and outcome.strategy == plan.recommended.outcome.strategy:
        mark = "→"
    title = outcome.strategy.title
    title = title if len(title) <= TITLE else f"{title[: TITLE - 1]}…"
    longest = "any" if outcome.longest_context is None else f"{outcome.longest_context:,}"
    percent = 100 * total / max(1, baseline.total_bytes)
    share = f"{percent:5.1f}" if percent < 1000 else f"{percent:5.0f}"
    return (
        f"{mark} {title:{TITLE}} {units.show(total, 8, 9)} {share} {outcome.users_that_fit:7,} {longest:>9}"
    )


def _outcome_record(outcome: Outcome) -> dict[str, Any]:
    return {
        "strategy": outcome.strategy.title,
        "cache": outcome.strategy.text,
        "is_lossless": outcome.strategy.is_lossless,
        "bytes": outcome.total_bytes,
        "shared_bytes": outcome.shared_bytes,
        "bytes_per_user": outcome.bytes_per_user,
        "users_that_fit": outcome.users_that_fit,
        "longest_context": outcome.longest_context,
    }
