"""The command line as a whole: its help, its exit codes, its single sentences."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from p2p_export.cli import main as command_line
from p2p_export.cli.failures import failure_of
from p2p_export.cli.registry import LATER_VERBS, VERBS, load_verb
from p2p_export.errors import CheckFailedError, InputError, PlanError

main = command_line.main


def one_sentence(text: str) -> str:
    """What stands on stderr, which must be one line and no traceback."""
    assert "Traceback" not in text
    (line,) = text.strip().splitlines()
    assert line.startswith("p2p-export: ")
    return line


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help_that_describes_and_shows_an_example(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert load_verb(verb).DESCRIPTION.splitlines()[0] in shown
    assert f"example:\n  p2p-export {verb}" in shown


def test_the_help_lists_every_verb_and_none_that_does_not_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in VERBS)
    assert not any(f"  {verb} " in shown for verb in LATER_VERBS)
    assert "example:\n  p2p-export plan" in shown


def test_help_imports_no_framework() -> None:
    script = (
        "import sys; from p2p_export.cli.main import main; code = main(['--help']);"
        "heavy = {'torch', 'transformers', 'onnx', 'rich', 'jinja2', 'PIL', 'onnxruntime'};"
        "sys.exit(code or str(heavy & set(sys.modules) or '') or None)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_no_arguments_show_the_help_on_stderr_and_return_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "verbs" in shown.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from p2p_export import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"p2p-export {__version__}"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["doctr"], ["'doctr'", "did you mean `doctor`"]),
        (["frobnicate"], ["no verb", "plan"]),
        (["serve"], ["does not work yet"]),
        (["build", "bundle/", "--target", "trt"], ["does not work yet"]),
        (["export"], ["no verb", "--plan"]),
        (["--target", "ort"], ["--plan"]),
        (["--plan", "p.json", "--target", "trt"], ["--target", "trt does not work yet", "ort"]),
        (["--plan", "p.json", "--target", "trt-rtx"], ["does not work yet"]),
        (["--plan", "p.json", "--target", "tpu"], ["'tpu' is not offered"]),
        (["--plan", "p.json", "--precision", "bf16"], ["does not work yet", "fp32 or fp16"]),
        (["--plan", "p.json", "--lowering", "fussed"], ["is not offered", "fused"]),
        (["--plan", "p.json", "--layout", "spam"], ["is not offered", "span"]),
        (["--plan", "p.json", "--device", "orin-nano-8gb"], ["does not work yet", "auto"]),
        (["--plan", "p.json", "--max-batch", "0"], ["--max-batch", "not above 0"]),
        (["--plan", "p.json", "--max-context", "many"], ["not a whole number"]),
        (["--plan", "p.json", "--quick"], ["--quick"]),
        (["plan", "--data", "tiny-vqa"], ["--model"]),
        (["run", "bundle/"], ["--prompt"]),
        (["flops", "--model", "tiny-llava", "--layers", "3-1"], ["runs backwards"]),
        (["flops", "--model", "tiny-llava", "--layers", "x"], ["'x' is not a layer"]),
    ],
)
def test_a_command_that_cannot_be_understood_gets_one_sentence_and_2(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    sentence = one_sentence(shown.err)
    assert all(word in sentence for word in words), sentence
    assert shown.out == ""


def raising(error: BaseException) -> Callable[..., int]:
    def run(_args: object, _console: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("no file at x; check the path"), 2, "no file at x; check the path"),
        (PlanError("layer 99"), 2, "layer 99"),
        (CheckFailedError("the tolerance is missed"), 1, "the tolerance is missed"),
        (InputError("two\nlines"), 2, "two lines"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 2, "disk is full at /x/y"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "permission denied at /x"),
        (ModuleNotFoundError("no torch", name="torch"), 2, "pip install 'p2p-export[cpu]'"),
        (ModuleNotFoundError("no ort", name="onnxruntime.capi"), 2, "p2p-export[gpu]"),
        (MemoryError(), 2, "not enough memory"),
        (ZeroDivisionError("division by zero"), 1, "run again with --debug"),
        (ModuleNotFoundError("gone", name="p2p_export.gone"), 1, "run again with --debug"),
    ],
)
def test_what_a_verb_raises_becomes_one_sentence_and_its_exit_code(
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(load_verb("doctor"), "run", raising(error))
    assert main(["doctor"]) == code
    assert words in one_sentence(capsys.readouterr().err)


def test_debug_shows_the_traceback_and_still_the_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load_verb("doctor"), "run", raising(InputError("no such thing")))
    assert main(["doctor", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.strip().endswith("p2p-export: no such thing")


def test_a_missing_dependency_is_named_with_what_to_install() -> None:
    failure = failure_of(ModuleNotFoundError("No module", name="onnx_graphsurgeon"))
    assert failure.exit_code == 2
    assert "onnx_graphsurgeon" in failure.sentence
    assert "pip install" in failure.sentence


def test_with_json_nothing_but_the_document_is_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chatty(_args: object, console: object) -> int:
        print("a library talks")
        console.document({"answer": 42})  # type: ignore[attr-defined]
        return 0

    monkeypatch.setattr(load_verb("doctor"), "run", chatty)
    assert main(["doctor", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"answer": 42}
    assert "a library talks" in shown.err
