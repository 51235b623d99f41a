! Transposes, sums, broadcasts, messages and errors, blocking and nonblocking, through mpif.h, `use mpi`
! (USE_MPI) or `use mpi_f08` (USE_F08).
program fortran
#if defined(USE_F08)
  use mpi_f08
#elif defined(USE_MPI)
  use mpi
#endif
  implicit none
#if !defined(USE_F08) && !defined(USE_MPI)
  include 'mpif.h'
#endif
#if defined(USE_F08)
  type(MPI_Comm) :: twin, ring
  type(MPI_Request) :: request, requests(2)
  type(MPI_Status) :: status, statuses(2)
#else
  integer :: twin, ring, request, requests(2), status(MPI_STATUS_SIZE), statuses(MPI_STATUS_SIZE, 2)
#endif
  integer :: before, behind, found, turn, class, places(2)
  integer, allocatable :: sent(:), received(:), displs(:)
  integer, parameter :: n = 40000
  integer :: ierr, rank, nranks, p, i, wrong, total, level
  double precision, allocatable :: a(:, :), b(:, :), c(:)
  double complex, allocatable :: z(:)

  call MPI_Init_thread(MPI_THREAD_FUNNELED, level, ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, nranks, ierr)
  call MPI_Comm_dup(MPI_COMM_WORLD, twin, ierr)
  call MPI_Cart_create(MPI_COMM_WORLD, 1, [nranks], [.true.], .false., ring, ierr)
  allocate(a(n, 0:nranks - 1), b(n, 0:nranks - 1), c(n), z(n))
  wrong = 0

  do p = 0, nranks - 1
    a(:, p) = [(value(rank, p, i), i = 1, n)]
  end do
  call MPI_Alltoall(a, n, MPI_DOUBLE_PRECISION, b, n, MPI_DOUBLE_PRECISION, twin, ierr)
  call check_all(b)
  b = 0
  call MPI_Ialltoall(a, n, MPI_DOUBLE_PRECISION, b, n, MPI_DOUBLE_PRECISION, twin, request, ierr)
  call MPI_Wait(request, status, ierr)
  call check_all(b)
  call MPI_Alltoall(MPI_IN_PLACE, n, MPI_DOUBLE_PRECISION, a, n, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierr)
  call check_all(a)

  c = rank + 1
#if defined(USE_F08)
  call MPI_Allreduce(MPI_IN_PLACE, c, n, MPI_DOUBLE_PRECISION, MPI_SUM, twin)
#else
  call MPI_Allreduce(MPI_IN_PLACE, c, n, MPI_DOUBLE_PRECISION, MPI_SUM, twin, ierr)
#endif
  wrong = wrong + count(c /= nranks * (nranks + 1) / 2)

  z = 0
  if (rank == 0) z = [(cmplx(i, -i, kind(z)), i = 1, n)]
  call MPI_Bcast(z, n, MPI_DOUBLE_COMPLEX, 0, twin, ierr)
  wrong = wrong + count(z /= [(cmplx(i, -i, kind(z)), i = 1, n)])

  before = modulo(rank - 1, nranks)
  behind = modulo(rank + 1, nranks)
  a(:, 0) = [(value(rank, 0, i), i = 1, n)]
  call MPI_Isend(a, n, MPI_DOUBLE_PRECISION, behind, 7, twin, request, ierr)
  call MPI_Probe(MPI_ANY_SOURCE, 7, twin, status, ierr)
  call MPI_Get_count(status, MPI_DOUBLE_PRECISION, found, ierr)
  wrong = wrong + abs(found - n)
  call MPI_Recv(c, n, MPI_DOUBLE_PRECISION, before, 7, twin, MPI_STATUS_IGNORE, ierr)
  call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
  wrong = wrong + count(c /= [(value(before, 0, i), i = 1, n)])
  call MPI_Recv_init(c, n, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 8, twin, requests(1), ierr)
  call MPI_Send_init(a, n, MPI_DOUBLE_PRECISION, behind, 8, twin, requests(2), ierr)
  do turn = 1, 2
    c = 0
    call MPI_Startall(2, requests, ierr)
    call MPI_Waitall(2, requests, statuses, ierr)
    wrong = wrong + count(c /= [(value(before, 0, i), i = 1, n)])
#if defined(USE_F08)
    call check_status(statuses(1))
#else
    call check_status(statuses(:, 1))
#endif
  end do
  call MPI_Request_free(requests(1), ierr)
  call MPI_Request_free(requests(2), ierr)

  c = 0
  call MPI_Irecv(c, n, MPI_DOUBLE_PRECISION, before, 9, ring, requests(1), ierr)
  call MPI_Isend(a, n, MPI_DOUBLE_PRECISION, behind, 9, ring, requests(2), ierr)
  do turn = 1, 2
    call MPI_Waitany(2, requests, places(turn), status, ierr)
    if (places(turn) == 1) call check_status(status)
  end do
  if (sum(places) /= 3) wrong = wrong + 1
  call MPI_Waitany(2, requests, found, MPI_STATUS_IGNORE, ierr)
  if (found /= MPI_UNDEFINED) wrong = wrong + 1
  wrong = wrong + count(c /= [(value(before, 0, i), i = 1, n)])

  c = 0
  call MPI_Irecv(c, n, MPI_DOUBLE_PRECISION, before, 10, ring, requests(1), ierr)
  call MPI_Isend(a, n, MPI_DOUBLE_PRECISION, behind, 10, ring, requests(2), ierr)
  turn = 0
  do while (turn < 2)
    call MPI_Testsome(2, requests, found, places, statuses, ierr)
    do i = 1, found
#if defined(USE_F08)
      if (places(i) == 1) call check_status(statuses(i))
#else
      if (places(i) == 1) call check_status(statuses(:, i))
#endif
    end do
    turn = turn + found
  end do
  wrong = wrong + count(c /= [(value(before, 0, i), i = 1, n)])

  sent = [(n - 1000 * modulo(p - rank, nranks), p = 0, nranks - 1)]
  received = [(n - 1000 * modulo(rank - p, nranks), p = 0, nranks - 1)]
  displs = [(n * p, p = 0, nranks - 1)]
  do p = 0, nranks - 1
    a(:, p) = [(value(rank, p, i), i = 1, n)]
  end do
  b = 0
  call MPI_Ialltoallv(a, sent, displs, MPI_DOUBLE_PRECISION, b, received, displs, MPI_DOUBLE_PRECISION, ring, request, ierr)
  call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
  do p = 0, nranks - 1
    wrong = wrong + count(b(:, p) /= [(merge(value(p, rank, i), 0d0, i <= received(p + 1)), i = 1, n)])
  end do

  call MPI_Comm_set_errhandler(ring, MPI_ERRORS_RETURN, ierr)
  call MPI_Bcast(z, n, MPI_DOUBLE_COMPLEX, nranks, ring, ierr)
  call check_class(MPI_ERR_ROOT)
  call MPI_Isend(a, n, MPI_DOUBLE_PRECISION, behind, 11, ring, request, ierr)
  call MPI_Recv(c, n / 2, MPI_DOUBLE_PRECISION, before, 11, ring, MPI_STATUS_IGNORE, ierr)
  call check_class(MPI_ERR_TRUNCATE)
  call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
  call check_class(MPI_SUCCESS)

  call MPI_Comm_free(ring, ierr)
  call MPI_Comm_free(twin, ierr)
  call MPI_Reduce(wrong, total, 1, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, ierr)
  if (rank == 0) print '(I0, A, I0, A)', total, ' wrong values on ', nranks, ' ranks'
  call MPI_Finalize(ierr)

contains

  double precision function value(from, to, i)
    integer, intent(in) :: from, to, i
    value = 1000d0 * from + 100d0 * to + mod(i, 97)
  end function

  subroutine check_status(found)
#if defined(USE_F08)
    type(MPI_Status), intent(in) :: found
    if (found%MPI_SOURCE /= before) wrong = wrong + 1
#else
    integer, intent(in) :: found(MPI_STATUS_SIZE)
    if (found(MPI_SOURCE) /= before) wrong = wrong + 1
#endif
  end subroutine

  subroutine check_class(expected)
    integer, intent(in) :: expected
    call MPI_Error_class(ierr, class, ierr)
    if (class /= expected) wrong = wrong + 1
  end subroutine

  subroutine check_all(got)
    double precision, intent(in) :: got(n, 0:nranks - 1)
    integer :: q, k
    do q = 0, nranks - 1
      wrong = wrong + count(got(:, q) /= [(value(q, rank, k), k = 1, n)])
    end do
  end subroutine
end program
