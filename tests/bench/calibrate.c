/* calibrate: what this machine allows at all, printed beside every benchmark.
 *
 *   cc -O2 -pthread -o calibrate calibrate.c
 *   calibrate DIRECTORY
 *
 * Prints one JSON object: the median round trip of 128 bytes over loopback TCP (microseconds), the rate
 * of memcpy (GB/s, 64 MiB blocks), and the rate of fdatasync after a 256-byte append to a preallocated
 * file in DIRECTORY (syncs a second).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PING = 128, TRIPS = 20000, BLOCK = 64 << 20, RECORD = 256 };

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { perror(m); exit(2); }
static int by_value(const void *a, const void *b) { double d = *(double *)a - *(double *)b; return (d > 0) - (d < 0); }

static void exactly(int fd, char *p, int writing) {
    for (int done = 0; done < PING;) {
        ssize_t n = writing ? write(fd, p + done, PING - done) : read(fd, p + done, PING - done);
        if (n <= 0) die("loopback");
        done += n;
    }
}
static void *echo(void *listener) {
    int fd = accept(*(int *)listener, NULL, NULL), one = 1;
    char ping[PING];
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int i = 0; i < TRIPS; i++) { exactly(fd, ping, 0); exactly(fd, ping, 1); }
    close(fd);
    return NULL;
}
static double round_trip_us(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 1) || getsockname(listener, (void *)&a, &size)) die("listen");
    pthread_t thread;
    pthread_create(&thread, NULL, echo, &listener);
    if (connect(fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    static double trips[TRIPS];
    char ping[PING] = {0};
    for (int i = 0; i < TRIPS; i++) {
        double t = now();
        exactly(fd, ping, 1); exactly(fd, ping, 0);
        trips[i] = (now() - t) * 1e6;
    }
    pthread_join(thread, NULL);
    close(fd); close(listener);
    qsort(trips, TRIPS, sizeof *trips, by_value);
    return trips[TRIPS / 2];
}
static double memcpy_gb_per_s(void) {
    char *from = malloc(BLOCK), *to = malloc(BLOCK);
    memset(from, 1, BLOCK); memset(to, 2, BLOCK);
    double t = now(); int n = 0;
    while (now() - t < 0.5) { memcpy(to, from, BLOCK); from[n & 1023] = to[n & 1023] + 1; n++; }
    double rate = n * (double)BLOCK / (now() - t) / 1e9;
    free(from); free(to);
    return rate;
}
static double syncs_per_s(const char *directory) {
    char name[4096], record[RECORD];
    memset(record, 7, RECORD);
    snprintf(name, sizeof name, "%s/calibrate.tmp", directory);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || posix_fallocate(fd, 0, BLOCK)) die(name);
    double t = now(); int n = 0;
    while (now() - t < 1 && (n + 1) * RECORD < BLOCK) {
        if (pwrite(fd, record, RECORD, (off_t)n * RECORD) != RECORD || fdatasync(fd)) die("fdatasync");
        n++;
    }
    double rate = n / (now() - t);
    close(fd); unlink(name);
    return rate;
}
int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "calibrate DIRECTORY\n"); return 2; }
    printf("{\"round_trip_us\":%.1f,\"memcpy_gb_per_s\":%.1f,\"fdatasync_per_s\":%.0f}\n",
           round_trip_us(), memcpy_gb_per_s(), syncs_per_s(argv[1]));
    return 0;
}
