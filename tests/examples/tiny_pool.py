"""Somebody's own allocator: 40 lines that know nothing of kvproof."""


class OutOfBlocks(Exception):
    """The pool has not enough free blocks."""


class TinyPool:
    """Paged blocks with reference counts; the block freed last is handed out first."""

    def __init__(self, blocks, block_size):
        self.block_size = block_size
        self.free = list(range(1, blocks + 1))
        self.refs = dict.fromkeys(self.free, 0)
        self.tables = {}

    def reserve(self, name, length):
        """Give a sequence enough blocks for ``length`` positions."""
        table = self.tables.setdefault(name, [])
        missing = -(-length // self.block_size) - len(table)
        if missing > len(self.free):
            if not table:
                del self.tables[name]
            raise OutOfBlocks(f"{missing} blocks wanted, {len(self.free)} free")
        for _ in range(missing):
            block = self.free.pop()
            self.refs[block] = 1
            table.append(block)

    def share(self, parent, child, blocks):
        """Start ``child`` on the first ``blocks`` blocks of ``parent``."""
        self.tables[child] = self.tables[parent][:blocks]
        for block in self.tables[child]:
            self.refs[block] += 1

    def drop(self, name):
        """The sequence ends."""
        for block in self.tables.pop(name):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
