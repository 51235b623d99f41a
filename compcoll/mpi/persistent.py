"""Persistent calls: prepared once, with their decision, schedule and tags, and started again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine.call import begin, planned
from compcoll.mpi import calls
from compcoll.mpi.buffers import in_place, on_gpu, parse
from compcoll.mpi.later import NonblockingMessages
from compcoll.mpi.nonblocking import Make, NonblockingCalls, without_op
from compcoll.mpi.prequest import Prequest
from compcoll.mpi.staging import Staged
from compcoll.mpi.vectors import Shared

__all__ = ["PersistentCalls"]

NO_INFO = MPI.INFO_NULL
ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG


class PersistentCalls(NonblockingCalls, NonblockingMessages):
    """The persistent forms of collectives and messages: each returns an `MPI.Prequest`.

    As in MPI all ranks prepare collectives in the same order, and start them in any.
    """

    def Bcast_init(self, buf, root: int = 0, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        return self._prepare("Bcast", calls.bcast, super().Bcast_init, info, buf, root)

    def Allgather_init(self, sendbuf, recvbuf, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        return self._prepare("Allgather", calls.allgather, super().Allgather_init, info, sendbuf, recvbuf)

    def Allgatherv_init(self, sendbuf, recvbuf, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        return self._prepare("Allgatherv", calls.allgatherv, super().Allgatherv_init, info, sendbuf, recvbuf)

    def Alltoall_init(self, sendbuf, recvbuf, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        return self._prepare("Alltoall", calls.alltoall, super().Alltoall_init, info, sendbuf, recvbuf)

    def Gather_init(self, sendbuf, recvbuf, root: int = 0, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        return self._prepare("Gather", calls.gather, super().Gather_init, info, sendbuf, recvbuf, root)

    def Scatter_init(self, sendbuf, recvbuf, root: int = 0, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        return self._prepare("Scatter", calls.scatter, super().Scatter_init, info, sendbuf, recvbuf, root)

    # -- each pair of ranks decides alone

    def Alltoallv_init(self, sendbuf, recvbuf, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        share, plain = self._share_alltoallv, super().Alltoallv_init
        return self._prepare_shared("Alltoallv", share, plain, info, sendbuf, recvbuf)

    def Alltoallw_init(self, sendbuf, recvbuf, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        share, plain = self._share_alltoallw, super().Alltoallw_init
        return self._prepare_shared("Alltoallw", share, plain, info, sendbuf, recvbuf)

    def Gatherv_init(self, sendbuf, recvbuf, root: int = 0, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        share, plain = self._share_gatherv, super().Gatherv_init
        return self._prepare_shared("Gatherv", share, plain, info, sendbuf, recvbuf, root)

    def Scatterv_init(self, sendbuf, recvbuf, root: int = 0, info: MPI.Info = NO_INFO) -> MPI.Prequest:
        share, plain = self._share_scatterv, super().Scatterv_init
        return self._prepare_shared("Scatterv", share, plain, info, sendbuf, recvbuf, root)

    # -- reductions, of which only sums are accelerated

    def Allreduce_init(
        self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM, info: MPI.Info = NO_INFO
    ) -> MPI.Prequest:  # fmt: skip
        make = partial(without_op, calls.allreduce) if op == MPI.SUM else None
        return self._prepare("Allreduce", make, super().Allreduce_init, info, sendbuf, recvbuf, op)

    def Reduce_init(
        self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM, root: int = 0, info: MPI.Info = NO_INFO
    ) -> MPI.Prequest:
        make = partial(without_op, calls.reduce) if op == MPI.SUM else None
        return self._prepare("Reduce", make, super().Reduce_init, info, sendbuf, recvbuf, op, root)

    def Reduce_scatter_block_init(
        self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM, info: MPI.Info = NO_INFO
    ) -> MPI.Prequest:
        make = partial(without_op, calls.reduce_scatter_block) if op == MPI.SUM else None
        plain = super().Reduce_scatter_block_init
        return self._prepare("Reduce_scatter_block", make, plain, info, sendbuf, recvbuf, op)

    def Reduce_scatter_init(
        self, sendbuf, recvbuf, recvcounts=None, op: MPI.Op = MPI.SUM, info: MPI.Info = NO_INFO
    ) -> MPI.Prequest:
        counts = recvcounts
        if counts is None and op == MPI.SUM and not in_place(sendbuf) and self._may_begin("Reduce_scatter"):
            mine = parse(recvbuf, device=True)  # not to be asked for with each start
            counts = self._context.comm.allgather(mine.entries) if mine is not None else None
        make, plain = self._reduce_scatter if op == MPI.SUM else None, super().Reduce_scatter_init
        return self._prepare("Reduce_scatter", make, plain, info, sendbuf, recvbuf, counts, op)

    # -- messages

    def Send_init(self, buf, dest: int, tag: int = 0) -> MPI.Prequest:
        return self._prepare_send(NonblockingMessages.Isend, super().Send_init, buf, dest, tag)

    def Ssend_init(self, buf, dest: int, tag: int = 0) -> MPI.Prequest:
        return self._prepare_send(NonblockingMessages.Issend, super().Ssend_init, buf, dest, tag)

    def Recv_init(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Prequest:
        if self._incoming("Recv", buf, source, tag) is None and self._landed_later(buf, source) is None:
            self._expect_any(source)
            return self._to_mpi(super().Recv_init, buf, source, tag)
        self._check_receive(buf, source, tag)
        kept = _Kept(buf)
        return Prequest(lambda: NonblockingMessages.Irecv(self, kept.args[0], source, tag), kept.free)

    def _prepare_send(
        self, begin: Callable[..., MPI.Request], plain: Callable[..., MPI.Prequest], buf, dest: int, tag: int
    ) -> MPI.Prequest:  # fmt: skip
        _, decision = self._outgoing("Send", buf, dest)
        if decision is None and (self._passes_gpu_memory or not on_gpu(buf)):
            return self._to_mpi(plain, buf, dest, tag)
        self._check_send(buf, dest, tag)
        kept = _Kept(buf)
        return Prequest(lambda: begin(self, kept.args[0], dest, tag), kept.free)

    # -- helpers

    def _prepare(
        self, op: str, make: Make | None, plain: Callable[..., MPI.Prequest], info: MPI.Info, *args: Any
    ) -> MPI.Prequest:
        """Prepare a collective; MPI does where it is MPI's."""
        found = self._decided(op, make, *args)
        if make is None or found is None:
            return self._to_mpi(plain, *args, info)
        decision, call = found
        context, kept = self._context, _Kept(*args)
        place = context.lasting.take()
        specs = (None, *args[: 1 if op == "Bcast" else 2])[-2:]
        plan = None if call.on_device else planned(place, call, decision, self._owner_exact, specs)

        def start() -> MPI.Request:
            self._check_usable()
            with interrupts.deferred():
                task = plan.begin(*specs) if plan is not None else None
                if task is not None:
                    return self._leave(op, decision, [task]).request
                again = make(self._rank, self._size, *kept.args)
                assert again is not None
                again.problem = call.problem
                task = begin(place, again, decision, self._owner_exact, None, self._device_buffers)
                return self._leave(op, decision, [task], finish=again.finish).request

        def free() -> None:
            place.free()
            kept.free()

        return Prequest(start, free)

    def _prepare_shared(
        self, op: str, share: Callable[..., Shared | None], plain: Callable[..., MPI.Prequest],
        info: MPI.Info, *args: Any,
    ) -> MPI.Prequest:  # fmt: skip
        """Prepare a collective of which MPI does a part, which may be all."""
        if not self._may_begin(op) or self._policy.names_communicators:
            return self._to_mpi(plain, *args, info)
        if not self._passes_gpu_memory and any(map(on_gpu, args)):
            args = tuple(Staged(plain.__name__, args).args)  # raises
        place = self._context.lasting.take()  # by all ranks, those without large messages as well
        shared = share(*args)
        if shared is None:
            place.free()
            return self._to_mpi(plain, *args, info)
        rest, kept = self._to_mpi(plain, *shared.args, info), _Kept(*args)

        def start() -> MPI.Request:
            self._check_usable()
            again = share(*kept.args)  # which decides as before, and copies what has to be copied
            assert again is not None
            with interrupts.deferred():
                rest.Start()
                tasks = self._begin_calls(place, again, place.next_tags())
                decision, _ = again.calls[-1]
                return self._leave(op, decision, tasks, [_engine.Request(rest)], again.finish).request

        def free() -> None:
            rest.Free()
            place.free()
            kept.free()

        return Prequest(start, free)


class _Kept:
    """Arguments whose datatypes the caller may free."""

    def __init__(self, *args: Any):
        self._types: list[MPI.Datatype] = []
        self.args = tuple(map(self._keep, args))

    def _keep(self, arg: Any) -> Any:
        if isinstance(arg, MPI.Datatype):
            return self._own(arg)
        if not isinstance(arg, (list, tuple)):
            return arg
        kept = map(self._keep, arg)
        return tuple(kept) if isinstance(arg, tuple) else list(kept)

    def _own(self, datatype: MPI.Datatype) -> MPI.Datatype:
        if datatype.is_predefined:
            return datatype
        self._types.append(datatype.Dup())
        return self._types[-1]

    def free(self) -> None:
        """They are not needed any more."""
        while self._types:
            self._types.pop().Free()
