/* rmqload: a closed- or open-loop load generator for a RocketMQ 4.x broker.
 *
 * One thread, epoll, raw frames. It costs a few microseconds of CPU a request, so on a small
 * machine the broker under test, not the generator, is the limit. Every reply is parsed: a reply
 * whose code is not SUCCESS counts as an error and never as throughput.
 *
 *   cc -O2 -o rmqload rmqload.c -lm
 *   rmqload send  [options]   SEND_MESSAGE_V2 (310), one message a request
 *   rmqload batch [options]   SEND_BATCH_MESSAGE (320), --batch messages a request
 *   rmqload pull  [options]   PULL_MESSAGE (11), drains each queue from its offset --from
 *
 * Options (default): --host 127.0.0.1  --port 10911  --conns 64  --window 1 (requests in flight a
 * connection)  --size 128 (body bytes)  --secs 5  --warmup 1  --header json|bin (json)  --topic
 * BenchmarkTest  --queues 4  --batch 32  --rate 0 (requests/s in all; 0 = closed loop)  --max 32
 * (pull: messages a request)  --from 0  --keys 0|1 (1: every message carries a KEYS property)
 * --requests 0 (0: work for --secs. Otherwise: end when that many requests are answered, without a
 * warm-up; a pull begins its queue again at its end; not done within --secs is a failure)
 *
 * Prints one JSON object: requests, messages, errors, rates, latency percentiles in microseconds.
 * With --rate the latency counts from the moment the request was due, not from when it was sent.
 * `acked` counts every message acknowledged, warm-up included, and `unanswered` those still under way
 * at the end: a broker holds at least the first number, and at most the sum.
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
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SEND, BATCH, PULL };
#define MAXCONN 4096
#define BUCKETS 4096 /* log-linear histogram: 64 per power of two */

static struct {
    int mode, port, conns, window, size, queues, batch, bin, max, keys, requests;
    double secs, warmup, rate;
    long long from;
    const char *host, *topic;
} opt = {SEND, 10911, 64, 1, 128, 4, 32, 0, 32, 0, 0, 5, 1, 0, 0, "127.0.0.1", "BenchmarkTest"};

typedef struct {
    int fd, inflight, done;
    double *sent;       /* by window slot */
    int *freeslot, nfree;
    char *in; size_t inlen, incap;
    char *out; size_t outoff, outlen, outcap;
    int queue; long long offset;
} conn_t;

static conn_t conns[MAXCONN];
static long hist[BUCKETS], requests, messages, bytes, errors, lastcode, acked, issued, answered;
static unsigned long serial;
static int counting, ep, alive;

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

static char *u16(char *p, unsigned v) { *p++ = v >> 8; *p++ = v; return p; }
static char *u32(char *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); return p + 4; }
static char *field(char *p, const char *k, const char *v) {
    size_t kl = strlen(k), vl = strlen(v);
    p = u16(p, kl); memcpy(p, k, kl); p = u32(p + kl, vl); memcpy(p, v, vl); return p + vl;
}
static char *jstr(char *p, const char *s) {
    *p++ = '"';
    for (; *s; s++) { if (*s < 32) p += sprintf(p, "\\u%04x", *s); else { if (*s == '"' || *s == '\\') *p++ = '\\'; *p++ = *s; } }
    *p++ = '"'; return p;
}

/* header fields as key/value pairs, then either form of the header, then the body */
static size_t frame(char *f, int code, int opaque, const char *kv[][2], int n, const char *body, size_t bl) {
    char *h = f + 8, *p = h;
    if (opt.bin) {
        p = u16(p, code); *p++ = 12; p = u16(p, 399); p = u32(p, opaque); p = u32(p, 0); p = u32(p, 0);
        char *len = p; p += 4;
        for (int i = 0; i < n; i++) p = field(p, kv[i][0], kv[i][1]);
        u32(len, p - len - 4);
    } else {
        p += sprintf(p, "{\"code\":%d,\"extFields\":{", code);
        for (int i = 0; i < n; i++) { p = jstr(p, kv[i][0]); *p++ = ':'; p = jstr(p, kv[i][1]); if (i < n - 1) *p++ = ','; }
        p += sprintf(p, "},\"flag\":0,\"language\":\"OTHER\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":399}", opaque);
    }
    size_t hl = p - h;
    u32(f, 4 + hl + bl); u32(f + 4, hl | (opt.bin ? 1u << 24 : 0));
    memcpy(p, body, bl);
    return 8 + hl + bl;
}

static size_t request(conn_t *c, int slot, char *f) {
    static char body[8 << 20]; static int ready;
    char qid[24], born[24], props[256], off[24], max[16];
    struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
    long long ms = t.tv_sec * 1000LL + t.tv_nsec / 1000000;
    if (!ready) { for (size_t i = 0; i < sizeof body; i++) body[i] = 'a' + i % 26; ready = 1; }
    if (opt.mode == PULL) {
        sprintf(qid, "%d", c->queue); sprintf(off, "%lld", c->offset); sprintf(max, "%d", opt.max);
        const char *kv[][2] = {{"consumerGroup", "rmqload"}, {"topic", opt.topic}, {"queueId", qid}, {"queueOffset", off},
            {"maxMsgNums", max}, {"sysFlag", "4"}, {"commitOffset", "0"}, {"suspendTimeoutMillis", "0"},
            {"subscription", "*"}, {"subVersion", "0"}, {"expressionType", "TAG"}};
        return frame(f, 11, slot, kv, 11, "", 0);
    }
    unsigned long s = serial++;
    sprintf(qid, "%lu", s % opt.queues); sprintf(born, "%lld", ms);
    int pl = sprintf(props, "UNIQ_KEY\001AC110001000078308DB1%012lX\002WAIT\001true\002TAGS\001TagA", s);
    if (opt.keys) sprintf(props + pl, "\002KEYS\001order-%lu", s);
    const char *kv[][2] = {{"a", "rmqload_group"}, {"b", opt.topic}, {"c", "TBW102"}, {"d", "4"}, {"e", qid}, {"f", "0"},
        {"g", born}, {"h", "0"}, {"i", opt.mode == BATCH ? "WAIT\001true" : props}, {"j", "0"}, {"k", "false"},
        {"m", opt.mode == BATCH ? "true" : "false"}};
    if (opt.mode == SEND) return frame(f, 310, slot, kv, 12, body, opt.size);
    static char inner[8 << 20]; char *p = inner;
    for (int i = 0; i < opt.batch; i++) { /* size, magic, crc, flag, body, properties */
        char bp[128]; int bl = sprintf(bp, "UNIQ_KEY\001AC110001000078308DB1%012lX\002TAGS\001TagA", s * opt.batch + i);
        p = u32(p, 22 + opt.size + bl); p = u32(p, 0); p = u32(p, 0); p = u32(p, 0); p = u32(p, opt.size);
        memcpy(p, body, opt.size); p = u16(p + opt.size, bl); memcpy(p, bp, bl); p += bl;
    }
    return frame(f, 320, slot, kv, 12, inner, p - inner);
}

static void push(conn_t *c) {
    while (c->outoff < c->outlen) {
        ssize_t w = write(c->fd, c->out + c->outoff, c->outlen - c->outoff);
        if (w < 0) { if (errno == EAGAIN) break; die("write"); }
        c->outoff += w;
    }
    if (c->outoff == c->outlen) c->outoff = c->outlen = 0;
    struct epoll_event e = {EPOLLIN | (c->outlen ? EPOLLOUT : 0), {.ptr = c}};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static void issue(conn_t *c, double due) {
    size_t need = opt.mode == BATCH ? (size_t)opt.batch * (opt.size + 160) + 4096 : (size_t)opt.size + 4096;
    if (c->outlen + need > c->outcap) c->out = realloc(c->out, c->outcap = (c->outlen + need) * 2);
    int slot = c->freeslot[--c->nfree];
    c->outlen += request(c, slot, c->out + c->outlen);
    c->sent[slot] = due; c->inflight++; issued++;
}
/* whether the connection may send one more */
static int may_issue(conn_t *c) { return c->nfree && !c->done && (!opt.requests || issued < opt.requests); }

/* numeric value of an extFields entry, in either header form */
static long long extnum(const char *h, size_t hl, const char *key, int bin, long long dflt) {
    size_t kl = strlen(key);
    const char *p = memmem(h, hl, key, kl);
    if (!p) return dflt;
    if (bin) return atoll(p + kl + 4);
    p += kl; while (*p == '"' || *p == ':' || *p == ' ') p++;
    return atoll(p);
}
static void reply(conn_t *c, const char *f, size_t total) {
    uint32_t w; memcpy(&w, f, 4); w = ntohl(w);
    int bin = w >> 24; size_t hl = w & 0xffffff; const char *h = f + 4, *b = h + hl; size_t bl = total - 4 - hl;
    int code, opaque;
    if (bin) { code = (unsigned char)h[0] << 8 | (unsigned char)h[1]; memcpy(&w, h + 5, 4); opaque = ntohl(w); }
    else { code = extnum(h, hl, "\"code\"", 0, -1); opaque = extnum(h, hl, "\"opaque\"", 0, -1); }
    if (opaque < 0 || opaque >= opt.window) { fprintf(stderr, "reply with unknown opaque %d\n", opaque); exit(2); }
    long n = opt.mode == BATCH ? opt.batch : 1;
    if (opt.mode == PULL) {
        n = 0;
        if (code == 0) for (size_t i = 0; i + 4 <= bl;) { memcpy(&w, b + i, 4); w = ntohl(w); if (w < 20) die("bad record"); i += w; n++; }
        c->offset = extnum(h, hl, "nextBeginOffset", bin, c->offset);
        if (code == 19 && opt.requests) { c->offset = opt.from; code = 0; }
        if (code == 19 || code == 20 || code == 21) { c->done = 1; alive--; code = n = 0; }
    }
    if (code == 0) acked += n;
    if (counting) {
        if (code == 0) { requests++; messages += n; bytes += opt.mode == PULL ? (long)bl : n * opt.size; record((now() - c->sent[opaque]) * 1e6); }
        else { errors++; lastcode = code; }
    }
    c->freeslot[c->nfree++] = opaque; c->inflight--; answered++;
}
static void pump(conn_t *c) {
    for (;;) {
        if (c->incap - c->inlen < 65536) c->in = realloc(c->in, c->incap = c->incap * 2 + 131072);
        ssize_t r = read(c->fd, c->in + c->inlen, c->incap - c->inlen);
        if (r == 0) { fprintf(stderr, "connection closed by the broker\n"); exit(2); }
        if (r < 0) { if (errno == EAGAIN) break; die("read"); }
        c->inlen += r;
        size_t p = 0; uint32_t t;
        while (c->inlen - p >= 4) {
            memcpy(&t, c->in + p, 4); t = ntohl(t);
            if (c->inlen - p < 4 + (size_t)t) break;
            reply(c, c->in + p + 4, t); p += 4 + t;
        }
        memmove(c->in, c->in + p, c->inlen - p); c->inlen -= p;
        if ((size_t)r < 65536) break;
    }
}

int main(int argc, char **argv) {
    if (argc < 2) { fprintf(stderr, "rmqload send|batch|pull [options]; see the head of the source\n"); return 2; }
    opt.mode = !strcmp(argv[1], "batch") ? BATCH : !strcmp(argv[1], "pull") ? PULL : SEND;
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *k = argv[i] + 2, *v = argv[i + 1];
#define INT(name) if (!strcmp(k, #name)) { opt.name = atoi(v); continue; }
#define DBL(name) if (!strcmp(k, #name)) { opt.name = atof(v); continue; }
        INT(port) INT(conns) INT(window) INT(size) INT(queues) INT(batch) INT(max) INT(keys) INT(requests) DBL(secs) DBL(warmup) DBL(rate)
        if (!strcmp(k, "host")) { opt.host = v; continue; }
        if (!strcmp(k, "topic")) { opt.topic = v; continue; }
        if (!strcmp(k, "from")) { opt.from = atoll(v); continue; }
        if (!strcmp(k, "header")) { opt.bin = !strcmp(v, "bin"); continue; }
        fprintf(stderr, "unknown option %s\n", argv[i]); return 2;
    }
    if (opt.mode == PULL) opt.window = 1;
    if (opt.conns > MAXCONN) opt.conns = MAXCONN;
    ep = epoll_create1(0); alive = opt.conns;
    for (int i = 0; i < opt.conns; i++) {
        conn_t *c = &conns[i];
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(opt.port)};
        inet_pton(AF_INET, opt.host, &a.sin_addr);
        if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(c->fd, (void *)&a, sizeof a)) die("connect");
        int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->sent = calloc(opt.window, sizeof *c->sent); c->freeslot = calloc(opt.window, sizeof *c->freeslot);
        for (int k = 0; k < opt.window; k++) c->freeslot[c->nfree++] = k;
        c->queue = i % opt.queues; c->offset = opt.from;
        struct epoll_event e = {EPOLLIN, {.ptr = c}}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    }
    double t0 = now(), start = t0 + opt.warmup, end = start + opt.secs, due = t0, counted = 0;
    if (opt.mode == PULL || opt.requests) { start = t0; end = t0 + opt.secs; }
    int next = 0; struct epoll_event ev[256];
    for (;;) {
        double t = now();
        if (!counting && t >= start) { counting = 1; counted = t; }
        if (t >= end || !alive || (opt.requests && answered == opt.requests)) break;
        if (opt.rate > 0) {
            for (int tries = 0; due <= t && tries < opt.conns;) {
                conn_t *c = &conns[next]; next = (next + 1) % opt.conns;
                if (!may_issue(c)) { tries++; continue; }
                issue(c, due); push(c); due += 1 / opt.rate; tries = 0;
            }
        } else for (int i = 0; i < opt.conns; i++) {
            conn_t *c = &conns[i];
            if (may_issue(c)) { while (may_issue(c)) issue(c, t); push(c); }
        }
        int n = epoll_wait(ep, ev, 256, opt.rate > 0 ? 1 : 100);
        for (int k = 0; k < n; k++) {
            conn_t *c = ev[k].data.ptr;
            if (ev[k].events & EPOLLIN) pump(c);
            if (ev[k].events & EPOLLOUT) push(c);
        }
    }
    double dt = now() - counted;
    if (opt.requests && answered < opt.requests) {
        fprintf(stderr, "%ld of %d requests answered in %.1f s\n", answered, opt.requests, dt); return 2;
    }
    long unanswered = 0;
    for (int i = 0; i < opt.conns; i++) unanswered += (long)conns[i].inflight * (opt.mode == BATCH ? opt.batch : 1);
    printf("{\"mode\":\"%s\",\"header\":\"%s\",\"conns\":%d,\"window\":%d,\"size\":%d,\"secs\":%.2f,\"requests\":%ld,\"messages\":%ld,"
           "\"errors\":%ld,\"last_error_code\":%ld,\"acked\":%ld,\"unanswered\":%ld,\"requests_per_s\":%.0f,\"messages_per_s\":%.0f,\"mb_per_s\":%.1f,"
           "\"p50_us\":%.0f,\"p99_us\":%.0f,\"p999_us\":%.0f,\"max_us\":%.0f}\n",
           argv[1], opt.bin ? "bin" : "json", opt.conns, opt.window, opt.size, dt, requests, messages, errors, lastcode, acked, unanswered,
           requests / dt, messages / dt, bytes / dt / 1e6, percentile(.5), percentile(.99), percentile(.999), percentile(1));
    return errors && !requests;
}
