"""A source checkout of Megatron-LM, where MEGATRON_LM names one, still says what is recorded for its version."""

import os
from pathlib import Path

import pytest
from recorded import argument_cases, judged_by, letter_of, recorded, version_of

pytestmark = [pytest.mark.frameworks, pytest.mark.megatron_lm, pytest.mark.slow]

CHECKOUT = os.environ.get("MEGATRON_LM", "")


@pytest.mark.skipif(not CHECKOUT, reason="MEGATRON_LM names no checkout of Megatron-LM")
def test_recorded_verdicts_hold():
    version = version_of(Path(CHECKOUT))
    known = recorded()
    if version not in known:
        pytest.skip(f"nothing is recorded for version {version}")
    keys, cases = zip(*argument_cases(), strict=True)
    found = {key: letter_of(verdict) for key, verdict in zip(keys, judged_by(Path(CHECKOUT), list(cases)), strict=True)}
    assert {key: letter for key, letter in found.items() if known[version][key] != letter} == {}
