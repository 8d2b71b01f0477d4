/* rmqload: a closed- or open-loop load generator for a RocketMQ 4.x broker.
 *
 * Raw frames over the loop of loop.h. Every reply is parsed: one whose code is not SUCCESS counts as
 * an error and never as throughput.
 *
 *   cc -O2 -o rmqload rmqload.c -lm
 *   rmqload send  [options]   SEND_MESSAGE_V2 (310), one message a request
 *   rmqload batch [options]   SEND_BATCH_MESSAGE (320), --batch messages a request
 *   rmqload pull  [options]   PULL_MESSAGE (11), each queue from its offset --from, again at its end
 *
 * Options (default): --host 127.0.0.1  --port 10911  --conns 64  --window 1 (requests in flight a
 * connection)  --size 128 (body bytes)  --secs 5  --warmup 1  --header json|bin (json)  --topic
 * BenchmarkTest  --queues 4  --batch 32  --rate 0 (requests/s in all; 0 = closed loop)  --max 32
 * (pull: messages a request)  --from 0  --keys 0|1 (1: every message carries a KEYS property)
 * --pullers 0 (send, batch: so many connections read meanwhile what is new, with long polling; one
 * for each queue, and at the end they must have read all that was acknowledged)
 * --requests 0 (0: work for --secs. Otherwise: end when that many requests are answered, without a
 * warm-up; not done within --secs is a failure)  --tls 0|1, --access KEY --secret KEY (compiled with
 * -DSECURED -lssl -lcrypto alone: over TLS, and signed)
 *
 * Prints one JSON object: requests, messages, errors, rates, latency percentiles in microseconds.
 * With --rate the latency counts from the moment the request was due, not from when it was sent.
 * `acked` counts every message acknowledged, warm-up included: a broker holds exactly so many.
 */
/* what replaces SHA1_Update looks its algorithm up in each call */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "loop.h"
#ifdef SECURED
#include <openssl/evp.h>
#include <openssl/sha.h>
#endif

static int pull, batch; /* the mode; send otherwise */
static unsigned long serial;

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

#define MOST_FIELDS 16
/* The fields with AccessKey and Signature beside them: of the values in the order of their keys, then the body. */
#ifdef SECURED
static int by_key(const void *a, const void *b) { return strcmp(*(const char **)a, *(const char **)b); }
/* the state of SHA-1 that HMAC begins with, inside (0x36) or outside (0x5c) */
static SHA_CTX begun(unsigned char mask) {
    unsigned char block[64] = {0}; size_t n = strlen(opt.secret); SHA_CTX state;
    if (n > sizeof block) { fprintf(stderr, "a secret of more than 64 bytes\n"); exit(2); }
    memcpy(block, opt.secret, n);
    for (size_t i = 0; i < sizeof block; i++) block[i] ^= mask;
    SHA1_Init(&state); SHA1_Update(&state, block, sizeof block);
    return state;
}
static int sign(const char *kv[][2], int n, const char *body, size_t bl) {
    static SHA_CTX inner, outer; static int ready; static char text[32];
    unsigned char digest[SHA_DIGEST_LENGTH]; SHA_CTX state;
    if (!ready) { inner = begun(0x36); outer = begun(0x5c); ready = 1; }
    kv[n][0] = "AccessKey"; kv[n++][1] = opt.access;
    qsort(kv, n, sizeof *kv, by_key);
    state = inner;
    for (int i = 0; i < n; i++) SHA1_Update(&state, kv[i][1], strlen(kv[i][1]));
    SHA1_Update(&state, body, bl); SHA1_Final(digest, &state);
    state = outer;
    SHA1_Update(&state, digest, sizeof digest); SHA1_Final(digest, &state);
    EVP_EncodeBlock((void *)text, digest, sizeof digest);
    kv[n][0] = "Signature"; kv[n++][1] = text;
    return n;
}
#else
static int sign(const char *kv[][2], int n, const char *body, size_t bl) {
    (void)kv, (void)n, (void)body, (void)bl;
    fprintf(stderr, "compiled without signatures\n"); exit(2);
}
#endif

/* header fields as key/value pairs, then either form of the header, then the body */
static size_t frame(char *f, int code, int opaque, const char *given[][2], int n, const char *body, size_t bl) {
    const char *kv[MOST_FIELDS][2];
    memcpy(kv, given, n * sizeof *kv);
    if (opt.access) n = sign(kv, n, body, bl);
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
    if (pull || c->pulls) {
        sprintf(qid, "%d", c->queue); sprintf(off, "%lld", c->offset); sprintf(max, "%d", opt.max);
        const char *kv[][2] = {{"consumerGroup", "rmqload"}, {"topic", opt.topic}, {"queueId", qid}, {"queueOffset", off},
            {"maxMsgNums", max}, {"sysFlag", c->pulls ? "6" : "4"}, {"commitOffset", "0"}, {"suspendTimeoutMillis", c->pulls ? "15000" : "0"},
            {"subscription", "*"}, {"subVersion", "0"}, {"expressionType", "TAG"}};
        return frame(f, 11, slot, kv, 11, "", 0);
    }
    unsigned long s = serial++;
    sprintf(qid, "%lu", s % opt.queues); sprintf(born, "%lld", ms);
    int pl = sprintf(props, "UNIQ_KEY\001AC110001000078308DB1%012lX\002WAIT\001true\002TAGS\001TagA", s);
    if (opt.keys) sprintf(props + pl, "\002KEYS\001order-%lu", s);
    const char *kv[][2] = {{"a", "rmqload_group"}, {"b", opt.topic}, {"c", "TBW102"}, {"d", "4"}, {"e", qid}, {"f", "0"},
        {"g", born}, {"h", "0"}, {"i", batch ? "WAIT\001true" : props}, {"j", "0"}, {"k", "false"},
        {"m", batch ? "true" : "false"}};
    if (!batch) return frame(f, 310, slot, kv, 12, body, opt.size);
    static char inner[8 << 20]; char *p = inner;
    for (int i = 0; i < opt.batch; i++) { /* size, magic, crc, flag, body, properties */
        char bp[128]; int bl = sprintf(bp, "UNIQ_KEY\001AC110001000078308DB1%012lX\002TAGS\001TagA", s * opt.batch + i);
        p = u32(p, 22 + opt.size + bl); p = u32(p, 0); p = u32(p, 0); p = u32(p, 0); p = u32(p, opt.size);
        memcpy(p, body, opt.size); p = u16(p + opt.size, bl); memcpy(p, bp, bl); p += bl;
    }
    return frame(f, 320, slot, kv, 12, inner, p - inner);
}

static size_t room(void) { return batch ? (size_t)opt.batch * (opt.size + 160) + 4096 : (size_t)opt.size + 4096; }

/* numeric value of an extFields entry, in either header form */
static long long extnum(const char *h, size_t hl, const char *key, int bin, long long dflt) {
    size_t kl = strlen(key);
    const char *p = memmem(h, hl, key, kl);
    if (!p) return dflt;
    if (bin) return atoll(p + kl + 4);
    p += kl; while (*p == '"' || *p == ':' || *p == ' ') p++;
    return atoll(p);
}
/* messages of a pull's body, whose records begin with their sizes */
static long records(const char *body, size_t length) {
    long n = 0; uint32_t size;
    for (size_t i = 0; i + 4 <= length; n++) {
        memcpy(&size, body + i, 4); size = ntohl(size);
        if (size < 20 || size > length - i) { fprintf(stderr, "a record of %u bytes\n", size); exit(2); }
        i += size;
    }
    return n;
}
static size_t take(conn_t *c, const char *f, size_t length) {
    uint32_t total, w;
    if (length < 8) return 0;
    memcpy(&total, f, 4); total = ntohl(total);
    if (length < 4 + (size_t)total) return 0;
    memcpy(&w, f + 4, 4); w = ntohl(w);
    int bin = w >> 24, code, opaque; size_t hl = w & 0xffffff, bl = total - 4 - hl; const char *h = f + 8, *b = h + hl;
    if (bin) { code = (unsigned char)h[0] << 8 | (unsigned char)h[1]; memcpy(&w, h + 5, 4); opaque = ntohl(w); }
    else { code = extnum(h, hl, "\"code\"", 0, -1); opaque = extnum(h, hl, "\"opaque\"", 0, -1); }
    long n = batch ? opt.batch : 1;
    if (pull || c->pulls) {
        n = code == 0 ? records(b, bl) : 0;
        c->offset = extnum(h, hl, "nextBeginOffset", bin, c->offset);
        /* 19 and 20: nothing there yet; a reader beside senders asks again, else the queue begins again */
        if (c->pulls && (code == 19 || code == 20)) code = 0;
        if (pull && code == 19) { c->offset = opt.from; code = 0; }
    }
    answer(c, opaque, code, n, pull ? (long)bl : n * opt.size);
    return 4 + (size_t)total;
}

/* A reader beside senders begins at its queue's end, which it asks for (GET_MAX_OFFSET, 30). */
static void opened(conn_t *c) {
    if (!c->pulls) return;
    char f[8192], qid[24]; uint32_t w;
    sprintf(qid, "%d", c->queue);
    const char *kv[][2] = {{"topic", opt.topic}, {"queueId", qid}};
    say(c, f, frame(f, 30, 0, kv, 2, "", 0));
    hear(c, f, 8);
    uint32_t total; memcpy(&total, f, 4); total = ntohl(total);
    memcpy(&w, f + 4, 4); w = ntohl(w);
    if (total < 4 || total - 4 > sizeof f - 16) die("the answer to GET_MAX_OFFSET");
    hear(c, f + 8, total - 4);
    c->offset = extnum(f + 8, w & 0xffffff, "offset", w >> 24, -1);
    if (c->offset < 0) { fprintf(stderr, "queue %d has no end\n", c->queue); exit(2); }
}

int main(int argc, char **argv) {
    if (argc < 2) { fprintf(stderr, "rmqload send|batch|pull [options]; see the head of the source\n"); return 2; }
    pull = !strcmp(argv[1], "pull"); batch = !strcmp(argv[1], "batch");
    if (pull) opt.window = 1;
    return generate(argc, argv);
}
