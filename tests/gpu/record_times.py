"""When and where the kernels of tests/support/traced_plans.py did each tile on the GPU at hand, as JSON.

    PYTHONPATH=src python tests/gpu/record_times.py tests/data/h200/times.json

tests/toolkit/test_emulated_traces.py lays the record beside the simulation and the emulation of the same plans.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from tilewright.device import load
from tilewright.emit.configs import Extras, make_config
from tilewright.plan import make_plan
from tilewright.run.bench import case_of, check_kernel
from tilewright.run.check import GemmRun
from tilewright.run.gemm import GemmKernel
from tilewright.run.gpu import Gpu
from traced_plans import PROBLEM, SCHEDULERS, as_rows, options


def main(out: Path) -> None:
    device = load("h200")
    runs = {}
    with Gpu() as gpu:
        problem = check_kernel(gpu, PROBLEM, device)
        for scheduler in SCHEDULERS:
            plan = make_plan(problem, device, options(scheduler))
            config, _ = make_config(problem, plan, device, Extras())
            run = GemmRun(gpu, GemmKernel(gpu, replace(config, timeline=True)), case_of(problem))
            runs[scheduler] = as_rows(*run.times())
            run.close()
        record = {
            "gpu": gpu.name,
            "driver": gpu.driver_version,
            "toolkit": gpu.toolkit,
            "date": datetime.now(UTC).date().isoformat(),
            "problem": PROBLEM.model_dump(),
            "runs": runs,
        }
    out.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
