from libc.stdint cimport int64_t, uint8_t, uint32_t

from aerobee.native.requests cimport Requests

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        int fd

    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data

cdef enum:
    # Sockets that are looked at in one go.
    MOST_EVENTS = 256


cdef class Socket:
    cdef Sockets owner
    cdef object socket, connection, unsent
    cdef bytes born_host
    cdef int fd
    # What epoll tells of it.
    cdef uint32_t watched
    # What epoll has told of it since it was served, and whether it stands in line for that.
    cdef uint32_t events
    cdef bint in_line
    # Ended by us or by a failure; and that its connection has been, or is going to be, told.
    cdef bint closing, told
    # Above `high` bytes of unsent output, until there are no more than `low`.
    cdef bint full
    cdef Py_ssize_t high, low, unsent_bytes, head_sent
    cdef int watch(self, uint32_t events) except -1
    cdef int readable(self) except -1
    cdef int writable(self) except -1
    cdef Py_ssize_t send(self, const uint8_t *data, Py_ssize_t size) except -2
    cdef int say_goodbye(self) except -1
    cdef int end(self, error) except -1


cdef class TlsSocket(Socket):
    cdef object tls, incoming, outgoing, failed
    # Of the record that is coming: a part of its head, or how much of its body is to come still.
    cdef uint8_t head[5]
    cdef int head_bytes
    cdef Py_ssize_t body_left
    # How many records may begin in this read still.
    cdef int records
    # What was sealed and has not left, from where on, and of how many bytes of data it is made.
    cdef bytes sealed
    cdef Py_ssize_t sealed_at, sealed_of
    # The connection wants no reads now; TLS itself has something to say first; the peer has ended.
    cdef bint paused, owing, ended
    cdef Py_ssize_t part(self, Py_ssize_t room) noexcept
    cdef Py_ssize_t take(self, Py_ssize_t part) except -1
    cdef bint flush(self) except -1
    cdef int look_at_debts(self) except -1


cdef class Sockets:
    cdef object loop, shared, turns, clock, plain
    cdef Requests requests
    cdef int epoll
    # By descriptor.
    cdef list open_sockets
    # Where reads go, as both forms want it.
    cdef uint8_t[::1] buffer
    cdef object view
    # What the kernel has of a TLS connection.
    cdef uint8_t[::1] raw
    # What was ready when it was last asked.
    cdef epoll_event events[MOST_EVENTS]
    # Those that wait to be served, and (socket, error) of those whose connections are to be told.
    cdef object ready, ended
    cdef bint crowded
    # Of the round that is going on: whose answers are in `requests.out`, and where each ends.
    cdef list owed
    cdef Py_ssize_t ends[MOST_EVENTS]
    cdef int64_t reads, bytes_in, bytes_out, commands
    cdef int64_t high_water
    cdef bint may_pull, overloaded
    # When the turn is over, how long a slice is, and the time of the connections' last sweep.
    cdef double until, slice_s
    cdef object now
    cdef int serve_round(self, double began) except -1
    cdef double read(self, Socket one, double began) except -1
    cdef int stand_in_line(self) except -1
    cdef double begin(self, Py_ssize_t wanted) except -1
    cdef Py_ssize_t serve_kept(self, Socket one, const uint8_t *data, Py_ssize_t size) except -1
    cdef Py_ssize_t serve(self, Socket one, const uint8_t *data, Py_ssize_t size,
                          double began) except -1
    cdef int tell(self, Socket one, object error) except -1
    cdef int let_go(self) except -1
    cdef int answer(self, Socket one, const uint8_t *data, Py_ssize_t size) except -1
    cdef int count_round(self, double began) except -1
