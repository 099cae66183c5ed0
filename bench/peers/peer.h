/* What the measuring programs share: loopback sockets, time, reports and exits. Every server prints
 * `ready PORT` on standard output; every receiver prints one JSON object when it has finished. */
#ifndef PEER_H
#define PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prints what failed, with the system's reason where errno holds one, and ends the program with status 1. */
_Noreturn void die(const char *what);
/* The same for faults that errno does not describe. */
_Noreturn void die_because(const char *what, const char *reason);

/* Seconds on a monotonic clock. */
double now_seconds(void);

/* A whole number of at most `max` in decimal; anything else ends the program. */
uint64_t parse_count(const char *text, uint64_t max);

/* Listens on a free port of 127.0.0.1 and says so on standard output. A congestion control of NULL leaves the system's
 * default; accepted sockets inherit it. */
int listen_and_announce(const char *congestion);
void announce(int port);
/* A blocking connection to 127.0.0.1. */
int connect_loopback(uint16_t port);

/* All of it or the end of the program. False from `read_exactly` means that the peer closed before the first byte. */
void write_all(int fd, const void *data, size_t size, int send_flags);
bool read_exactly(int fd, void *data, size_t size);

/* Big-endian, as on the wire. */
void put_u64(unsigned char *to, uint64_t value);
uint64_t take_u64(const unsigned char *from);

/* The server ends when the program that started it does, and a peer that goes away is not fatal. */
void prepare_process(void);
/* A thread's sleeps end when they should. */
void prepare_thread(void);
void sleep_us(uint64_t us);
/* What a worker does for a request: nothing but time passes, so that a few workers don't need as many cores. */
void work(uint64_t us);
/* As many descriptors as the system allows: many receivers live in one process. */
void allow_many_descriptors(void);

/* The end of every receiver: what it got and in what time. */
void report(uint64_t bytes, double seconds);

/* The raw protocol: a request names a file by its place on the server's command line and how much of it is wanted (0: all of it);
 * the answer is the length and as many bytes. Both numbers are big-endian. */
enum { RAW_REQUEST_BYTES = 16, RAW_HEADER_BYTES = 8 };

#endif
