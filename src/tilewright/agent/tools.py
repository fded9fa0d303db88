"""The tools that an agent can call: one entry each."""

from __future__ import annotations

from tilewright.agent.emulating import CheckAnswer, CheckArguments, check
from tilewright.agent.kernels import (
    AuditAnswer,
    AuditArguments,
    CompileAnswer,
    CompileArguments,
    ExplainArguments,
    RuleAnswer,
    audit,
    compile_,
    explain,
)
from tilewright.agent.planning import (
    DevicesAnswer,
    DevicesArguments,
    PlanAnswer,
    PlanArguments,
    ResidencyAnswer,
    ResidencyArguments,
    SimulateAnswer,
    SimulateArguments,
    devices,
    plan,
    residency,
    simulate,
)
from tilewright.agent.tool import Tool

TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "plan",
            "Plan a kernel",
            "Decide a GEMM, grouped GEMM (MoE), attention or list of tiles on a GPU: does a thread block cluster or CTA "
            "pair pay, which tile and scheduler, how sure, what would flip it. Ask for parts contract (tile map, barrier "
            "ledger, masks, CLC loop, TMEM), schedule (six schedulers, boundaries) or evidence when they are needed. dtype: "
            "bf16, fp16, tf32, fp8_e4m3, fp8_e5m2, mxfp8, nvfp4, int8.",
            PlanArguments,
            PlanAnswer,
            plan,
        ),
        Tool(
            "residency",
            "Clusters resident",
            "CTAs an SM and clusters resident on the chip for a CTA's threads, shared memory, registers and TMEM, by "
            "cluster size, with the limiting resource.",
            ResidencyArguments,
            ResidencyAnswer,
            residency,
        ),
        Tool(
            "simulate",
            "Simulate schedulers",
            "Makespan, tail and fairness of tile costs under single_tile, static, static_blocked, dynamic_atomic, clc and "
            "stream_k, with overheads of a device or with plain workers.",
            SimulateArguments,
            SimulateAnswer,
            simulate,
        ),
        Tool(
            "audit",
            "Audit PTX",
            "Find where PTX (or CUDA that compiles without headers) breaks the contract of cluster launch control, "
            "mbarriers, clusters, TMA, tcgen05 and wgmma: deadlocks and races by rule, line and other line. Optionally the "
            "barrier ledger as found.",
            AuditArguments,
            AuditAnswer,
            audit,
        ),
        Tool(
            "check",
            "Run a kernel without its GPU",
            "Execute PTX (or CUDA that compiles without headers, or a plan's own kernel) on the CPU under many orders that the "
            "hardware may choose: wrong results, races, deadlocks and broken contracts by rule, line and other line. Clusters, "
            "DSMEM, mbarriers, TMA, wgmma, tcgen05, CLC. Keep problems small: a schedule runs some 10,000 warp instructions "
            "a second. verdict: pass, fail, or unsupported with the instruction that is not emulated.",
            CheckArguments,
            CheckAnswer,
            check,
        ),
        Tool(
            "compile",
            "Compile CUDA",
            "Compile header-free CUDA C++ with NVRTC for real architectures: registers, spills, shared memory, PTX. No GPU "
            "needed.",
            CompileArguments,
            CompileAnswer,
            compile_,
            writes=True,
        ),
        Tool(
            "explain",
            "Explain a rule",
            "What a rule of the audit says, what to do, its section of the PTX ISA, a kernel that breaks it and its clean twin.",
            ExplainArguments,
            RuleAnswer,
            explain,
        ),
        Tool(
            "devices",
            "Known devices",
            "The known GPUs, or every value of one with its unit, kind (documented, queried, measured, derived, assumed) and "
            "source.",
            DevicesArguments,
            DevicesAnswer,
            devices,
        ),
    )
}
