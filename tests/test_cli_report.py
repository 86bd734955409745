"""The page: self-contained, escaped, accessible, and of the numbers it was given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from measurement_files import answered, bench_document, evaluation_document, plan_document

from p2p_export.cli.main import main
from p2p_export.report.charts import CurveChart, LayerStrip
from p2p_export.report.view import Curve

VOID = {"meta", "img", "br", "hr", "link", "input", "rect", "circle", "line", "path"}


class Page(HTMLParser):
    """The page as a reader without CSS meets it; unbalanced tags raise."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    """Write the documents given and return the options that name them."""

    def write(**documents: Any) -> list[str]:
        argv = ["-o", str(tmp_path / "report.html")]
        for name, document in {"plan": plan_document(), **documents}.items():
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(document))
            argv += [f"--{name}", str(path)]
        return argv

    return write


def page_of(argv: list[str]) -> Page:
    assert main(["report", *argv]) == 0
    return Page(Path(argv[1]).read_text(encoding="utf-8"))


def test_the_page_says_the_numbers_it_was_given(files: Callable[..., list[str]]) -> None:
    page = page_of(files(evaluation=evaluation_document(), bench=bench_document()))
    for number in ("92.0 % (92 of 100)", "91.0 % (91 of 100)", "400 MFLOPs", "75.0 %"):
        assert number in page.words
    for number in ("12.50 ms", "8.25 ms", "66.0 %", "900 KiB"):
        assert number in page.words
    assert "2 of 4 decoder layers no longer compute the visual tokens" in page.words
    assert "how many ?" in page.words


def test_the_curves_start_at_the_dense_accuracy_and_count_layers_patched(
    files: Callable[..., list[str]],
) -> None:
    page = page_of(files())
    # Backward with all 4 layers patched is the sweep point that starts at layer 0.
    assert "backward, 4 layers: 30.0 %" in page.words
    assert "backward, 1 layers: 87.0 %" in page.words
    assert "forward, 0 layers: 90.0 %" in page.words
    assert "forward, 4 layers: 20.0 %" in page.words


def test_a_plan_alone_makes_a_page_that_says_what_is_missing(
    files: Callable[..., list[str]],
) -> None:
    page = page_of(files())
    assert "no evaluation was given" in page.words
    assert "no benchmark was given" in page.words
    assert page.all("img") == []


def test_a_plan_written_by_hand_makes_a_page_without_curves(
    files: Callable[..., list[str]],
) -> None:
    plan = {**plan_document(), "evidence": None}
    page = page_of(files(plan=plan))
    assert "the plan carries no evidence" in page.words
    assert "tolerance line" not in page.words


def test_nothing_on_the_page_is_fetched_from_elsewhere(files: Callable[..., list[str]]) -> None:
    argv = files(evaluation=evaluation_document(), bench=bench_document())
    page = page_of(argv)
    html = Path(argv[1]).read_text(encoding="utf-8")
    assert re.findall(r"(?:https?:)?//\w", html) == []
    assert page.all("script") + page.all("link") == []
    assert all(str(image["src"]).startswith("data:image/") for image in page.all("img"))
    assert "url(" not in html
    assert "@import" not in html


def test_text_of_models_and_data_is_escaped(files: Callable[..., list[str]]) -> None:
    nasty = "<script>alert('x')</script> & \"quotes\""
    plan = plan_document()
    plan["model"]["id"] = nasty
    gallery = [answered(nasty, dense=nasty, planned=nasty, answers=[nasty], task=nasty)]
    page = page_of(files(plan=plan, evaluation=evaluation_document(gallery)))
    assert page.all("script") == []
    assert page.words.count("<script>alert('x')</script>") >= 6


def test_drawings_are_named_and_have_a_table_beside_them(
    files: Callable[..., list[str]],
) -> None:
    page = page_of(files(evaluation=evaluation_document(), bench=bench_document()))
    for drawing in page.all("svg"):
        assert drawing["role"] == "img"
        assert drawing.get("aria-label") or drawing.get("aria-labelledby")
    assert all(image["alt"] for image in page.all("img"))
    assert "The same numbers as a table" in page.words


def test_a_missed_tolerance_is_said_at_the_top(files: Callable[..., list[str]]) -> None:
    plan = plan_document()
    plan["evidence"]["accuracy"]["planned"]["correct"] = 60
    assert "miss the tolerance" in page_of(files(plan=plan)).words
    assert "miss the tolerance" not in page_of([*files(), "--force"]).words


def test_an_existing_page_is_replaced_only_when_asked(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = files()
    page_of(argv)
    assert main(["report", *argv]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["report", *argv, "--force"]) == 0


def without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ({"evaluation": without(evaluation_document(), "dense")}, "no 'dense'"),
        ({"evaluation": []}, "evaluation.json is not as we write it"),
        ({"bench": {**bench_document(), "dense": None}}, "without its dense decoder"),
        ({"bench": without(bench_document(), "machine")}, "no 'machine'"),
        (
            {"evaluation": evaluation_document([answered(image="https://x.example/a.png")])},
            "not inside the file",
        ),
        ({"plan": {**plan_document(), "evidence": {"data": 1}}}, "the evidence of the plan"),
        ({"plan": {**plan_document(), "model": {"id": "m"}}}, "num_hidden_layers"),
    ],
)
def test_files_that_are_not_ours_get_one_sentence_and_no_page(
    files: Callable[..., list[str]],
    documents: dict[str, Any],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = files(**documents)
    assert main(["report", *argv]) == 2
    assert words in capsys.readouterr().err
    assert not Path(argv[1]).exists()


def test_the_chart_puts_higher_accuracy_higher_and_more_layers_further_right() -> None:
    chart = CurveChart.draw([Curve("forward", (0.9, 0.6, 0.3))], 0.9, 0.1)
    xs = [point.x for point in chart.lines[0].points]
    ys = [point.y for point in chart.lines[0].points]
    assert xs == sorted(xs)
    assert ys == sorted(ys)
    assert chart.dense_level == ys[0]
    assert chart.tolerance_level is not None
    assert ys[0] < chart.tolerance_level < ys[1]


@pytest.mark.parametrize("layers", [1, 12, 28, 80])
def test_the_strip_fits_any_depth(layers: int) -> None:
    strip = LayerStrip.draw(["proxy"] * layers)
    last = strip.cells[-1]
    assert len(strip.cells) == layers
    assert last.x + last.width == pytest.approx(strip.width)
    assert last.width > 0
