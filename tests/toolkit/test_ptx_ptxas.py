"""The opcode table's versions and targets against the ptxas that is installed, one instruction a module."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tilewright.ptx import parse_ptx
from tilewright.ptx.opcodes import find_facts, unsupported_because

if TYPE_CHECKING:
    from pathlib import Path

PTXAS = shutil.which("ptxas")

MODULE = """.version {version}
.target {target}
.address_size 64
.visible .entry k() {{
.reg .pred p; .reg .b32 a, b, c; .reg .b64 d, e; .reg .f32 f;
.shared .align 128 .b8 s[1024]; .shared .align 8 .b64 m;
mov.u32 a, s; mov.u32 b, m; mov.u32 c, 32; mov.u64 d, 0; mov.u64 e, 0;
setp.eq.u32 p, a, 0;
{instruction}
ret;
}}
"""

TARGETS = [
    *(("sm_80", "9.0"), ("sm_90", "9.0"), ("sm_90a", "8.0"), ("sm_90", "7.8"), ("sm_100", "8.6")),
    *(("sm_100a", "8.6"), ("sm_100f", "9.0"), ("sm_103a", "9.0"), ("sm_120a", "9.0")),
    ("sm_110a", "9.0"),
]

INSTRUCTIONS = [
    "mbarrier.try_wait.parity.shared::cta.b64 p, [b], c;",
    "mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [b];",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [b];",
    "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [a], [d, {c, c}], [b];",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [a], [d], 16, [b];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [a], [d, {c, c, c, c, c}], [b];",
    "tcgen05.shift.cta_group::1.down [a];",
    "tcgen05.fence::before_thread_sync;",
    "tcgen05.wait::ld.sync.aligned;",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [d];",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [a], c, [b];",
    "st.bulk.weak.shared::cta [a], 64, 0;",
    "elect.sync _|p, 0xffffffff;",
    "griddepcontrol.wait;",
    "multimem.ld_reduce.relaxed.gpu.global.add.f32 f, [d];",
    "prefetch.tensormap [d];",
    "fence.acq_rel.cluster;",
    "fence.acquire.sync_restrict::shared::cluster.cluster;",
    "fence.proxy.async;",
    "fence.mbarrier_init.release.cluster;",
    "barrier.cluster.arrive.relaxed;",
    "setmaxnreg.inc.sync.aligned.u32 96;",
    "tcgen05.mma.cta_group::1.kind::f16 [a], d, e, c, p;",
    "tcgen05.cp.cta_group::1.128x256b [a], d;",
    "mapa.shared::cluster.u32 c, a, b;",
    "ld.shared::cluster.u32 c, [a];",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [d], [a], 16;",
    "ld.acquire.cluster.global.u32 c, [d];",
    "cvta.shared::cluster.u64 d, e;",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [a], c, [b];",
    "cp.async.bulk.prefetch.L2.global [d], 16;",
    "tcgen05.mma.ws.cta_group::1.kind::f16 [a], d, e, c, p;",
]


@pytest.mark.toolkit
@pytest.mark.skipif(PTXAS is None, reason="no ptxas on the path")
@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_ptxas_accepts_what_the_table_allows(instruction: str, tmp_path: Path) -> None:
    assert PTXAS is not None
    path = tmp_path / "k.ptx"
    for target, version in TARGETS:
        text = MODULE.format(version=version, target=target, instruction=instruction)
        path.write_text(text)
        command = [PTXAS, f"-arch={target}", str(path), "-o", str(tmp_path / "k.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        module = parse_ptx(text)
        *_, tested, _ = module.functions[0].instructions()
        facts = find_facts(tested.opcode)
        assert facts is not None
        reason = unsupported_because(facts, module.version, target)
        assert (done.returncode == 0) == (reason is None), (target, version, done.stderr, reason)
