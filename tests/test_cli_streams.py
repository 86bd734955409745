"""Streams that are closed or full, and names no file can have: one sentence, not a traceback."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from p2p_export.bundle_writing import check_output
from p2p_export.cli.failures import TerminatedError, failure_of
from p2p_export.cli.main import main
from p2p_export.errors import InputError

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


LONG, NOT_UTF8 = "x" * 5000, "caf\udce9"


@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", LONG],
        ["evaluate", ""],
        ["evaluate", LONG],
        ["run", LONG, "--prompt", "x"],
        ["flops", "--model", LONG, "--tokens", "5", "--visual-tokens", "1"],
        ["flops", "--model", "", "--tokens", "5", "--visual-tokens", "1"],
        ["flops", "--model", NOT_UTF8, "--tokens", "5", "--visual-tokens", "1"],
        ["plan", "--model", "tiny-llava", "--data", "tiny-vqa", "-o", LONG],
        ["plan", "--model", "tiny-llava", "--data", "zz.jsonl", "--images", LONG],
        ["--plan", LONG],
        ["report", "--plan", LONG],
    ],
    ids=lambda argv: " ".join(argv)[:40].encode("ascii", "replace").decode(),
)
def test_a_name_that_no_file_can_have(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert len(said) < 700


def test_a_bundle_is_written_where_its_runtime_can_open_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no UTF-8 path"):
        check_output(tmp_path / NOT_UTF8, force=False)
