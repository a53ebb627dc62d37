"""The adapter: what kvproof needs to know about TinyPool."""

from kvproof.model.interface import BLOCKS, Answer, Copy, Declaration, Pool, Reply

from .tiny_pool import OutOfBlocks, TinyPool


class TinyAllocator:
    declaration = Declaration(surplus="kept", never=True)  # tables never shrink; NEVER is answered

    def __init__(self, configuration):
        self.pool = TinyPool(configuration.blocks, configuration.block_size)
        self.room = configuration.blocks * configuration.block_size
        self.lengths = {}
        self.tickets = 0

    def admit(self, request, tokens):
        return self._reserve(request, len(tokens))

    def extend(self, request, tokens, drafts=0):
        return self._reserve(request, self.lengths[request] + len(tokens))

    def _reserve(self, request, length):
        try:
            self.pool.reserve(request, length)
        except OutOfBlocks:  # running out is an answer
            return Reply(Answer.NEVER if length > self.room else Answer.LATER)
        self.lengths[request] = length
        return Reply(Answer.OK)

    def commit(self, request, rows):
        pass  # TinyPool does not count rows

    def release(self, request, reason):
        self.pool.drop(request)
        del self.lengths[request]

    def fork(self, parent, child, rows):
        whole, partial = divmod(rows, self.pool.block_size)
        if partial and not self.pool.free:
            return Reply(Answer.LATER)
        self.pool.share(parent, child, whole)
        self.lengths[child] = rows
        if not partial:
            return Reply(Answer.OK, hit_rows=rows)
        self.tickets += 1  # a partial block is copied later: until then the copy owns its source
        self.pool.tables[self.tickets] = [source] = [self.pool.tables[parent][whole]]
        self.pool.refs[source] += 1
        self.pool.reserve(child, rows)
        return Reply(Answer.OK, rows, (Copy(source, self.pool.tables[child][-1], partial, self.tickets),))

    def complete(self, tickets):
        for ticket in tickets:
            self.pool.drop(ticket)

    def snapshot(self):
        tables = {name: table for name, table in self.pool.tables.items() if name in self.lengths}
        holds = {f"copy {ticket}": t for ticket, t in self.pool.tables.items() if ticket not in tables}
        return {BLOCKS: Pool(frozenset(self.pool.refs), self.pool.free, tables, holds=holds, counts=self.pool.refs)}
