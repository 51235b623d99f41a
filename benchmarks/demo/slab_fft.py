"""Three-dimensional FFT of real fields over any mpi4py communicator: slabs, and one Alltoall each way."""

from __future__ import annotations

import numpy as np
from scipy import fft

__all__ = ["SlabFFT"]


class SlabFFT:
    """Transforms of fields on ``n**3`` points, truncated to the modes that the 2/3 rule keeps.

    Points are cut into slabs along x, modes into slabs along ky. A dropped mode is neither stored nor
    sent, so that no value on the wire is zero by construction.

    When ranks exchange blocks, the fields are spectral in y and z and still physical in x. They are smooth
    along x at every (ky, kz), whereas neighbouring modes may differ by orders of magnitude. In the blocks x
    therefore varies fastest, and real and imaginary parts, which are uncorrelated, are in separate rows.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The number of ranks has to divide ``n``.
    n : int
        Points in each direction.
    dtype : dtype
        Type of the points, float32 or float64; the modes are complex64 or complex128.

    Attributes
    ----------
    shape : tuple of int
        Shape of one field's slab of points, (x, y, z).
    modes : tuple of int
        Shape of its slab of modes, (ky, kz, kx).
    kx, ky, kz : ndarray
        Wave numbers of this rank's modes, shaped to broadcast against `modes`.
    kept : ndarray of bool
        False for the modes that only pad ky to slabs of equal size; broadcasts against `modes`.
    """

    def __init__(self, comm, n: int, dtype=np.float64):
        self.comm, self.n = comm, n
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"dtype {self.dtype} of the points is neither float32 nor float64")
        self.complex_dtype = np.dtype(np.complex64 if self.dtype == np.float32 else np.complex128)
        ranks = comm.Get_size()
        if n % ranks:
            raise ValueError(f"n = {n} points cannot be cut into {ranks} equal slabs")
        # Products of two kept modes alias onto k - n, and those modes are dropped as long as 3 k < n.
        largest = (n - 1) // 3
        slab = -(-(2 * largest + 1) // ranks)
        self._ky = _wave_numbers(slab * ranks)
        self._kx = _wave_numbers(2 * largest + 1)
        mine = self._ky.reshape(ranks, slab)[comm.Get_rank()]
        self.kx = self._kx.astype(self.dtype)
        self.ky = mine[:, None, None].astype(self.dtype)
        self.kz = np.arange(largest + 1, dtype=self.dtype)[:, None]
        self.kept = np.abs(self.ky) <= largest
        self.shape = (n // ranks, n, n)
        self.modes = (slab, largest + 1, 2 * largest + 1)

    def forward(self, points: np.ndarray) -> np.ndarray:
        """Transform fields, shape (fields, *shape), to coefficients, shape (fields, *modes); collective."""
        slab, nkz, _ = self.modes
        f = fft.rfft(points, axis=3, norm="forward")[..., :nkz]
        f = fft.fft(f, axis=2, norm="forward", overwrite_x=True)[:, :, self._ky]
        fields, nx = f.shape[:2]
        f = self._exchange(f.reshape(fields, nx, -1, slab, nkz).transpose(2, 0, 3, 4, 1))
        f = f.transpose(1, 2, 3, 0, 4).reshape(fields, slab, nkz, self.n)
        return fft.fft(f, axis=3, norm="forward", overwrite_x=True)[..., self._kx]

    def backward(self, modes: np.ndarray) -> np.ndarray:
        """Transform coefficients, shape (fields, *modes), to fields, shape (fields, *shape); collective."""
        slab, nkz, _ = self.modes
        fields, nx = len(modes), self.shape[0]
        f = np.zeros((fields, slab, nkz, self.n), self.complex_dtype)
        f[..., self._kx] = modes
        f = fft.ifft(f, axis=3, norm="forward", overwrite_x=True)
        sent = self._exchange(f.reshape(fields, slab, nkz, -1, nx).transpose(3, 0, 1, 2, 4))
        f = np.zeros((fields, nx, self.n, nkz), self.complex_dtype)
        f[:, :, self._ky] = sent.transpose(1, 4, 0, 2, 3).reshape(fields, nx, -1, nkz)
        f = fft.ifft(f, axis=2, norm="forward", overwrite_x=True)
        return fft.irfft(f, self.n, axis=3, norm="forward", overwrite_x=True)

    def _exchange(self, blocks: np.ndarray) -> np.ndarray:
        """Exchange blocks with all ranks by an Alltoall; axes are (rank, field, ky, kz, x)."""
        send = np.empty((*blocks.shape[:4], 2, blocks.shape[4]), self.dtype)
        send[..., 0, :], send[..., 1, :] = blocks.real, blocks.imag
        recv = np.empty_like(send)
        self.comm.Alltoall(send, recv)
        result = np.empty(blocks.shape, self.complex_dtype)
        result.real, result.imag = recv[..., 0, :], recv[..., 1, :]
        return result


def _wave_numbers(count: int) -> np.ndarray:
    """The ``count`` smallest integers by magnitude, in FFT order; negative ones index from the end."""
    return np.concatenate([np.arange((count + 1) // 2), np.arange(-(count // 2), 0)])
