cdef class Count:
    cdef public Py_ssize_t calls, most
