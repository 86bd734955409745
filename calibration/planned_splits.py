"""The splits a plan was made with, dealt again from its evidence and checked to be the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2p_export.calibration.datasets import Dataset, load_dataset
from p2p_export.calibration.samples import Sample
from p2p_export.calibration.splits import SPLIT_NAMES, SplitName, SplitSizes, split_dataset
from p2p_export.errors import InputError, PlanError
from p2p_export.plan import Plan


@dataclass(frozen=True)
class SplitRecord:
    """What `evidence` says about the data of a plan."""

    data: str
    images: str | None
    limit: int | None
    sizes: SplitSizes
    seed: int
    sha256: str

    @classmethod
    def of(cls, plan: Plan, split: SplitName) -> SplitRecord:
        """Read the record of one split; `PlanError` when the plan has none."""
        if plan.evidence is None:
            raise PlanError(
                "the plan records no splits (it has no evidence); name the data to use whole with "
                "--data"
            )
        try:
            data = plan.evidence["data"]
            return cls(
                data=str(data["name"]),
                images=data["images"],
                limit=data["limit"],
                sizes=SplitSizes(**plan.evidence["sizes"]),
                seed=int(plan.evidence["seed"]),
                sha256=str(plan.evidence["splits"][split]["sha256"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(
                f"the splits in the evidence of the plan cannot be read ({error!r}); make the plan "
                "again with `p2p-export plan`"
            ) from None


def planned_split(
    plan: Plan, name: str, *, data: str | Path | None = None, images: str | Path | None = None
) -> tuple[Dataset, tuple[Sample, ...]]:
    """The dataset a plan was made with and the samples of one of its splits.

    `data` and `images` say where the data lies now, when it has moved. Raises `InputError` when
    the split is empty or its content is not what planning recorded, `PlanError` without a record.
    """
    if name not in SPLIT_NAMES:
        raise InputError(f"there is no split {name!r}; the splits are {', '.join(SPLIT_NAMES)}")
    record = SplitRecord.of(plan, name)
    if data is None:
        data, images = record.data, images or record.images
    dataset = load_dataset(data, images=images, limit=record.limit)
    split = split_dataset(dataset, record.sizes, record.seed)[name]
    if split.sha256 != record.sha256:
        raise InputError(
            f"the {name} split of {dataset.name} is not the one the plan was made with (the "
            "content hashes differ); restore the data or make the plan again"
        )
    if not split.samples:
        raise InputError(f"the plan set no {name} split apart; plan again with a {name} size")
    return dataset, split.samples
