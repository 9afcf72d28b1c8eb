"""Environments written for ``verifiers`` (its versions 0 and 1), run in the interpreter that has it."""

from headrace.envs.text.verifiers.environment import VerifiersEnvironment
from headrace.envs.text.verifiers.results import Outcome, Tally, tally

__all__ = ["Outcome", "Tally", "VerifiersEnvironment", "tally"]
