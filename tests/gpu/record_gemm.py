"""Run every GEMM case on the GPU at hand and write what came out: python tests/gpu/record_gemm.py FILE.json

The file is what the tests without a GPU replay (tests/null/test_gemm_record.py).
"""

from __future__ import annotations

import json
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gemm_cases import SUITES, Case
from tilewright.errors import TilewrightError
from tilewright.run.bindings import CudaFailed
from tilewright.run.check import GemmRun
from tilewright.run.gemm import GemmKernel
from tilewright.run.gpu import Gpu

if TYPE_CHECKING:
    from tilewright.kernels.config import GemmConfig


def run_case(gpu: Gpu, case: Case, kernels: dict[GemmConfig, GemmKernel]) -> dict[str, Any]:
    """One case: what was checked, on which kernel."""
    config = case.config()
    if config not in kernels:
        kernels[config] = GemmKernel(gpu, config)
    kernel = kernels[config]
    run = GemmRun(gpu, kernel, case.resolve(kernel.resident_clusters), seed=len(kernels))
    try:
        checked = run.check()
    finally:
        run.close()
    return {
        "case": case.name,
        "passed": checked.passed,
        "worst": round(checked.worst, 4),
        "relative": float(f"{checked.relative:.3g}"),
        "tiles": checked.tiles,
        "grid_clusters": checked.grid_clusters,
        "resident_clusters": kernel.resident_clusters,
    }


def main() -> None:
    only = sys.argv[2:]
    with Gpu() as gpu:
        record: dict[str, Any] = {
            "gpu": gpu.name,
            "driver": gpu.driver_version,
            "date": datetime.now(UTC).date().isoformat(),
            "suites": {},
        }
        kernels: dict[GemmConfig, GemmKernel] = {}
        for suite, cases in SUITES.items():
            if only and suite not in only:
                continue
            rows = []
            for case in cases:
                try:
                    rows.append(run_case(gpu, case, kernels))
                except CudaFailed:
                    print("FAILED", suite, case.name, flush=True)  # noqa: T201
                    raise
                except TilewrightError:
                    traceback.print_exc()
                    rows.append({"case": case.name, "passed": False})
                if not rows[-1]["passed"]:
                    print("WRONG", suite, rows[-1], flush=True)  # noqa: T201
            record["suites"][suite] = rows
            good = sum(row["passed"] for row in rows)
            print(f"{suite}: {good} of {len(rows)} right", flush=True)  # noqa: T201
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
