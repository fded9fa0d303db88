"""Plan, generate, prove and measure cluster-persistent GPU kernels.

from tilewright import Gemm, load, make_plan
plan = make_plan(Gemm(m=8192, n=8192, k=8192), load("b200"))
print(plan.conclusion.summary)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilewright.device import Device, known_devices, load
    from tilewright.draft import Options
    from tilewright.errors import TilewrightError
    from tilewright.plan import make_plan
    from tilewright.plan_model import Plan
    from tilewright.problem import Attention, Gemm, GroupedGemm, TileList

__all__ = [
    "Attention",
    "Device",
    "Gemm",
    "GroupedGemm",
    "Options",
    "Plan",
    "TileList",
    "TilewrightError",
    "__version__",
    "known_devices",
    "load",
    "make_plan",
]

_HOME = {
    "Attention": "problem",
    "Device": "device",
    "Gemm": "problem",
    "GroupedGemm": "problem",
    "Options": "draft",
    "Plan": "plan_model",
    "TileList": "problem",
    "TilewrightError": "errors",
    "known_devices": "device",
    "load": "device",
    "make_plan": "plan",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are used: `import tilewright` alone costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tilewright.{_HOME[name]}"), name)
