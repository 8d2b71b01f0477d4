# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sockets of a server's connections, and a look at all of them in one call of the event loop.

Its own epoll tells which of them are ready; the loop watches that single descriptor. In a round
each ready socket is read once, plain requests are served at once (`requests.pyx`), the put lock is
held for several of them, and their answers leave one after the other. All other requests go to the
connection, like from the loop's own transports; bytes that are left when a slice is over stay
there, and come back for the next slice (`serve_kept`).

Ready sockets stand in a line. Each round looks again for sockets that have become ready, and serves
the line from its head as far as the turn goes: a new socket waits for a slice of each socket in
front of it, however much those have sent. The longer the line, the shorter the slices.

A `Socket` is used like a transport of asyncio (`remoting/connections/connection.py`): it tells its
connection that it is open, that it is full, that it is empty again, and once that it is gone. Loop
thread only.

A `TlsSocket` does this over TLS after the handshake: bytes that its session has read are served in
the round like all others. `remoting/tls/tls_transport.py` is its other form.
"""

import ssl

from collections import deque

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy, strerror
from posix.unistd cimport close as c_close
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory

from aerobee.native.requests cimport HeldAnswers, Requests

from aerobee.remoting.tls import tls_session
from aerobee.remoting import turns as turns_of_loop

cdef extern from "sys/epoll.h" nogil:
    cdef enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int action, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout)

cdef extern from "sys/socket.h" nogil:
    cdef enum:
        MSG_NOSIGNAL
        MSG_PEEK
    Py_ssize_t c_recv "recv"(int fd, void *to, size_t size, int flags)
    Py_ssize_t c_send "send"(int fd, const void *data, size_t size, int flags)

cdef enum:
    # Answers leave after this number of them, or of bytes: a client need not wait for all answers
    # of a round, and the copied bytes are still in the processor's cache.
    ANSWERS_A_SENDING = 32
    BYTES_A_SENDING = 1 << 17
    # More room for answers is given back.
    KEPT_ROOM = 1 << 20
    # If this number of sockets are ready, a read that brings more than this number of bytes that
    # are not plain waits for its own slice.
    CROWD = 16
    MOST_IN_A_CROWD = 1 << 14

cdef double TURN_S = turns_of_loop.TURN_S
cdef double SLICE_S = turns_of_loop.SLICE_S
cdef double LEAST_SLICE_S = turns_of_loop.LEAST_SLICE_S
cdef double LONG_S = turns_of_loop.LONG_S
cdef Py_ssize_t HEAD_BYTES = tls_session.HEAD_BYTES
cdef Py_ssize_t RECORD_BYTES = tls_session.RECORD_BYTES
cdef Py_ssize_t PART_BYTES = tls_session.PART_BYTES
cdef Py_ssize_t UNSEEN_BYTES = tls_session.UNSEEN_BYTES
cdef int RECORDS_A_READ = tls_session.RECORDS_A_READ


cdef object failure(int number):
    return OSError(number, strerror(number).decode())


cdef class Socket:
    """A connection's socket, used like `asyncio.Transport`."""

    def __init__(self, Sockets owner, socket, connection):
        self.owner, self.socket, self.connection = owner, socket, connection
        self.fd = socket.fileno()
        self.unsent = deque()
        self.high, self.low = 65536, 16384

    def get_extra_info(self, name, default=None):
        if name == "socket":
            return self.socket
        try:
            if name == "peername":
                return self.socket.getpeername()
            if name == "sockname":
                return self.socket.getsockname()
        except OSError:
            # The peer has gone already.
            return default
        return default

    def set_write_buffer_limits(self, high=None, low=None):
        assert high is not None and low is not None and 0 <= low <= high
        self.high, self.low = high, low

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        self.watch(self.watched & ~EPOLLIN)

    def resume_reading(self):
        if not self.closing:
            self.watch(self.watched | EPOLLIN)

    def write(self, data):
        """Send `data` now, as far as the operating system takes it; keep the rest, unchanged."""
        cdef Py_buffer view
        cdef Py_ssize_t sent = 0
        if self.closing or not len(data):
            return
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not self.unsent_bytes:
                sent = self.send(<const uint8_t *> view.buf, view.len)
                if sent < 0 or sent == view.len:
                    return
                self.head_sent = sent
                self.watch(self.watched | EPOLLOUT)
            self.unsent.append(data)
            self.unsent_bytes += view.len - sent
        finally:
            PyBuffer_Release(&view)
        if not self.full and self.unsent_bytes > self.high:
            self.full = True
            self.connection.pause_writing()

    def close(self):
        """Read no more; end when all written bytes have left."""
        if self.closing:
            return
        self.closing = True
        if self.unsent_bytes:
            self.watch(EPOLLOUT)
        else:
            self.say_goodbye()
            self.end(None)

    def abort(self):
        """End now."""
        self.end(None)

    def _tell(self, error):
        """Called later in the loop, once the socket has ended."""
        self.owner.open_sockets[self.fd] = None
        # Otherwise they would keep each other alive.
        connection, self.connection = self.connection, None
        try:
            connection.connection_lost(error)
        finally:
            self.socket.close()

    def serve_kept(self, const uint8_t[::1] chunk, Py_ssize_t position):
        """Serve the plain requests in bytes that the connection has kept, from `position` on;
        return the bytes served."""
        return self.owner.serve_kept(self, &chunk[0] + position, chunk.shape[0] - position)

    cdef int say_goodbye(self) except -1:
        """End: all bytes have left."""
        return 0

    cdef int end(self, error) except -1:
        """Read and write nothing from now on; the connection learns of it later in the loop."""
        self.closing = True
        if self.told:
            return 0
        self.told = True
        self.unsent.clear()
        self.unsent_bytes = self.head_sent = 0
        self.watch(0)
        self.owner.tell(self, error)
        return 0

    cdef int watch(self, uint32_t events) except -1:
        """Have epoll tell of these events."""
        cdef epoll_event event
        cdef int action = EPOLL_CTL_MOD
        if events == self.watched or (self.told and events):
            return 0
        if not events:
            # Epoll would go on to report a peer that has gone.
            action = EPOLL_CTL_DEL
        elif not self.watched:
            action = EPOLL_CTL_ADD
        event.events = events
        event.data.fd = self.fd
        if epoll_ctl(self.owner.epoll, action, self.fd, &event) < 0:
            raise failure(errno)
        self.watched = events
        return 0

    cdef Py_ssize_t send(self, const uint8_t *data, Py_ssize_t size) except -2:
        """Return the bytes that the operating system has taken; -1: it has ended the socket."""
        # The interpreter lock is kept: neither this nor a read waits, and a thread that takes it
        # meanwhile might keep it for a thousand times as long.
        cdef Py_ssize_t sent = c_send(self.fd, data, size, MSG_NOSIGNAL)
        if sent >= 0:
            return sent
        if errno == EAGAIN or errno == EINTR:
            return 0
        self.end(failure(errno))
        return -1

    cdef int readable(self) except -1:
        """Read once. Return the bytes in the owner's buffer, 0 if there is nothing to do."""
        cdef Py_ssize_t size = c_recv(
            self.fd, &self.owner.buffer[0], self.owner.buffer.shape[0], 0
        )
        if size > 0:
            return <int> size
        if size == 0:
            self.connection.eof_received()
            self.close()
        elif errno != EAGAIN and errno != EINTR:
            self.end(failure(errno))
        return 0

    cdef int writable(self) except -1:
        """Send the kept bytes, as far as the operating system takes them."""
        cdef Py_buffer view
        cdef Py_ssize_t sent, size
        while self.unsent_bytes:
            PyObject_GetBuffer(self.unsent[0], &view, PyBUF_SIMPLE)
            size = view.len - self.head_sent
            sent = self.send(<const uint8_t *> view.buf + self.head_sent, size)
            PyBuffer_Release(&view)
            if sent < 0:
                return 0
            self.unsent_bytes -= sent
            if sent < size:
                self.head_sent += sent
                break
            self.unsent.popleft()
            self.head_sent = 0
        if not self.unsent_bytes:
            if self.closing:
                self.say_goodbye()
                return self.end(None)
            self.watch(self.watched & ~EPOLLOUT)
        if self.full and self.unsent_bytes <= self.low:
            self.full = False
            self.connection.resume_writing()
        return 0


cdef class TlsSocket(Socket):
    """A `Socket` of a session of TLS after its handshake. It reads and sends by the rules of
    `remoting/tls/tls_session.py`."""

    def __init__(self, Sockets owner, session, connection):
        Socket.__init__(self, owner, session.socket, connection)
        self.tls, self.incoming, self.outgoing = session.tls, session.incoming, session.outgoing

    def pause_reading(self):
        self.paused = True
        Socket.pause_reading(self)

    def resume_reading(self):
        self.paused = False
        if not self.owing:
            Socket.resume_reading(self)

    # Twin: remoting/tls/tls_session.py TlsSession.read
    cdef int readable(self) except -1:
        cdef Py_ssize_t size = 0, asked = UNSEEN_BYTES, part, taken, opened
        if self.told:
            return 0
        self.records = RECORDS_A_READ
        view = self.owner.view
        try:
            while self.records > 0:
                part = min(self.part(self.owner.buffer.shape[0] - size), asked)
                if part <= 0:
                    break
                asked = PART_BYTES
                taken = self.take(part)
                # An exception would cost 5 us, and OpenSSL keeps no whole record back.
                while not self.ended and self.incoming.pending:
                    try:
                        opened = self.tls.read(RECORD_BYTES, view[size:] if size else view)
                    except ssl.SSLWantReadError:
                        break
                    size += opened
                    self.ended = not opened
                if taken < part or self.ended:
                    break
        except OSError as error:
            self.failed = error
        if self.outgoing.pending:
            try:
                self.flush()
            except OSError:
                # The next read shows that the socket is gone.
                pass
            self.look_at_debts()
        if self.ended or self.failed is not None:
            if size:
                # The bytes read are served first.
                self.owner.loop.call_soon(self._ended)
            else:
                self._ended()
        return <int> size

    # Twin: remoting/tls/tls_session.py TlsSession._part
    cdef Py_ssize_t part(self, Py_ssize_t room) noexcept:
        """The bytes to ask the kernel for, so that its data finds room."""
        if not self.body_left:
            return room
        # The rest of a record may bring as many bytes as a record can have.
        return room - RECORD_BYTES + self.body_left if room >= RECORD_BYTES else 0

    # Twin: remoting/tls/tls_session.py TlsSession._take
    cdef Py_ssize_t take(self, Py_ssize_t part) except -1:
        """Hand OpenSSL the present data, at most `part` bytes and `records` records; return the
        bytes that the kernel gave."""
        cdef uint8_t *raw = &self.owner.raw[0]
        cdef Py_ssize_t size = self.head_bytes, end = self.body_left, seen, taken
        cdef bint looks = part > UNSEEN_BYTES
        memcpy(raw, self.head, size)
        seen = c_recv(self.fd, raw + size, part, MSG_PEEK if looks else 0)
        if seen < 0:
            if errno == EAGAIN or errno == EINTR:
                return 0
            raise failure(errno)
        if seen == 0:
            self.ended = True
            return 0
        size += seen
        while end + HEAD_BYTES <= size and (self.records > 0 or not looks):
            end += HEAD_BYTES + (raw[end + 3] << 8 | raw[end + 4])
            self.records -= 1
        taken = seen
        self.body_left = max(0, end - size)
        self.head_bytes = 0
        if end < size and looks and self.records == 0:
            taken -= size - end
        elif end < size:
            self.head_bytes = <int> (size - end)
            memcpy(self.head, raw + end, self.head_bytes)
        # The same bytes once more, over themselves: now the kernel has done with them.
        if looks and c_recv(self.fd, raw + size - seen, taken, 0) != taken:
            raise OSError(0, "the kernel had more bytes when it was asked first")
        if end:
            self.incoming.write(PyMemoryView_FromMemory(<char *> raw, min(end, size), PyBUF_READ))
        return taken

    cdef int writable(self) except -1:
        if self.owing:
            try:
                self.flush()
            except OSError as error:
                return self.end(error)
            self.look_at_debts()
            if self.owing:
                return 0
        return Socket.writable(self)

    # Twin: remoting/tls/tls_session.py TlsSession.send
    cdef Py_ssize_t send(self, const uint8_t *data, Py_ssize_t size) except -2:
        cdef Py_ssize_t sent, part
        if self.told:
            return -1
        try:
            if not self.flush():
                return 0
            sent, self.sealed_of = self.sealed_of, 0
            while sent < size:
                part = min(size - sent, RECORD_BYTES)
                self.tls.write(PyMemoryView_FromMemory(<char *> data + sent, part, PyBUF_READ))
                if not self.flush():
                    self.sealed_of = part
                    break
                sent += part
        except OSError as error:
            self.end(error)
            return -1
        return sent

    # Twin: remoting/tls/tls_session.py TlsSession.send
    cdef bint flush(self) except -1:
        """Send the sealed bytes; return whether all have left."""
        cdef Py_ssize_t sent
        while True:
            if self.sealed is None:
                if not self.outgoing.pending:
                    return True
                self.sealed, self.sealed_at = self.outgoing.read(), 0
            sent = c_send(
                self.fd, <const uint8_t *> self.sealed + self.sealed_at,
                len(self.sealed) - self.sealed_at, MSG_NOSIGNAL,
            )
            if sent < 0:
                if errno == EAGAIN or errno == EINTR:
                    return False
                raise failure(errno)
            self.sealed_at += sent
            if self.sealed_at == len(self.sealed):
                self.sealed = None

    # Twin: remoting/tls/tls_session.py TlsSession.is_owing
    cdef int look_at_debts(self) except -1:
        """Read no more while TLS itself has bytes to send for which there is no room."""
        cdef bint owing = bool(
            self.outgoing.pending or (self.sealed is not None and not self.sealed_of)
        )
        if owing == self.owing:
            return 0
        self.owing = owing
        if owing:
            self.watch((self.watched & ~EPOLLIN) | EPOLLOUT)
        elif not (self.paused or self.closing):
            self.watch(self.watched | EPOLLIN)
        return 0

    # Twin: remoting/tls/tls_session.py TlsSession.say_goodbye
    cdef int say_goodbye(self) except -1:
        """Send the alert that says that nothing was cut off, without a wait for the peer's
        alert."""
        try:
            self.tls.unwrap()
        except (OSError, ValueError):
            pass
        try:
            self.flush()
        except OSError:
            pass
        return 0

    def _ended(self):
        if self.failed is not None:
            self.end(self.failed)
        elif not self.closing:
            self.connection.eof_received()
            self.close()


cdef class Sockets:
    """The sockets of a server; see the module."""

    def __init__(self, loop, shared, Requests requests=None, plain=None):
        """`shared` is the connections' set. `requests` serves plain requests, with `plain`, which
        gives the conditions of each round and gets the served counts (`CompiledRequests`); without
        them every read goes to its connection."""
        self.loop, self.shared, self.plain, self.requests = loop, shared, plain, requests
        self.turns, self.clock = shared.turns, shared.turns.clock
        self.high_water = shared.limits.outbound_high_water_bytes
        self.buffer = self.view = shared.read_view
        self.raw = bytearray(HEAD_BYTES + PART_BYTES)
        self.open_sockets, self.owed = [], []
        self.ready, self.ended = deque(), deque()
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise failure(errno)
        loop.add_reader(self.epoll, self.look)

    def __dealloc__(self):
        if self.epoll > 0:
            c_close(self.epoll)

    def open(self, arrived, connection):
        """Serve an accepted socket from now on, or a socket of TLS after its handshake. Raises
        OSError."""
        cdef Socket one
        if isinstance(arrived, tls_session.TlsSession):
            one = TlsSocket(self, arrived, connection)
        else:
            one = Socket(self, arrived, connection)
        one.socket.setblocking(False)
        while len(self.open_sockets) <= one.fd:
            self.open_sockets.append(None)
        self.open_sockets[one.fd] = one
        one.watch(EPOLLIN)
        connection.connection_made(one)
        one.born_host = connection.packed_peer

    def close(self):
        """Look no more. All sockets are gone by then, or are not read any more."""
        if self.epoll >= 0:
            self.loop.remove_reader(self.epoll)
            c_close(self.epoll)
            self.epoll = -1

    def look(self):
        """Serve the ready sockets, as far as the turn goes; the loop calls again for the rest."""
        cdef double began
        turns = self.turns
        if turns.late:
            return
        self.stand_in_line()
        if not self.ready:
            return
        began = self.begin(len(self.ready))
        try:
            self.serve_round(began)
        finally:
            self.let_go()
            self.count_round(began)

    cdef int stand_in_line(self) except -1:
        """Find the sockets that have become ready."""
        cdef Socket one
        cdef int place, count = epoll_wait(self.epoll, self.events, MOST_EVENTS, 0)
        for place in range(count):
            found = self.open_sockets[self.events[place].data.fd]
            if found is not None:
                one = found
                one.events |= self.events[place].events
                if not one.in_line:
                    one.in_line = True
                    self.ready.append(one)
        return 0

    # Twin: remoting/turns.py Turns.share
    cdef double begin(self, Py_ssize_t wanted) except -1:
        """Begin slices in which `wanted` sockets are served; return the time then."""
        cdef double began = self.clock()
        turns = self.turns
        turns.slice_until(began)
        self.until, self.slice_s = turns.until, turns.slice_s
        if wanted * SLICE_S > TURN_S:
            # By the rule of `share` of the turns.
            self.slice_s = turns.slice_s = max(LEAST_SLICE_S, TURN_S / wanted)
        self.now, self.overloaded = self.shared.now, self.shared.overloaded
        self.may_pull = self.plain is not None and self.plain.begin()
        return began

    cdef int serve_round(self, double began) except -1:
        cdef Socket one
        cdef uint32_t events
        cdef Py_ssize_t left = len(self.ready)
        self.crowded = left > CROWD
        while left > 0:
            left -= 1
            one = self.ready.popleft()
            events, one.events = one.events, 0
            one.in_line = False
            if not one.told:
                if one.watched & EPOLLIN and events & (EPOLLIN | EPOLLHUP | EPOLLERR):
                    began = self.read(one, began)
                if one.watched & EPOLLOUT and events & (EPOLLOUT | EPOLLHUP | EPOLLERR):
                    one.writable()
            if began >= self.until:
                self.turns.late = True
                return 0
        return 0

    cdef double read(self, Socket one, double began) except -1:
        """Read a socket once, and serve its bytes; return the time then."""
        cdef Py_ssize_t taken = 0, size = one.readable()
        cdef bint later = False
        if not size:
            # TLS may have taken many bytes that bring no data.
            return self.clock()
        connection = one.connection
        self.reads += 1
        self.bytes_in += size
        connection.last_active = self.now
        try:
            if self.requests is not None and not (
                connection.decoder.buffered or connection.aside or connection.holds
            ):
                taken = self.serve(one, &self.buffer[0], size, began)
                later = self.requests.over
            if taken < size or connection.held_bytes:
                # In the order of the wire: served requests are stored and answered before.
                self.let_go()
                later = later or (self.crowded and size - taken > MOST_IN_A_CROWD)
                connection.decode(taken, size, later=later)
        except Exception:
            connection.failed()
        ended = self.clock()
        if taken and ended - began > LONG_S:
            self.turns.note_long(ended - began, self.requests.code, connection)
        return ended

    cdef Py_ssize_t serve_kept(self, Socket one, const uint8_t *data, Py_ssize_t size) except -1:
        """Serve the plain requests in bytes that a connection has kept, in its own slice."""
        cdef double began
        if self.requests is None:
            return 0
        began = self.clock()
        self.until, self.slice_s = self.turns.until, self.turns.slice_s
        self.overloaded = self.shared.overloaded
        self.may_pull = self.plain is not None and self.plain.begin()
        try:
            return self.serve(one, data, size, began)
        finally:
            self.let_go()
            self.count_round(began)

    # Twin: remoting/connections/connection.py Connection.buffer_updated
    cdef Py_ssize_t serve(self, Socket one, const uint8_t *data, Py_ssize_t size,
                          double began) except -1:
        """Serve the plain requests at the head of a read; return their bytes."""
        cdef Requests requests = self.requests
        cdef Py_ssize_t taken, before = requests.out.size
        cdef Py_ssize_t held = 0 if requests.held is None else requests.held.count
        connection = one.connection
        try:
            taken = requests.serve(
                data, size, one.born_host,
                self.may_pull and not (self.overloaded and connection.overloaded),
                self.plain.may_wait if requests.answers_wait else 0,
                self.high_water - <int64_t> connection.unwritten,
                self.clock, min(began + self.slice_s, self.until),
            )
        except BaseException:
            # Its answers until then must not leave with those of the next socket.
            requests.out.size = before
            if requests.held is not None:
                requests.held.give_up(held)
            raise
        if not taken:
            return 0
        connection.commands_in += requests.done
        self.commands += requests.done
        if requests.held is not None and requests.held.count > held:
            requests.held.belong(self, one, connection)
        if requests.out.size > before:
            self.ends[len(self.owed)] = requests.out.size
            self.owed.append(one)
            if len(self.owed) >= ANSWERS_A_SENDING or requests.out.size >= BYTES_A_SENDING:
                self.let_go()
        return taken

    cdef int tell(self, Socket one, object error) except -1:
        """Tell the connection of a socket that has ended, later in the loop: a client's connection
        takes some time to leave its groups, and thousands may end at once."""
        self.ended.append((one, error))
        if len(self.ended) == 1:
            self.turns.add(self.tell_some)
        return 0

    def tell_some(self):
        """Tell as many as fit a slice; return whether there are more."""
        cdef double until = self.turns.slice_until(self.clock())
        while self.ended:
            one, error = self.ended[0]
            try:
                one._tell(error)
            except Exception as failure_of_ours:
                self.loop.call_exception_handler(
                    {"message": "the end of a connection failed", "exception": failure_of_ours}
                )
            self.ended.popleft()
            if self.clock() >= until:
                break
        return bool(self.ended)

    cdef int let_go(self) except -1:
        """Move the marks over the stored records, and let their answers leave."""
        cdef Requests requests = self.requests
        cdef Py_ssize_t index, start = 0
        cdef HeldAnswers held
        if requests is None:
            return 0
        owed, held = self.owed, requests.take_held()
        try:
            requests.settle()
            if held is not None:
                self.plain.wait_made(held)
            for index in range(len(owed)):
                self.answer(owed[index], requests.out.data + start, self.ends[index] - start)
                start = self.ends[index]
        except BaseException:
            # The answers are lost, so nothing may follow them.
            for one in owed:
                one.connection.failed()
            if held is not None:
                for connection in held.connections:
                    connection.failed()
            raise
        finally:
            owed.clear()
            requests.out.size = 0
            if requests.out.room > KEPT_ROOM:
                free(requests.out.data)
                requests.out.data = NULL
                requests.out.room = 0
        return 0

    def send_held(self, HeldAnswers held):
        """Send answers that have waited."""
        cdef Py_ssize_t index, start = 0, end
        cdef Socket one
        for index in range(len(held.sockets)):
            one, end = held.sockets[index], held.frames_to(held.counts[index])
            try:
                self.answer(one, held.frames.data + start, end - start)
            except Exception:
                one.connection.failed()
            start = end
        self.shared.stats.bytes_out += self.bytes_out
        self.bytes_out = 0

    cdef int answer(self, Socket one, const uint8_t *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t sent
        connection = one.connection
        if connection.closed:
            return 0
        if connection.unwritten or one.unsent_bytes:
            # After the answers that wait to leave.
            self.turns.write(connection, PyBytes_FromStringAndSize(<const char *> data, size))
            return 0
        sent = one.send(data, size)
        if sent >= 0:
            self.bytes_out += sent
            if sent < size:
                connection.write(PyBytes_FromStringAndSize(<const char *> data + sent, size - sent))
        return 0

    cdef int count_round(self, double began) except -1:
        shared = self.shared
        stats = shared.stats
        stats.reads += self.reads
        stats.bytes_in += self.bytes_in
        stats.bytes_out += self.bytes_out
        stats.commands_in += self.commands
        self.reads = self.bytes_in = self.bytes_out = self.commands = 0
        if stats.bytes_out >= shared.recount_at:
            shared.recount()
        if self.requests is not None:
            served = self.requests.take_counts()
            if served:
                self.plain.served(served, self.clock() - began)
        return 0
