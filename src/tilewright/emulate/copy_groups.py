"""Groups of copies that their issuer waits for: cp.async, bulk and wgmma groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.emulate.warp import Condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.events import AsyncEvent
    from tilewright.emulate.machine import Machine


class CopyGroups(Condition):
    """Copies of one thread (or warpgroup) in the order committed.

    A group is over when every copy in it is. `read` and `done` tell of a copy whether its source has been read
    and whether it is over.

    Attributes:
        key: name of its marks: (key, number of the group) is known after the wait for it.
    """

    __slots__ = ("committed", "key", "machine", "open")

    def __init__(self, machine: Machine, key: tuple[object, ...]) -> None:
        super().__init__()
        self.machine = machine
        self.key = key
        self.open: list[GroupCopy] = []
        self.committed: list[list[GroupCopy]] = []

    def add(self, copy: GroupCopy) -> None:
        """A copy was issued."""
        self.open.append(copy)

    def commit(self) -> None:
        """The copies issued since the last commit become a group."""
        number = len(self.committed)
        for copy in self.open:
            copy.group = number
            copy.settle()
        self.committed.append(self.open)
        self.open = []

    def pending(self, *, reads: bool = False) -> int:
        """Groups from the oldest that is not over (or has not been read) to the newest."""
        self.machine.note(self.key, writes=False)
        for number, group in enumerate(self.committed):
            if not all(copy.was_read if reads else copy.done for copy in group):
                return len(self.committed) - number
        return 0


class GroupCopy:
    """One copy of a group."""

    __slots__ = ("done", "group", "groups", "read_event", "was_read", "when_done", "write_event")

    def __init__(
        self, groups: CopyGroups, read_event: AsyncEvent | None, write_event: AsyncEvent | None
    ) -> None:
        self.groups = groups
        self.read_event = read_event
        self.write_event = write_event
        self.group: int | None = None
        self.was_read = False
        self.done = False
        self.when_done: list[Callable[[], None]] = []
        groups.add(self)

    def has_read(self) -> None:
        """The source has been read."""
        self.was_read = True
        self.settle()

    def is_done(self) -> None:
        """All is over."""
        self.was_read = self.done = True
        self.settle()
        for call in self.when_done:
            call()

    def settle(self) -> None:
        """Give the events the marks that a wait for the group makes known."""
        if self.group is None:
            return
        read_mark, done_mark = ((*self.groups.key, name) for name in ("read", "done"))
        if self.was_read and self.read_event is not None and not self.read_event.marks:
            self.read_event.marks += [(read_mark, self.group), (done_mark, self.group)]
        if self.done and self.write_event is not None and not self.write_event.marks:
            self.write_event.marks.append((done_mark, self.group))
        self.groups.machine.note(self.groups.key, writes=True)
        self.groups.machine.wake(self.groups)
