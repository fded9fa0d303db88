"""Which kernel a GPU gets and what its launch looks like; nothing here knows what the kernel computes.

A path is a section of kernel.cu with the numbers of launch.json that belong to it. A candidate is an option
that the plan did not take: the same source with another configuration, for the benchmark.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, NamedTuple

from arrays import LaunchError
from driver import Cuda

HERE = Path(__file__).resolve().parent
GRID_MAX = 2**31 - 1
PORTABLE_CLUSTER = 8
COUNTER_BYTES = 16
Json = dict[str, Any]


class Place(NamedTuple):
    """A launch: cluster tiles, and clusters and CTAs of the grid, which lie along x."""

    tiles: int
    grid_clusters: int
    grid_ctas: int


def read_constants(folder: Path = HERE) -> Json:
    """launch.json."""
    constants: Json = json.loads((folder / "launch.json").read_text(encoding="utf-8"))
    return constants


def choose_path(
    constants: Json, capability: tuple[int, int], name: str | None = None
) -> tuple[Json, str]:
    """The path for a compute capability, and why.

    Args:
        name: this path or candidate instead of the first that runs.
    Raises:
        LaunchError: none runs; says why for each.
    """
    here = ".".join(map(str, capability))
    entries = constants["paths"]
    if name is not None:
        known = [*entries, *constants["candidates"]]
        entries = [path for path in known if path["name"] == name]
        if not entries:
            names = ", ".join(path["name"] for path in known)
            raise LaunchError(f"no path {name!r}; there are {names}")
    passed: list[str] = []
    for path in entries:
        runs = "{} ({})".format(path["name"], path["instruction"])
        if fits(path, capability):
            chosen = "asked for" if name else f"compute capability {here}"
            return path, "; ".join([f"{chosen}: {runs}", *passed])
        passed.append(f"not {runs}, which needs {needs(path)}")
    if name is None:
        absent = constants["absent"]
        passed += ["no {} path: {}".format(entry["name"], entry["why"]) for entry in absent]
    raise LaunchError(f"nothing here runs on compute capability {here}: {'; '.join(passed)}")


def fits(path: Json, capability: tuple[int, int]) -> bool:
    """Whether the path runs on a compute capability."""
    if path["or_later"]:
        return bool(capability >= tuple(path["capabilities"][0]))
    return list(capability) in path["capabilities"]


def needs(path: Json) -> str:
    """The compute capabilities of a path in words."""
    names = " or ".join(".".join(map(str, pair)) for pair in path["capabilities"])
    return f"compute capability {names}{' or later' * path['or_later']}"


def cubins_for(path: Json, capability: tuple[int, int]) -> list[str]:
    """Architectures whose cubins run here, the GPU's own first; without a suffix older minors do too."""
    major, minor = capability
    minors = [minor] if path["arch_suffix"] else range(minor, -1, -1)
    return [f"sm_{major}{each}{path['arch_suffix']}" for each in minors]


def place(path: Json, tiles: int, resident_clusters: int, preferred: int = 0) -> Place:
    """The grid: the resident clusters of a persistent kernel, else a cluster a tile; nothing for no tile.

    Args:
        preferred: CTAs of the preferred cluster, which must divide the grid; 0 without one.
    """
    size = path["cluster_size"]
    largest = preferred or size
    ctas = -(-tiles * size // largest) * largest  # CTAs past the last tile find none and leave
    if path["persistent"]:
        ctas = min(ctas, max(resident_clusters * size // largest, 1) * largest)
    if ctas > GRID_MAX:
        raise LaunchError(f"{ctas} CTAs exceed the grid's limit of {GRID_MAX} along x")
    return Place(tiles, ctas // size, ctas)


def check_preferred(path: Json, preferred: int, capability: tuple[int, int]) -> None:
    """Whether the GPU may launch clusters of `preferred` CTAs where they fit and the kernel's elsewhere.

    Raises:
        LaunchError: why not.
    """
    if preferred % path["cluster_size"]:
        raise LaunchError(
            f"a preferred cluster of {preferred} CTAs is no multiple of the fallback, {path['cluster_size']}"
        )
    fixed = path["cluster_size"] > 1 or path["scheduler"] == "clc"
    if fixed and not path.get("larger_clusters"):
        raise LaunchError(
            f"the {path['name']} kernel is compiled for clusters of {path['cluster_size']} CTAs under "
            f"{path['scheduler']}: its multicast masks and requests hold for no other size. A preferred "
            "cluster works with a kernel of one CTA a cluster that is not scheduled by clc"
        )
    if capability < (10, 0):
        raise LaunchError("preferred clusters need compute capability 10.0 or later")


def find_resident(cuda: Any, function: Any, path: Json) -> int:
    """Clusters that the driver places on the chip at once; sets the attributes that the launch needs.

    Raises:
        LaunchError: none fits, which no launch can mend.
    """
    size, threads, smem = path["cluster_size"], path["threads"], path["smem_bytes"]
    most = cuda.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    if smem > most:
        raise LaunchError(
            f"the {path['name']} kernel takes {smem} bytes of shared memory a CTA; {cuda.name} allows {most}. "
            "Emit again with --device set to this GPU"
        )
    if size > 1 and not cuda.attribute("CLUSTER_LAUNCH"):
        raise LaunchError(
            f"{cuda.name} cannot launch clusters; the kernel needs {size} CTAs a cluster"
        )
    cuda.set_attribute(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", smem)
    if size > PORTABLE_CLUSTER:
        cuda.set_attribute(function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    resident: int = cuda.resident_clusters(function, size, threads, smem)
    if resident < 1:
        raise LaunchError(
            f"{cuda.name} places no cluster of {size} CTAs with {threads} threads and {smem} bytes of shared "
            "memory each (cuOccupancyMaxActiveClusters is 0): the launch would fail. Emit again with a smaller "
            "--cluster; under MIG or a green context fewer SMs are left"
        )
    return resident


def with_config(source: str, section: str, config: list[str]) -> str:
    """kernel.cu with another configuration in a section."""
    begin = source.index(f"// {section}: ")
    start = source.index("namespace config {\n", begin)
    end = source.index("}  // namespace config\n", start)
    return source[:start] + "namespace config {\n" + "\n".join(config) + "\n" + source[end:]


class Kernel:
    """The kernel of a path, loaded on one GPU.

    Args:
        path: this path or candidate instead of the first that runs.
        preferred_cluster: CTAs of the cluster that the GPU may form where it can; 0 without one.
    Attributes:
        path: "blackwell", "hopper", "portable" or a candidate; why: of that choice.
        built: the cubin or compiler it came from.
        resident_clusters: clusters on the chip at once, as the driver says.
    Raises:
        LaunchError
    """

    def __init__(
        self,
        device_id: int = 0,
        path: str | None = None,
        preferred_cluster: int = 0,
        cuda: Any = None,
    ) -> None:
        self.constants = read_constants()
        self.cuda = Cuda(device_id) if cuda is None else cuda
        capability = self.cuda.capability
        self.numbers, self.why = choose_path(self.constants, capability, path)
        self.path: str = self.numbers["name"]
        self.preferred_cluster = preferred_cluster
        if preferred_cluster:
            check_preferred(self.numbers, preferred_cluster, capability)
        self.arch = cubins_for(self.numbers, capability)[0]
        cubin, self.built = self._cubin()
        self.function = self.cuda.load(cubin, self.constants["entry"], self.built)
        self.resident_clusters = find_resident(self.cuda, self.function, self.numbers)
        self._counters: dict[int, int] = {}

    @property
    def is_changed(self) -> bool:
        """The source differs from kernel.cu: no cubin that lies here is of it."""
        return "config" in self.numbers

    def source_of(self, text: str) -> str:
        """What is compiled, from the text of kernel.cu."""
        if "config" in self.numbers:
            return with_config(text, self.numbers["section"], self.numbers["config"])
        return text

    def _cubin(self) -> tuple[bytes, str]:
        for arch in cubins_for(self.numbers, self.cuda.capability):
            ready = HERE / f"kernel.{arch}.cubin"
            if ready.exists() and not self.is_changed:
                return ready.read_bytes(), ready.name
        text = (HERE / "kernel.cu").read_text(encoding="utf-8")
        cubin, built = self.cuda.compile(self.source_of(text), self.arch)
        return bytes(cubin), str(built)

    def place_tiles(self, tiles: int) -> Place:
        """The grid for so many cluster tiles."""
        return place(self.numbers, tiles, self.resident_clusters, self.preferred_cluster)

    def counter(self, stream: int) -> int:
        """Zeros of the stream's own for a dynamic scheduler: launches that overlap must not share them."""
        if stream not in self._counters:
            self._counters[stream] = self.cuda.allocate(COUNTER_BYTES)
            self.cuda.zero(self._counters[stream], COUNTER_BYTES, stream)
        return self._counters[stream]

    def describe(self, where: Place) -> str:
        """What would run here, and why."""
        return (
            f"GPU:   {self.cuda.name}, {self.arch}, {self.built}\n"
            f"path:  {self.path}\n"
            f"why:   {self.why}\n"
            f"grid:  {where.grid_clusters} clusters = {where.grid_ctas} CTAs along x for {where.tiles} tiles; "
            f"{self.resident_clusters} clusters are resident"
        )


class Launch:
    """A kernel with its argument, to be launched as often as wanted; `held` keeps operands alive."""

    def __init__(self, kernel: Kernel, where: Place, argument: bytes, out: Any, held: Any) -> None:
        self.where, self.out = where, out
        self._kernel, self._held = kernel, held
        self._room = ctypes.create_string_buffer(len(argument) + 64)
        self._at = -(-ctypes.addressof(self._room) // 64) * 64
        ctypes.memmove(self._at, argument, len(argument))

    def __call__(self, stream: int = 0) -> Any:
        """Launch once, unless there is no tile; what the kernel writes to."""
        if self.where.tiles:
            kernel, numbers = self._kernel, self._kernel.numbers
            kernel.cuda.launch(
                kernel.function,
                self.where.grid_ctas,
                numbers["threads"],
                numbers["smem_bytes"],
                (numbers["cluster_size"], kernel.preferred_cluster),
                self._at,
                stream,
            )
        return self.out
