"""Environments, and the contract each must keep."""
