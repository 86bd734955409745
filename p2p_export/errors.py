"""The errors this package raises: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations


class P2PError(Exception):
    """Base of all our errors. `exit_code` is what the command line returns for it."""

    exit_code = 2


class InputError(P2PError):
    """The input was wrong: a file, an option, a model or a request we cannot serve."""


class PlanError(InputError):
    """A plan file, its proxies, or the model it names does not fit."""


class BundleError(InputError):
    """A bundle is incomplete, damaged, or not one that this version can open."""


class RewriteError(InputError):
    """A graph that the rewrite cannot take; names the node, the layer and the reason."""


class CheckFailedError(P2PError):
    """The work was done and a check on it failed: the tolerance, the accuracy, a budget."""

    exit_code = 1
