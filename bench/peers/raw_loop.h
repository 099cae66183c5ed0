/* The loop of the brokers that do the least: one thread and epoll. What a turn has for a connection is written at once. */
#ifndef RAW_LOOP_H
#define RAW_LOOP_H

#include "load.h"

struct peer {
    struct stream stream; /* its descriptor is -1 when the other side has closed */
    uint32_t slot;
    char role;   /* the broker's own; 0 at first */
    bool marked; /* has something to be written in this turn */
};

/* By their slots. */
extern struct peer *peers[CONNECTIONS_MOST];
extern size_t peer_count;

/* Something waits to be written. */
void mark(struct peer *peer);

/* Listens, says so, and never returns. `begin` makes a stream of a connection that was accepted; `take` is called for what was read,
 * and once more when the other side has closed. */
_Noreturn void raw_loop(void (*begin)(struct stream *stream, int fd), void (*take)(struct peer *peer));

#endif
