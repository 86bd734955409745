"""A stream that is closed or full is one sentence, not a traceback; so is text that is no UTF-8."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from p2p_export.cli.failures import TerminatedError, failure_of

COMMAND = "from p2p_export.cli.main import entry_point; entry_point()"
FLOPS = "flops --model tiny-llava --tokens 10 --visual-tokens 5"


def shell(arguments: str, redirection: str) -> subprocess.CompletedProcess[bytes]:
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(COMMAND)} {arguments} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_stdout_is_not_taken_for_a_full_disk() -> None:
    ran = shell(FLOPS, "> /dev/full")
    assert ran.returncode == 2
    said = ran.stderr.decode()
    assert said.startswith("p2p-export: standard output cannot be written: No space left")
    assert len(said.splitlines()) == 1
    assert "-o" not in said.split()


def test_a_closed_stdout() -> None:
    ran = shell(FLOPS, ">&-")
    assert ran.returncode == 2
    assert ran.stderr.decode().startswith("p2p-export: standard output is closed")
    assert len(ran.stderr.splitlines()) == 1


def test_a_closed_stderr_does_not_send_errors_to_stdout() -> None:
    ran = shell("flops --model tiny-llava", "2>&-")
    assert (ran.returncode, ran.stdout) == (2, b"")


def test_a_reader_that_has_gone() -> None:
    ran = shell("flops --help", "| true")
    assert ran.stderr == b""


def test_a_signal_has_its_own_exit_code() -> None:
    failure = failure_of(TerminatedError(15))
    assert (failure.sentence, failure.exit_code) == ("stopped by SIGTERM", 143)
