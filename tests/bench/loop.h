/* The part of a load generator that knows no protocol: options, connections, the loop, the figures.
 *
 * A generator includes this and defines the four functions
 * declared below as "of the protocol". One thread and epoll, a few microseconds of processor a
 * request, so that the server under test, not the generator, is the limit on a small machine.
 *
 * A closed loop keeps `--window` requests in flight on each of `--conns` connections. An open loop
 * (`--rate`) sends when a request is due, on the next connection that has room; its latency counts
 * from when the request was due, whoever was in the way. At the end no more is sent, and all
 * that is under way must be answered: what the server holds then is exactly what was acknowledged.
 *
 * Compiled with -DSECURED and OpenSSL's two libraries it also speaks TLS (`--tls 1`, any certificate is
 * taken), and a protocol may sign (`--access`, `--secret`).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef SECURED
#include <openssl/ssl.h>
#endif

#define MAXCONN 4096
#define BUCKETS 4096 /* log-linear histogram: 64 per power of two */
#define GRACE 30     /* seconds for the answers that are under way at the end */

static struct {
    const char *mode;
    int port, conns, window, size, queues, batch, bin, max, keys, requests, pullers, tls;
    double secs, warmup, rate;
    long long from;
    const char *host, *topic, *access, *secret;
} opt = {"", 10911, 64, 1, 128, 4, 32, 0, 32, 0, 0, 0, 0, 5, 1, 0, 0, "127.0.0.1", "BenchmarkTest", NULL, NULL};

typedef struct {
    int fd, number, inflight;
    void *tls;                  /* the connection's SSL; NULL for a plain one */
    int pulls;                  /* a long-polling reader beside the connections that send */
    double *due;                /* by slot: when its request was to be sent */
    int *ring, first, nfree;    /* free slots, used in the order in which they became free */
    char *in; size_t inlen, incap;
    char *out; size_t outoff, outlen, outcap;
    int queue; long long offset;
} conn_t;

static conn_t conns[MAXCONN];
static long hist[BUCKETS], requests, messages, bytes, errors, lastcode, acked, issued, answered, pulled, out;
static int counting, ep;

/* of the protocol */
static void opened(conn_t *c);                                  /* greets; the socket still blocks */
static size_t room(void);                                       /* bytes that a request may take */
static size_t request(conn_t *c, int slot, char *to);           /* its bytes; returns how many */
static size_t take(conn_t *c, const char *from, size_t length); /* one answer; 0: not all of it is here */

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { perror(m); exit(2); }

static void record(double us) {
    unsigned long v = us < 1 ? 1 : (unsigned long)us;
    int p = 63 - __builtin_clzl(v), sub = p >= 6 ? (v >> (p - 6)) & 63 : (v << (6 - p)) & 63;
    int i = p * 64 + sub;
    hist[i < BUCKETS ? i : BUCKETS - 1]++;
}
static double percentile(double q) {
    long total = 0, seen = 0; int i;
    for (i = 0; i < BUCKETS; i++) total += hist[i];
    for (i = 0; i < BUCKETS; i++) { seen += hist[i]; if (seen >= q * total && total) break; }
    int p = i / 64, sub = i % 64;
    return p >= 6 ? (double)((64UL + sub) << (p - 6)) : (double)(64 + sub) / (1 << (6 - p));
}

/* write(2) and read(2), through TLS where the connection has it */
#ifdef SECURED
static int after_tls(conn_t *c, int n) {
    int why = n > 0 ? SSL_ERROR_NONE : SSL_get_error(c->tls, n);
    if (why == SSL_ERROR_NONE || why == SSL_ERROR_ZERO_RETURN) return n > 0 ? n : 0;
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) { fprintf(stderr, "TLS failed: %d\n", why); exit(2); }
    errno = EAGAIN;
    return -1;
}
static ssize_t give(conn_t *c, const char *from, size_t n) {
    return c->tls ? after_tls(c, SSL_write(c->tls, from, n)) : write(c->fd, from, n);
}
static ssize_t get(conn_t *c, char *to, size_t n) {
    return c->tls ? after_tls(c, SSL_read(c->tls, to, n)) : read(c->fd, to, n);
}
static void encrypt(conn_t *c) {
    static SSL_CTX *context;
    if (!context) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    c->tls = SSL_new(context);
    SSL_set_fd(c->tls, c->fd);
    if (SSL_connect(c->tls) != 1) { fprintf(stderr, "the server takes no TLS\n"); exit(2); }
}
#else
static ssize_t give(conn_t *c, const char *from, size_t n) { return write(c->fd, from, n); }
static ssize_t get(conn_t *c, char *to, size_t n) { return read(c->fd, to, n); }
static void encrypt(conn_t *c) { fprintf(stderr, "connection %d: compiled without TLS\n", c->number); exit(2); }
#endif

static void push(conn_t *c) {
    while (c->outoff < c->outlen) {
        ssize_t w = give(c, c->out + c->outoff, c->outlen - c->outoff);
        if (w < 0) { if (errno == EAGAIN) break; die("write"); }
        c->outoff += w;
    }
    if (c->outoff == c->outlen) c->outoff = c->outlen = 0;
    struct epoll_event e = {EPOLLIN | (c->outlen ? EPOLLOUT : 0), {.ptr = c}};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static void issue(conn_t *c, double due) {
    size_t need = room();
    if (c->outlen + need > c->outcap) c->out = realloc(c->out, c->outcap = (c->outlen + need) * 2);
    int slot = c->ring[c->first];
    c->first = (c->first + 1) % opt.window; c->nfree--;
    c->outlen += request(c, slot, c->out + c->outlen);
    c->due[slot] = due; c->inflight++; issued += !c->pulls;
}
/* whether the connection may send one more */
static int may_issue(conn_t *c) { return c->nfree && (c->pulls || !opt.requests || issued < opt.requests); }

/* called by take(): the answer to the request of that slot; code 0 is success, with `n` messages of `size` bytes */
static void answer(conn_t *c, int slot, int code, long n, long size) {
    if (slot < 0 || slot >= opt.window || !c->inflight) { fprintf(stderr, "answer to no request: %d\n", slot); exit(2); }
    if (code) { errors++; lastcode = code; }
    else if (c->pulls) { pulled += n; if (counting) out += n; }
    else {
        acked += n;
        if (counting) { requests++; messages += n; bytes += size; record((now() - c->due[slot]) * 1e6); }
    }
    c->ring[(c->first + c->nfree++) % opt.window] = slot;
    c->inflight--; answered += !c->pulls;
}
static void pump(conn_t *c) {
    for (;;) {
        if (c->incap - c->inlen < 65536) c->in = realloc(c->in, c->incap = c->incap * 2 + 131072);
        ssize_t r = get(c, c->in + c->inlen, c->incap - c->inlen);
        if (r == 0) { fprintf(stderr, "connection closed by the server\n"); exit(2); }
        if (r < 0) { if (errno == EAGAIN) break; die("read"); }
        c->inlen += r;
        size_t p = 0, taken;
        while (p < c->inlen && (taken = take(c, c->in + p, c->inlen - p))) p += taken;
        memmove(c->in, c->in + p, c->inlen - p); c->inlen -= p;
        if (!c->tls && (size_t)r < 65536) break; /* TLS has 16 KiB at most a time, and may keep more */
    }
}

/* for opened(): all of it, on a socket that still blocks */
static void say(conn_t *c, const char *text, size_t length) { if (give(c, text, length) != (ssize_t)length) die("write"); }
static void hear(conn_t *c, char *to, size_t length) {
    for (size_t got = 0; got < length;) {
        ssize_t r = get(c, to + got, length - got);
        if (r <= 0) die("read");
        got += r;
    }
}

static void options(int argc, char **argv) {
    opt.mode = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *k = argv[i] + 2, *v = argv[i + 1];
#define INT(name) if (!strcmp(k, #name)) { opt.name = atoi(v); continue; }
#define DBL(name) if (!strcmp(k, #name)) { opt.name = atof(v); continue; }
        INT(port) INT(conns) INT(window) INT(size) INT(queues) INT(batch) INT(max) INT(keys) INT(requests) INT(pullers) INT(tls)
        DBL(secs) DBL(warmup) DBL(rate)
        if (!strcmp(k, "host")) { opt.host = v; continue; }
        if (!strcmp(k, "topic")) { opt.topic = v; continue; }
        if (!strcmp(k, "access")) { opt.access = v; continue; }
        if (!strcmp(k, "secret")) { opt.secret = v; continue; }
        if (!strcmp(k, "from")) { opt.from = atoll(v); continue; }
        if (!strcmp(k, "header")) { opt.bin = !strcmp(v, "bin"); continue; }
        fprintf(stderr, "unknown option %s\n", argv[i]); exit(2);
    }
    if (opt.conns + opt.pullers > MAXCONN) { fprintf(stderr, "more than %d connections\n", MAXCONN); exit(2); }
    if (!opt.access != !opt.secret) { fprintf(stderr, "--access and --secret go together\n"); exit(2); }
    if (opt.pullers && opt.window != 1) { fprintf(stderr, "readers have one request in flight\n"); exit(2); }
}
static void connect_all(void) {
    ep = epoll_create1(0);
    for (int i = 0; i < opt.conns + opt.pullers; i++) {
        conn_t *c = &conns[i];
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(opt.port)};
        inet_pton(AF_INET, opt.host, &a.sin_addr);
        if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(c->fd, (void *)&a, sizeof a)) die("connect");
        int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->due = calloc(opt.window, sizeof *c->due); c->ring = calloc(opt.window, sizeof *c->ring);
        for (int k = 0; k < opt.window; k++) c->ring[c->nfree++] = k;
        c->number = i; c->pulls = i >= opt.conns; c->queue = (c->pulls ? i - opt.conns : i) % opt.queues; c->offset = opt.from;
        if (opt.tls) encrypt(c);
        opened(c);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {EPOLLIN, {.ptr = c}}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    }
}
static void issue_due(double *due, double until) {
    static int next;
    for (int tries = 0; *due <= until && tries < opt.conns;) {
        conn_t *c = &conns[next]; next = (next + 1) % opt.conns;
        if (!may_issue(c)) { tries++; continue; }
        issue(c, *due); push(c); *due += 1 / opt.rate; tries = 0;
    }
}
static void issue_all(int from, int to, double t) {
    for (int i = from; i < to; i++) {
        conn_t *c = &conns[i];
        if (may_issue(c)) { while (may_issue(c)) issue(c, t); push(c); }
    }
}
static int all_is_here(void) { return answered == issued && (!opt.pullers || pulled >= acked); }

static int generate(int argc, char **argv) {
    options(argc, argv);
    prctl(PR_SET_TIMERSLACK, 1);
    connect_all();
    if (opt.requests) opt.warmup = 0;
    double start = now() + opt.warmup, end = start + opt.secs, due = now(), counted = 0, ended = 0;
    struct epoll_event ev[256];
    for (;;) {
        double t = now();
        if (!counting && !ended && t >= start) { counting = 1; counted = t; }
        if (!ended && (opt.requests ? answered == opt.requests : opt.rate > 0 ? due >= end : t >= end)) {
            /* in an open loop what was due counts, however late its answer */
            ended = t; if (opt.rate == 0) counting = 0;
        }
        if (ended ? all_is_here() : opt.requests && t > end) break;
        if (ended && t > ended + GRACE) break;
        double wait = 0.1;
        if (!ended && opt.rate > 0) { issue_due(&due, t < end ? t : end); wait = due - now(); }
        else if (!ended) issue_all(0, opt.conns, t);
        issue_all(opt.conns, opt.conns + opt.pullers, t);
        if (wait > 0.1) wait = 0.1;
        /* behind with what is due, it waits for the next answer, which gives room */
        struct timespec pause = {0, wait > 0 ? (long)(wait * 1e9) : 1000000};
        int n = epoll_pwait2(ep, ev, 256, &pause, NULL);
        for (int k = 0; k < n; k++) {
            conn_t *c = ev[k].data.ptr;
            if (ev[k].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) pump(c);
            if (ev[k].events & EPOLLOUT) push(c);
        }
    }
    double dt = (ended ? ended : now()) - counted;
    if (!ended || !all_is_here()) {
        fprintf(stderr, "%ld of %ld requests answered, %ld of %ld messages read in %.1f s, %ld errors, code %ld\n",
                answered, opt.requests ? (long)opt.requests : issued, pulled, acked, now() - counted, errors, lastcode);
        return 2;
    }
    printf("{\"mode\":\"%s\",\"header\":\"%s\",\"conns\":%d,\"window\":%d,\"size\":%d,\"secs\":%.2f,\"requests\":%ld,\"messages\":%ld,"
           "\"errors\":%ld,\"last_error_code\":%ld,\"acked\":%ld,\"pulled\":%ld,\"requests_per_s\":%.0f,\"messages_per_s\":%.0f,"
           "\"out_per_s\":%.0f,\"mb_per_s\":%.1f,\"p50_us\":%.0f,\"p99_us\":%.0f,\"p999_us\":%.0f,\"max_us\":%.0f}\n",
           opt.mode, opt.bin ? "bin" : "json", opt.conns, opt.window, opt.size, dt, requests, messages, errors, lastcode, acked, pulled,
           requests / dt, messages / dt, out / dt, bytes / dt / 1e6, percentile(.5), percentile(.99), percentile(.999), percentile(1));
    return 0;
}
