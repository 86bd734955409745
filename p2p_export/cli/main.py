"""`p2p-export`: find the verb, parse its options, do it, return its exit code.

0: done. 1: a check failed (the tolerance, the accuracy, a budget). 2: the input was wrong.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence

from p2p_export import __version__
from p2p_export.cli.arguments import Parser, make_parser
from p2p_export.cli.console import Console
from p2p_export.cli.failures import TerminatedError, failure_of
from p2p_export.cli.registry import EXPORT, LATER_VERBS, VERBS, VerbModule, load_verb
from p2p_export.cli.streams import forget_stdout, streams_usable, unwritable
from p2p_export.errors import InputError

PROG = "p2p-export"


def entry_point() -> None:
    """The console script."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has it ignored
            signal.signal(number, _terminate)
    if not streams_usable():
        print(f"{PROG}: standard output is closed; send it to a file or a pipe", file=sys.stderr)
        sys.exit(2)
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()
    except OSError as error:
        forget_stdout()
        if code == 0:
            print(f"{PROG}: {unwritable(error)}", file=sys.stderr)
            code = 2
    sys.exit(code)


def main(argv: Sequence[str]) -> int:
    """Run one command line (without the program's name); return its exit code."""
    debug = "--debug" in argv
    try:
        return _run(list(argv), debug=debug)
    except SystemExit as stop:  # argparse, behind --help and --version
        return int(stop.code or 0)
    except BrokenPipeError:  # `p2p-export ... | head`
        forget_stdout()
        return 0
    except (Exception, KeyboardInterrupt, TerminatedError) as error:  # noqa: BLE001 - the last line of defence
        if debug:
            traceback.print_exc()
        failure = failure_of(error)
        print(f"{PROG}: {failure.sentence}", file=sys.stderr)
        return failure.exit_code


def _run(argv: list[str], *, debug: bool) -> int:
    if not argv or argv[0].startswith("-"):
        module = load_verb(EXPORT)
        parser = _export_parser(module)
    else:
        name, argv = argv[0], argv[1:]
        _check_verb(name)
        module = load_verb(name)
        parser = make_parser(f"{PROG} {name}", module.DESCRIPTION, module.EXAMPLE)
    module.add_arguments(parser)
    if not argv and module is load_verb(EXPORT):
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(argv)
    console = Console()
    with _quiet_libraries(debug), _stdout_for_result_only(getattr(args, "json", False)):
        return module.run(args, console)


def _export_parser(module: VerbModule) -> Parser:
    width = max(len(name) for name in VERBS)
    verbs = "\n".join(f"  {name:{width}}  {summary}" for name, summary in VERBS.items())
    parser = make_parser(PROG, module.DESCRIPTION, module.EXAMPLE)
    parser.usage = f"{PROG} --plan plan.json [options]\n       {PROG} VERB [options]"
    parser.epilog = f"{parser.epilog}\n\nverbs (`{PROG} VERB --help` says more):\n{verbs}"
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    return parser


def _check_verb(name: str) -> None:
    if name in VERBS:
        return
    if name in LATER_VERBS:
        raise InputError(f"`{name}` does not work yet in this version; see `{PROG} --help`")
    if name == EXPORT:
        raise InputError(f"the export has no verb; write `{PROG} --plan plan.json -o bundle/`")
    close = difflib.get_close_matches(name, VERBS, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"verbs are {', '.join(VERBS)}"
    raise InputError(f"there is no verb {name!r}; {hint}")


@contextlib.contextmanager
def _quiet_libraries(debug: bool) -> Iterator[None]:
    """Libraries warn about their own futures; users see that with --debug only."""
    if debug:
        yield
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _stdout_for_result_only(
    json_output: bool,
) -> contextlib.AbstractContextManager[object]:
    """Under --json whatever prints to stdout goes to stderr; the console keeps the real one."""
    return contextlib.redirect_stdout(sys.stderr) if json_output else contextlib.nullcontext()


def _terminate(number: int, _frame: object) -> None:
    """Unwind, so that temporary folders go; once, since cleaning up takes its time."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise TerminatedError(number)
