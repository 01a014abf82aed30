"""Bytes alive at once while torch runs, operator by operator."""

from __future__ import annotations

from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts storages that operators made and nobody has let go, of the tensors that `counts` says.

    Attributes:
        peak: the most bytes alive after an operator.
    """

    def __init__(self, counts):
        super().__init__()
        self.counts = counts
        self.peak = 0
        self._known = {}

    def alive(self):
        """Bytes alive now."""
        self._known = {place: kept for place, kept in self._known.items() if not kept[0].expired()}
        return sum(size for _, size in self._known.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if hasattr(tensor, "untyped_storage") and self.counts(tensor):
                storage = tensor.untyped_storage()
                self._known.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, self.alive())
        return made
