"""Every benchmark has a small run, which measures everything once and writes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda p: p.stem)
def test_the_small_run_measures_and_writes_nothing(script):
    before = {p: p.read_bytes() for p in (ROOT / "benchmarks" / "results").glob("*")}
    command = [sys.executable, script, "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "kda chunked" in run.stdout
    assert before == {p: p.read_bytes() for p in (ROOT / "benchmarks" / "results").glob("*")}
