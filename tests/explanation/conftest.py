"""Small results that explanations are made from."""

import json
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.documents import rounded
from shardwright.planner.problem import PricingOptions


def plain(record: Any) -> Any:
    """A record as it is read back from JSON."""
    return json.loads(json.dumps(rounded(record)))


@pytest.fixture(scope="session")
def dense() -> dict[str, Any]:
    """A search with a pipeline."""
    options = PricingOptions(framework="megatron")
    made: dict[str, Any] = plain(
        shardwright.plan("llama3.1-70b", "dgx-h100:8", seq_len=4096, global_batch=256, options=options).to_dict()
    )
    return made


@pytest.fixture(scope="session")
def routed() -> dict[str, Any]:
    """A search for a model with experts."""
    made: dict[str, Any] = plain(shardwright.plan("mixtral-8x7b", "dgx-h100:4", seq_len=4096, global_batch=256).to_dict())
    return made


@pytest.fixture(scope="session")
def one_plan() -> dict[str, Any]:
    """A PLAN, without a ranking."""
    degrees = shardwright.Degrees(tp=2, micro_batch=1)
    price = shardwright.estimate("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=degrees)
    made: dict[str, Any] = plain(price.to_dict())
    return made


@pytest.fixture
def saved(dense: dict[str, Any], tmp_path: Path) -> Path:
    """The dense result as a file."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(dense), encoding="utf-8")
    return path
