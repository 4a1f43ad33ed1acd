"""Run a step's tokens through the model, and compute no more logits than somebody asks for."""

from collections.abc import Sequence

from qkv.engine.batch import FlatBatch, Segment
from qkv.engine.planning import Run
from qkv.models import Model
from qkv.ops.logprobs import text_logprobs
from qkv.shapes import Hidden, Logits

LOGPROB_ROWS = 64
"""Of so many tokens of a prompt are logits, ``(T, V)``, there at a time."""


def run_texts(model: Model, runs: Sequence[Run]) -> list[Logits | None]:
    """Run one token or more of each text; return the logits ``(V,)`` behind each that was run to its end.

    How likely the tokens of a prompt were is noted in passing where it is wanted.
    """
    batch = FlatBatch([Segment(run.ids, run.cache) for run in runs])
    if all(run.decodes for run in runs):
        logits = model.logits(batch.ids, batch)[0]  # T V
        return [logits[span.start] for span in batch.spans]
    hidden = model.hidden(batch.ids, batch)[0]  # T E
    for run, span in zip(runs, batch.spans, strict=True):
        if run.choice.wants_prompt_logprobs:
            _note_prompt_logprobs(model, run, hidden[span])
    ends = [span.stop - 1 for run, span in zip(runs, batch.spans, strict=True) if run.reaches_end]
    logits = iter(model.unembed(hidden[ends]) if ends else ())
    return [next(logits) if run.reaches_end else None for run in runs]


def _note_prompt_logprobs(model: Model, run: Run, hidden: Hidden) -> None:
    """Say of the prompt's tokens behind those run how likely they were; ``hidden`` is ``(T, E)``.

    The first few rows may have been through before the text had to give way.
    """
    choice, prompt_ids = run.choice, run.choice.request.prompt_ids
    num_top = choice.request.prompt_logprobs
    assert num_top is not None
    first, end = len(choice.prompt_logprobs), min(run.start + len(run.ids), len(prompt_ids) - 1)
    for row in range(first, end, LOGPROB_ROWS):
        last = min(row + LOGPROB_ROWS, end)
        logits = model.unembed(hidden[row - run.start : last - run.start])
        choice.prompt_logprobs += text_logprobs(logits, prompt_ids[row + 1 : last + 1], num_top)
