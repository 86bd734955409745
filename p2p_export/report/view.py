"""What the page shows, apart from how it is drawn and from where it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p2p_export.plan import Mode


@dataclass(frozen=True)
class Curve:
    """Accuracy when 0, 1, 2, ... layers are patched from one end (0 is the dense model)."""

    direction: str
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """One measured quantity, dense against pruned; smaller is better."""

    name: str
    note: str
    dense: float
    pruned: float
    dense_text: str
    pruned_text: str

    @property
    def ratio(self) -> float:
        return self.pruned / self.dense if self.dense else 1.0


@dataclass(frozen=True)
class Figure:
    """One number of the headline, said large; `detail` says what it is measured on."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column holds row headings."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Answered:
    """One test question: the image as a data URI, the truth, what dense and pruned answered."""

    image: str
    question: str
    truth: str
    dense: str | None
    pruned: str | None
    task: str = ""
    dense_correct: bool | None = None
    pruned_correct: bool | None = None


@dataclass(frozen=True)
class ReportView:
    """Everything on the page. Empty parts are left out of it, and `missing` says which and why."""

    model: str
    summary: str
    num_hidden_layers: int
    layers: Mapping[int, Mode]
    figures: Sequence[Figure] = ()
    headline: Table | None = None
    curves: Sequence[Curve] = ()
    dense_accuracy: float | None = None
    tolerance: float | None = None
    comparisons: Sequence[Comparison] = ()
    tasks: Table | None = None
    gallery: Sequence[Answered] = ()
    gallery_note: str = ""
    warnings: Sequence[str] = ()
    missing: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def modes(self) -> tuple[Mode, ...]:
        return tuple(self.layers.get(i, "dense") for i in range(self.num_hidden_layers))
