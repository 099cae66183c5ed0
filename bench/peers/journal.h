/* What a client of a store needs to know of its protocol, for Redis Streams and NATS JetStream: how to open a connection, how to
 * add a record, and how to see that one is confirmed. */
#ifndef JOURNAL_H
#define JOURNAL_H

#include "stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store {
    const char *name;
    /* Appends what opens a connection. The first one also prepares the store. */
    void (*open)(struct stream *stream, size_t client);
    /* How many confirmations end the opening: of the first connection, and of the others. */
    size_t first_confirmations, confirmations;
    /* Appends a request to add a record. */
    void (*add)(struct stream *stream, size_t client, uint32_t number, const void *body, size_t size);
    /* Takes one confirmation from what was read. False: there is none yet. */
    bool (*confirmed)(struct stream *stream);
};

/* NULL if there is none of this name. */
const struct store *store_named(const char *name);

#endif
