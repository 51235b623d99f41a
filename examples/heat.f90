! The heat equation in a box: an explicit scheme, and halos by MPI_Isend and MPI_Irecv of subarrays.
!
! The box is cut along y and z. Each rank has a block with a halo of one point, and fills the halo with its
! neighbours' faces in each step. The walls stay cold. The program compares its result with the exact solution
! of the scheme, and that with the exact solution of the equation. It does not use compcoll itself.
!
! mpif90 -O3 heat.f90 -o heat
! mpiexec -n 2 ./heat                               # or: ./heat NX NY NZ STEPS
! mpiexec -n 2 compcoll run --codec lossless ./heat
program heat
  use mpi
  implicit none
  integer, parameter :: dp = kind(1d0)
  real(dp), parameter :: pi = acos(-1d0), waves(3) = [6d0, 2d0, 5d0]
  integer :: n(3) = [200, 32, 200], steps = 40, m(3), first(3), dims(3) = [1, 0, 0], at(3)
  integer :: ranks, cart, rank, step, ierr
  integer :: neighbours(2, 2:3), inner(2, 2:3), halo(2, 2:3)
  real(dp) :: h(3), c(0:3), dt, decay, start, seconds, error, truncation, total
  real(dp), allocatable :: u(:, :, :), new(:, :, :)

  call MPI_Init(ierr)
  call read_arguments()
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call MPI_Dims_create(ranks, 3, dims, ierr)
  call MPI_Cart_create(MPI_COMM_WORLD, 3, dims, [.false., .false., .false.], .true., cart, ierr)
  call MPI_Comm_rank(cart, rank, ierr)
  call MPI_Cart_coords(cart, rank, 3, at, ierr)
  if (any(mod(n, dims) /= 0)) call MPI_Abort(MPI_COMM_WORLD, 2, ierr)
  m = n / dims
  first = at * m
  call make_faces()
  h = 1 / (n + 1d0)
  dt = 0.4d0 / sum(1 / h**2)
  c(1:) = dt / h**2
  c(0) = 1 - 2 * sum(c(1:))
  decay = sum((1 - cos(waves * pi * h)) * 2 / h**2)
  allocate(u(0:m(1)+1, 0:m(2)+1, 0:m(3)+1), source=0d0)
  allocate(new, source=u)
  call fill(1d0, u)

  start = MPI_Wtime()
  do step = 1, steps
    call exchange()
    call advance()
  end do
  seconds = MPI_Wtime() - start

  call fill((1 - dt * decay)**steps, new)
  error = largest(u - new)
  truncation = largest(new) * abs(exp(-dt * steps * sum((waves * pi)**2)) / (1 - dt * decay)**steps - 1)
  total = sum(u(1:m(1), 1:m(2), 1:m(3))**2)
  call MPI_Allreduce(MPI_IN_PLACE, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, cart, ierr)
  if (rank == 0) then
    print '(a, i0, a, i0, a, 3i5)', 'heat: ', ranks, ' ranks, ', steps, ' steps of', n
    print '(a, es23.16, a, es8.1, a, es8.1)', 'energy ', total, ', error of rounding and codec ', error, &
        ', of the scheme ', truncation
    print '(a, f8.3)', 'seconds ', seconds
  end if
  call MPI_Finalize(ierr)

contains

  subroutine read_arguments()
    character(len=16) :: word
    integer :: i, values(4)
    values = [n, steps]
    do i = 1, min(4, command_argument_count())
      call get_command_argument(i, word)
      read (word, *) values(i)
    end do
    n = values(1:3)
    steps = values(4)
  end subroutine

  ! Types of the faces next to the halo and of the halo itself, on the low and the high side of y and z.
  subroutine make_faces()
    integer :: axis, side, face(3), low(3)
    do axis = 2, 3
      call MPI_Cart_shift(cart, axis - 1, 1, neighbours(1, axis), neighbours(2, axis), ierr)
      face = m
      face(axis) = 1
      do side = 1, 2
        low = 1
        low(axis) = merge(1, m(axis), side == 1)
        call make_type(face, low, inner(side, axis))
        low(axis) = merge(0, m(axis) + 1, side == 1)
        call make_type(face, low, halo(side, axis))
      end do
    end do
  end subroutine

  subroutine make_type(face, low, type)
    integer, intent(in) :: face(3), low(3)
    integer, intent(out) :: type
    call MPI_Type_create_subarray(3, m + 2, face, low, MPI_ORDER_FORTRAN, MPI_DOUBLE_PRECISION, type, ierr)
    call MPI_Type_commit(type, ierr)
  end subroutine

  subroutine exchange()
    integer :: axis, side, i, requests(8)
    i = 0
    do axis = 2, 3
      do side = 1, 2
        call MPI_Irecv(u, 1, halo(side, axis), neighbours(side, axis), 3 - side, cart, requests(i + 1), ierr)
        call MPI_Isend(u, 1, inner(side, axis), neighbours(side, axis), side, cart, requests(i + 2), ierr)
        i = i + 2
      end do
    end do
    call MPI_Waitall(8, requests, MPI_STATUSES_IGNORE, ierr)
  end subroutine

  subroutine advance()
    real(dp), allocatable :: old(:, :, :)
    integer :: i, j, k
    do k = 1, m(3)
      do j = 1, m(2)
        do i = 1, m(1)
          new(i, j, k) = c(0) * u(i, j, k) + c(1) * (u(i-1, j, k) + u(i+1, j, k)) &
              + c(2) * (u(i, j-1, k) + u(i, j+1, k)) + c(3) * (u(i, j, k-1) + u(i, j, k+1))
        end do
      end do
    end do
    call move_alloc(u, old)
    call move_alloc(new, u)
    call move_alloc(old, new)
  end subroutine

  subroutine fill(amplitude, field)
    real(dp), intent(in) :: amplitude
    real(dp), intent(inout) :: field(0:, 0:, 0:)
    integer :: i, j, k
    do k = 1, m(3)
      do j = 1, m(2)
        do i = 1, m(1)
          field(i, j, k) = amplitude * product(sin(waves * pi * h * (first + [i, j, k])))
        end do
      end do
    end do
  end subroutine

  real(dp) function largest(field)
    real(dp), intent(in) :: field(0:, 0:, 0:)
    largest = maxval(abs(field(1:m(1), 1:m(2), 1:m(3))))
    call MPI_Allreduce(MPI_IN_PLACE, largest, 1, MPI_DOUBLE_PRECISION, MPI_MAX, cart, ierr)
  end function
end program
