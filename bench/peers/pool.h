/* The worker-pool experiment: clients that ask one thing at a time, fewer workers that take a while for each, all threads of
 * one process. What joins clients and workers is what differs. */
#ifndef POOL_H
#define POOL_H

#include "ledger.h"

#include <stddef.h>
#include <stdint.h>

struct pool {
    uint64_t requests, clients, workers, size, work_us;
    const char *transport;
};

/* Reads --requests, --clients, --workers, --size, --work-us and --transport. */
struct pool pool_options(int argc, char **argv);

/* A client: sends a body and waits for the reply, which it writes over the body. */
typedef void (*pool_call)(void *client, unsigned char *body, size_t size);

/* Starts threads that go on to the end of the program. */
void pool_spawn(size_t count, void *(*thread)(void *), void *with);
/* Opens a client in a thread of its own for each, has them share the requests, and prints the report. */
void pool_run(const struct pool *pool, void *(*open)(void *with), pool_call call, void *with);

#endif
