"""What a process group may be made with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend

from compcoll.policy import Policy, make_policy

__all__ = ["Options"]

_BASE: Any = Backend.Options


class Options(_BASE):
    """Options of a process group: ``pg_options`` of ``new_group``, or a backend's of ``init_device_mesh``.

    Parameters
    ----------
    codec : str, optional
        A codec's spec, or ``"auto"``.
    when : {"always", "pays"}, optional
    min_nbytes : int or str, optional
        Smallest message that is compressed.
    policy : Policy, mapping, or path of a TOML file, optional
        The base that the other arguments change.
    timeout : timedelta, optional

    Raises
    ------
    ValueError
        For an unknown value.
    """

    def __init__(
        self, codec: Any = None, *, when: str | None = None, min_nbytes: int | str | None = None,
        policy: Policy | Mapping[str, Any] | str | os.PathLike | None = None,
        timeout: timedelta | None = None,
    ):  # fmt: skip
        super().__init__("compcoll", *(() if timeout is None else (timeout,)))
        self._settings: dict[str, Any] = {
            "spec": codec,
            "when": when,
            "min_nbytes": min_nbytes,
            "policy": policy,
        }
        #: What goes before `new_group`'s argument.
        self.timeout = timeout
        self.policy(None)

    def policy(self, base: Policy | None) -> Policy:
        """The policy that the options make of another one, that of the environment if there is none."""
        return make_policy(base, **self._settings)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked for."""
        return all(value is None for value in self._settings.values())

    def __repr__(self) -> str:
        given = {("codec" if k == "spec" else k): v for k, v in self._settings.items() if v is not None}
        return f"Options({', '.join(f'{k}={v!r}' for k, v in given.items())})"
