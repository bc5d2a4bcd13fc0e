"""What a comparison with SGLang is made of: a case, and a random batch whose numbers both sides read."""

import dataclasses
from typing import Callable

import torch


@dataclasses.dataclass
class Side:
    """One implementation of a case: what it enqueues, and the tensors it writes."""

    enqueue: Callable[[], None]
    outputs: dict


@dataclasses.dataclass
class Case:
    name: str
    parameters: dict
    ours: Side
    peers: dict  # name to Side
    live: dict  # output to a function that gives its live region
    check: Callable = None  # of both sides' outputs, for what is not equal element by element; returns complaints
    bar: float = 0  # microseconds a node

    def differences(self):
        """Runs both sides; a line for each output whose live region differs."""
        self.ours.enqueue()
        found = []
        for peer, side in self.peers.items():
            side.enqueue()
            shared = [name for name in self.live if name in side.outputs and name in self.ours.outputs]
            if not shared and self.check is None:
                found.append(f"{peer}: nothing to compare")
            for name in shared:
                got, want = (self.live[name](each.outputs[name]).flatten().long() for each in (self.ours, side))
                if got.shape != want.shape:
                    found.append(f"{peer}, {name}: {tuple(got.shape)} against {tuple(want.shape)}")
                elif not torch.equal(got, want):
                    at = int((got != want).nonzero()[0])
                    found.append(f"{peer}, {name}: {int((got != want).sum())} of {len(want)} differ, first at {at}: "
                                 f"stepgraph {int(got[at])}, {peer} {int(want[at])}")
            if self.check:
                found += [f"{peer}: {what}" for what in self.check(self.ours.outputs, side.outputs)]
        return found


def lines(counts):
    """The first counts[i] columns of line i."""
    return lambda table: torch.cat([table[i, :count] for i, count in enumerate(counts)])


def first(count):
    return lambda values: values.flatten()[:count]


def pages(tokens, page):
    return [-(-length // page) for length in tokens]


class Batch:
    """Rows with lengths, their lines of a slot table whose pages are whole, and a row bucket larger than the batch."""

    def __init__(self, lengths, width, page=1, dead=0, seed=0, wide=True, device=None):
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.random = torch.Generator(device=self.device).manual_seed(seed)
        self.lengths, self.width, self.page = list(lengths), width, page
        self.live, self.rows = len(self.lengths), len(self.lengths) + dead
        self.pool = 1 << 20  # pages
        wide_type = torch.int64 if wide else torch.int32
        self.seq_lens = self.tensor(self.lengths + [1 << 30] * dead, wide_type)  # a dead row's length is wild
        order = torch.randperm(self.rows, generator=self.random, device=self.device)
        self.requests = order.to(wide_type)
        self.live_rows = self.tensor([self.live])
        columns = -(-width // page)
        first_slots = torch.randint(1, self.pool, (self.rows, columns), generator=self.random, device=self.device,
                                    dtype=torch.int32)
        self.page_lines = first_slots
        self.req_to_token = (first_slots if page == 1 else
                             (first_slots.unsqueeze(-1) * page +
                              torch.arange(page, device=self.device, dtype=torch.int32)).flatten(1)[:, :width].contiguous())

    def tensor(self, values, dtype=torch.int32):
        return torch.tensor(values, device=self.device, dtype=dtype)

    def empty(self, *shape, dtype=torch.int32):
        """Poison: what is not written stays wild."""
        return torch.full(shape, -7777777, device=self.device, dtype=dtype)

    def integers(self, low, high, *shape, dtype=torch.int32):
        return torch.randint(low, high, shape, generator=self.random, device=self.device, dtype=dtype)

    def slot_map(self, negatives=True):
        """Slot to slot of another pool; a tenth unmapped."""
        entries = self.integers(0, self.pool, self.pool * self.page, dtype=torch.int64)
        if negatives:
            entries[self.integers(0, 10, len(entries)) == 0] = -1
        return entries

    def page_map(self, negatives=True):
        entries = torch.randperm(self.pool, generator=self.random, device=self.device).to(torch.int32)
        if negatives:
            entries[self.integers(0, 10, len(entries)) == 0] = -1
        return entries

    def own(self):
        """Arguments that most ops share."""
        return {"live_rows": self.live_rows, "seq_lens": self.seq_lens, "requests": self.requests, "cap": self.width,
                "req_to_token": self.req_to_token, "page_size": self.page}

    def peer_lengths(self):
        return self.seq_lens[:self.live]

    def peer_requests(self):
        return self.requests[:self.live]

    def parameters(self, **more):
        """What describes the batch in a report."""
        least, most = min(self.lengths), max(self.lengths)
        return {"page": self.page, "width": self.width, "batch": self.live,
                "live": most if least == most else f"{least} to {most}", **more}
