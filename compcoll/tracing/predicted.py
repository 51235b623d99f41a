"""Predicted times of plain MPI for the calls of a traced program, by the model."""

from __future__ import annotations

from compcoll.model.plain import plain_seconds
from compcoll.model.predict import Call
from compcoll.model.profile import MachineProfile
from compcoll.operations import ALGORITHMS
from compcoll.tracing.reader import Program
from compcoll.tracing.tables import Row

__all__ = ["Predictor"]


class Predictor:
    """Predicts with the profile of a machine.

    Parameters
    ----------
    program : Program
        Whose ranks' hosts are looked at.
    machine : MachineProfile or None
        Without one nothing is predicted.
    """

    def __init__(self, program: Program, machine: MachineProfile | None):
        self.machine, self._size = machine, program.size
        self._per_node = program.ranks_per_node

    def seconds(self, op: str, row: Row) -> float | None:
        """Mean seconds that a call of a row would have taken; None for what the model does not know.

        Sizes are taken together: for each size of communicators one call of the mean size stands for all.
        """
        name = "Alltoallv" if blocking(op) == "Alltoallw" else blocking(op)
        if self.machine is None or name not in ALGORITHMS:
            return None
        together: dict[int, list[int]] = {}
        for (nbytes, size), calls in row.sizes.items():
            sums = together.setdefault(size, [0, 0])
            sums[0] += calls
            sums[1] += calls * nbytes
        seconds = 0.0
        for size, (calls, nbytes) in together.items():
            if size > 1 and nbytes:
                seconds += calls * self._of_call(self.machine, name, round(nbytes / calls), size)
        return seconds / row.calls

    def _of_call(self, machine: MachineProfile, name: str, nbytes: int, size: int) -> float:
        # The nodes of a part of the world are not known: evenly spread, if there are several.
        one_node = self._per_node >= self._size
        per_node = size if one_node else max(round(size * self._per_node / self._size), 1)
        return plain_seconds(Call.of_buffer(name, nbytes, size, per_node), machine, ALGORITHMS[name])


def blocking(op: str) -> str:
    """The method of which this is the nonblocking form, or itself."""
    return op[1:].capitalize() if op.startswith("I") and op[1:].capitalize() in ALGORITHMS else op
