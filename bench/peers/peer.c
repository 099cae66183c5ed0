#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LISTEN_BACKLOG = 4096 };

void die(const char *what) {
    perror(what);
    exit(1);
}

void die_because(const char *what, const char *reason) {
    fprintf(stderr, "%s: %s\n", what, reason);
    exit(1);
}

double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

uint64_t parse_count(const char *text, uint64_t max) {
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value > max) die_because(text, "not a number in range");
    return value;
}

void announce(int port) {
    printf("ready %d\n", port);
    if (fflush(stdout) != 0) die("standard output");
}

static struct sockaddr_in loopback(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

int listen_and_announce(const char *congestion) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) die("socket");
    if (congestion != NULL &&
        setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) != 0)
        die(congestion);
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) != 0) die("bind");
    if (listen(listener, LISTEN_BACKLOG) != 0) die("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &size) != 0) die("getsockname");
    announce(ntohs(address.sin_port));
    return listener;
}

int connect_loopback(uint16_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    struct sockaddr_in address = loopback(port);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

void write_all(int fd, const void *data, size_t size, int send_flags) {
    const char *at = data;
    while (size > 0) {
        ssize_t sent = send(fd, at, size, send_flags | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) continue;
            die("send");
        }
        at += sent;
        size -= (size_t)sent;
    }
}

bool read_exactly(int fd, void *data, size_t size) {
    char *at = data;
    size_t missing = size;
    while (missing > 0) {
        ssize_t got = recv(fd, at, missing, 0);
        if (got < 0) {
            if (errno == EINTR) continue;
            if (errno == ECONNRESET && missing == size) return false;
            die("recv");
        }
        if (got == 0) {
            if (missing == size) return false;
            die_because("recv", "the peer closed in the middle");
        }
        at += got;
        missing -= (size_t)got;
    }
    return true;
}

void put_u64(unsigned char *to, uint64_t value) {
    for (int i = 7; i >= 0; i--) {
        to[i] = (unsigned char)value;
        value >>= 8;
    }
}

uint64_t take_u64(const unsigned char *from) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | from[i];
    return value;
}

void prepare_process(void) {
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void prepare_thread(void) { prctl(PR_SET_TIMERSLACK, 1UL); }

void sleep_us(uint64_t us) {
    struct timespec left = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* Before work ends, its thread is awake: how late a system wakes it must not count as work. */
enum { WAKING_US = 150 };

void work(uint64_t us) {
    if (us == 0) return;
    double end = now_seconds() + (double)us * 1e-6;
    prctl(PR_SET_TIMERSLACK, 1); /* of this thread: 50 us by default, by which every sleep would be longer */
    if (us > WAKING_US) sleep_us(us - WAKING_US);
    while (now_seconds() < end) {}
}

void allow_many_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

void report(uint64_t bytes, double seconds) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"bytes\":%llu,\"seconds\":%.6f,\"peak_kib\":%ld}\n", (unsigned long long)bytes, seconds, usage.ru_maxrss);
}
