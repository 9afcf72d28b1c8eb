"""Environments written for ``verifiers`` (its version 0), run in the interpreter that has it."""

from headrace.envs.text.verifiers.environment import VerifiersEnvironment

__all__ = ["VerifiersEnvironment"]
