"""Every command and Python block of README and docs runs, on small files of the same names."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_files import EXPORT, MODEL, SMALL_SPLITS, working_copy

from p2p_export.cli.main import main
from p2p_export.cli.registry import VERBS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Commands of other programs that a page may show, which are not run here.
OTHERS = {"pip", "python", "git", "cd", "export", "polygraphy", "source"}
BUILTIN_MODELS = ("tiny-llava", "tiny-qwen2.5-vl")
REPLACING_VERBS = {"plan", "rewrite", "report"}


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of `page` in one of `languages`."""
    fence = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for language, body in fence.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield body


def commands(page: Path) -> list[str]:
    """The command lines of a page: after `$ ` in console blocks, every line of bash blocks."""
    found = []
    for body in blocks(page, "console"):
        lines = body.replace("\\\n", " ").splitlines()
        found += [line[2:] for line in lines if line.startswith("$ ")]
    for body in blocks(page, "bash", "sh"):
        found += [line for line in body.replace("\\\n", " ").splitlines() if line.strip()]
    return [line.partition("  #")[0].strip() for line in found if not line.startswith("#")]


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, re.MULTILINE))


def on_small_files(argv: list[str]) -> list[str]:
    """The same command on the workspace: a model of three layers, few questions, few rounds."""
    argv = [f"./{MODEL}" if word in BUILTIN_MODELS else word for word in argv]
    if "--layers" in argv:
        argv[argv.index("--layers") + 1] = "1-2"
    verb = argv[0] if argv[0] in VERBS else "export"
    if verb == "plan":
        argv += SMALL_SPLITS
        if "--data" in argv:
            argv[argv.index("--data") + 1] = "questions.jsonl"
        if "--images" not in argv:
            argv += ["--images", "photos"]
    if verb == "bench":
        argv += ["--repeats", "2"]
    if verb == "evaluate":
        argv += ["--limit", "4"]
    if verb == "run":
        argv += ["--max-new-tokens", "2"]
    if verb in REPLACING_VERBS or verb == "export":
        argv += ["--force"]
    return argv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One working copy for all pages; commands leave their outputs for later ones."""
    with working_copy(tmp_path_factory.mktemp("docs") / "here") as here:
        yield here


# The workspace itself was made with the export that the pages show.
ran: set[str] = {shlex.join(["p2p-export", *EXPORT])}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_the_page_runs(page: Path, folder: Path) -> None:
    for command in commands(page):
        program, *argv = shlex.split(command)
        if program == "make":
            assert set(argv) <= make_targets(), command
        elif program == "p2p-export":
            if command in ran or "VERB" in argv:
                continue
            ran.add(command)
            if argv[0] == "demo":
                assert main(["demo", "--help"]) == 0
                continue
            code = main(on_small_files(argv))
            # A random model may miss its tolerance; nothing else may fail.
            assert code == 0 or (argv[0] == "plan" and code == 1), command
        else:
            assert program in OTHERS, f"{page.name} shows a command we do not know: {command}"


def test_the_readme_shows_the_two_commands_and_the_way_for_an_own_model() -> None:
    shown = commands(ROOT / "README.md")
    assert shown[:2] == ["make demo", "make test"]
    assert [c.split()[1] for c in shown if c.startswith("p2p-export")][:3] == [
        "plan",
        "--plan",
        "run",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_of_the_page_runs(page: Path, folder: Path) -> None:
    for body in blocks(page, "python"):
        for model in BUILTIN_MODELS:
            body = body.replace(f'"{model}"', f'"./{MODEL}"')
        exec(compile(body, page.name, "exec"), {"__name__": page.stem, **values_at_hand(body)})


def values_at_hand(body: str) -> dict[str, Any]:
    """What a block takes for given: a loaded model with a prompt, arrays for a session."""
    rng = np.random.default_rng(0)
    visual = np.array([[False] * 4 + [True] * 8 + [False] * 4])
    values: dict[str, Any] = {
        "inputs_embeds": rng.standard_normal((1, 16, 128), dtype=np.float32),
        "position_ids": np.arange(16)[None],
        "visual_mask": visual,
        "next_embeds": rng.standard_normal((1, 1, 128), dtype=np.float32),
        "next_position_ids": np.array([[16]]),
    }
    if "model(**inputs)" in body:
        import torch

        from p2p_export.models.checkpoint import find_checkpoint, load_model

        model = load_model(find_checkpoint(f"./{MODEL}"))
        ids = torch.from_numpy(rng.integers(5, 20, (1, 16)))
        values |= {"model": model, "inputs": {"input_ids": ids}}
        values["visual_mask"] = torch.from_numpy(visual)
    return values


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_verb_has_a_page_that_the_index_links() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"({verb}.md)" in index
        assert (ROOT / "docs" / f"{verb}.md").is_file()


def test_what_make_runs_exists() -> None:
    """`make -n` resolves every target without doing it."""
    for target in ("demo", "test", "lint"):
        ended = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr


def test_a_command_that_does_not_exist_would_be_found(folder: Path) -> None:
    assert main(on_small_files(["frobnicate", "bundle/"])) == 2
    assert main(on_small_files(["run", "bundle/", "--picture", "photo.png"])) == 2
