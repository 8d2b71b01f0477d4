/* neighbourload: rmqload's send for two other servers, over the same loop.
 *
 *   cc -O2 -o neighbourload neighbourload.c -lm
 *   neighbourload redis [options]   XADD to the streams TOPIC-0, TOPIC-1 and so on, one field `d`
 *   neighbourload nats  [options]   PUB with a reply subject to TOPIC.0, TOPIC.1 and so on, which a
 *                                   JetStream stream stores and acknowledges
 *
 * Options and figures are those of rmqload.c, as far as they are about sends. Every answer is
 * parsed: XADD's is the entry's id, JetStream's a JSON object with a sequence number and no error.
 */
#include "loop.h"

static int nats;
static unsigned long serial;
static char *body;

static size_t room(void) { return (size_t)opt.size + 512; }
static size_t request(conn_t *c, int slot, char *to) {
    static char key[256]; char *p = to;
    int queue = serial++ % opt.queues;
    if (nats) p += sprintf(p, "PUB %s.%d _INBOX.%d.%d %d\r\n", opt.topic, queue, c->number, slot, opt.size);
    else {
        int length = snprintf(key, sizeof key, "%s-%d", opt.topic, queue);
        p += sprintf(p, "*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n", length, key, opt.size);
    }
    memcpy(p, body, opt.size); p += opt.size;
    *p++ = '\r'; *p++ = '\n';
    return p - to;
}

/* the line at `from` without its end, or NULL if it is not whole; `*next` is what follows it */
static const char *line(const char *from, size_t length, const char **next) {
    static char text[512];
    const char *end = memmem(from, length, "\r\n", 2);
    if (!end) return NULL;
    size_t size = end - from;
    if (size >= sizeof text) { fprintf(stderr, "a line of %zu bytes\n", size); exit(2); }
    memcpy(text, from, size); text[size] = 0;
    *next = end + 2;
    return text;
}

/* Answers come in the order of the requests, and so do free slots. */
static int oldest(conn_t *c) { return (c->first + c->nfree) % opt.window; }

static size_t take_redis(conn_t *c, const char *from, size_t length) {
    const char *next, *text = line(from, length, &next);
    if (!text) return 0;
    if (*text == '-') fprintf(stderr, "%s\n", text);
    long size = *text == '$' ? atol(text + 1) : -1;
    if (size < 0) { answer(c, c->ring[oldest(c)], 1, 0, 0); return next - from; }
    if (length - (next - from) < (size_t)size + 2) return 0;
    long long ms; int number, used = 0;
    char id[64] = ""; if (size < (long)sizeof id) memcpy(id, next, size);
    int good = sscanf(id, "%lld-%d%n", &ms, &number, &used) == 2 && used == size;
    answer(c, c->ring[oldest(c)], good ? 0 : 1, 1, opt.size);
    return next - from + size + 2;
}
static size_t take_nats(conn_t *c, const char *from, size_t length) {
    const char *next, *text = line(from, length, &next);
    if (!text) return 0;
    if (!strcmp(text, "PING")) { say(c, "PONG\r\n", 6); return next - from; }
    if (!strncmp(text, "INFO ", 5) || !strcmp(text, "+OK")) return next - from;
    int number, slot, size;
    if (sscanf(text, "MSG _INBOX.%d.%d 1 %d", &number, &slot, &size) != 3) { fprintf(stderr, "the server says %s\n", text); exit(2); }
    if (length - (next - from) < (size_t)size + 2) return 0;
    const char *seq = memmem(next, size, "\"seq\":", 6);
    int good = number == c->number && seq && atoll(seq + 6) > 0 && !memmem(next, size, "\"error\"", 7);
    answer(c, slot, good ? 0 : 1, 1, opt.size);
    return next - from + size + 2;
}
static size_t take(conn_t *c, const char *from, size_t length) { return nats ? take_nats(c, from, length) : take_redis(c, from, length); }

/* NATS greets with INFO, and answers PING when it has taken what came before. */
static void opened(conn_t *c) {
    if (!nats) return;
    char hello[256], byte;
    say(c, hello, sprintf(hello, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB _INBOX.%d.* 1\r\nPING\r\n", c->number));
    for (const char *wanted = "\nPONG\r\n", *p = wanted; *p;) { hear(c, &byte, 1); p = byte == *p ? p + 1 : wanted + (byte == *wanted); }
}

int main(int argc, char **argv) {
    nats = argc > 1 && !strcmp(argv[1], "nats");
    if (argc < 2 || (!nats && strcmp(argv[1], "redis"))) { fprintf(stderr, "neighbourload redis|nats [options]; see the head of the source\n"); return 2; }
    if (!(body = malloc(8 << 20))) die("malloc");
    for (size_t i = 0; i < 8 << 20; i++) body[i] = 'a' + i % 26;
    return generate(argc, argv);
}
