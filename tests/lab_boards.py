"""Boards of made-up numbers, without a run of the lab."""

from dataclasses import replace

from lab_results import as_result
from qkv.lab import EXPERIMENTS, Measured
from qkv.lab.board import Board, Row


def fine_numbers(experiment):
    """Numbers on every threshold: with them the claim holds."""
    return {one.decides.metric: one.decides.bound for one in (*experiment.parts, *experiment.controls)}


def board_of(*experiments, **numbers):
    """A board on which every claim holds, but for the numbers given."""
    measured = [Measured({**fine_numbers(one), **numbers}, {"n": [1, 2]}) for one in experiments]
    results = [as_result(one, one.quick, found) for one, found in zip(experiments, measured, strict=True)]
    return Board(tuple(Row.of(one, result) for one, result in zip(experiments, results, strict=True)))


def failing_board(cpu="made-up"):
    """An experiment and a board on which only its first part fails, measured on a machine of some name."""
    experiment = EXPERIMENTS[0]
    decides = experiment.parts[0].decides
    off = decides.bound - 1.0 if decides.is_least else decides.bound + 1.0
    (row,) = board_of(experiment, **{decides.metric: off}).rows
    machine = replace(row.result.machine, cpu=cpu)
    return experiment, Board((Row.of(experiment, replace(row.result, machine=machine)),))


def minding_board():
    """A board of the causal mask on which all holds but what the article's class is said to do."""
    return board_of(EXPERIMENTS[1], article_future_mass=0.45)
